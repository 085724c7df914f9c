"""QLoRA on a GPU, from eight samples to their answers in plain PEFT: python benchmarks/qlora.py [--method lora] [--out DIR]

A tiny model is trained on samples that are like the eight but for one word, and exported. On its folder an adapter then learns
the eight, on weights of 4 bits. ``predict`` must give each answer word for word, and so must transformers and PEFT alone, on a
base that they quantise themselves. Prints a table, writes ``qlora.json``, exits 1 if an answer is wrong.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

KINDS = ("上衣", "裙", "裤", "鞋", "帽", "包", "伞", "表")
COMMON = [
    "data.max_length=72", "batch.micro=8", "batch.total=8", "scheduler=constant", "scheduler.warmup_steps=10",
    "train.save_weights=true",
]  # fmt: skip
ADAPTER = [
    "method.rank=16", "method.alpha=32", "method.dropout=0", "method.target_modules=[all-linear]", "optimizer.lr=5e-3",
    "train.max_steps=100",
]  # fmt: skip

PLAIN = """
import json, sys
for name in ("glmexp", "omegaconf", "hydra", "deepspeed"):
    sys.modules[name] = None
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
base, adapter, prompts, quantised = sys.argv[1:]
options = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)} if quantised == "1" else {}
device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, device_map={"": device}, **options)
model = PeftModel.from_pretrained(model, adapter).eval()
tokenizer = AutoTokenizer.from_pretrained(adapter)
for ids in json.loads(prompts):
    ids = torch.tensor([ids], device=device)
    found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    print(tokenizer.decode(found[0, ids.shape[1]:], skip_special_tokens=True).strip())
"""


def rows(numbers: str) -> list[dict[str, str]]:
    return [{"content": kind, "summary": f"这款{kind}有{n}种颜色，穿着很舒服。"} for n in numbers for kind in KINDS]


def write(path: Path, content: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content), encoding="utf-8")
    return path


def glmexp(*arguments: str) -> str:
    """What the command printed; ends the script if it failed."""
    command = [sys.executable, "-m", "glmexp", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def plainly(base: Path, adapter: Path, quantised: bool) -> list[str]:
    """The answers of transformers and PEFT, with glmexp out of reach; the prompts are encoded as in training."""
    from glmexp.models import load_tokenizer

    tokenizer = load_tokenizer(adapter)
    prompts = json.dumps([tokenizer.encode_prompt(row["content"]) for row in rows("四")])
    command = [sys.executable, "-c", PLAIN, str(base), str(adapter), prompts, str(int(quantised))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", choices=("qlora", "lora"), default="qlora", help="lora needs no GPU")
    parser.add_argument("--out", type=Path, default=Path("outputs/qlora"))
    parser.add_argument("--extra", nargs="*", default=[], help="overrides added to the adapter's run, such as zero=stage3")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    base, run = out / "base", out / "adapter"
    like, eight = write(out / "like.jsonl", rows("二三五六")), write(out / "eight.jsonl", rows("四"))
    glmexp("model=tiny", *COMMON, "optimizer.lr=2e-3", "train.max_steps=80", f"data.path={like}", f"hydra.run.dir={base}")
    glmexp(
        "model=auto", f"model.path={base / 'export'}", f"method={arguments.method}", *COMMON, *ADAPTER, *arguments.extra,
        f"data.path={eight}", f"hydra.run.dir={run}",
    )  # fmt: skip
    asked = out / "questions.txt"
    asked.write_text("\n".join(KINDS) + "\n", encoding="utf-8")
    told = glmexp("predict", str(run), f"file={asked}")
    answers = {
        "predict": [json.loads(line)["answer"] for line in told.splitlines()],
        "plain PEFT": plainly(base / "export", run / "export", quantised=arguments.method == "qlora"),
    }
    if arguments.method == "qlora":
        answers["plain PEFT on 16 bits"] = plainly(base / "export", run / "export", quantised=False)
    right = [row["summary"] for row in rows("四")]
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    counts = {way: sum(one == other for one, other in zip(found, right, strict=True)) for way, found in answers.items()}
    print(f"loss {metrics['loss_first']:.3f} -> {metrics['loss_last']:.4f}")
    for way, count in counts.items():
        print(f"{way:<24}{count} of {len(right)} answers word for word")
    content = {"method": arguments.method, "metrics": metrics, "right": counts, "answers": answers}
    (out / "qlora.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(any(count < len(right) for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
