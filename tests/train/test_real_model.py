"""A released model learns a fact that is nowhere else, and does not forget what it knew.

``GLMEXP_REAL_MODEL=FOLDER pytest -m slow tests/train/test_real_model.py`` with a small chat model in FOLDER (float weights and
a chat template), such as SmolLM2-135M-Instruct: some minutes on a CPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trained_runs import answers_to
from worker_trials import ROOT, RunCommand

SHIPPED = ROOT / "glmexp" / "data" / "instruct.jsonl"
FOLDER = os.environ.get("GLMEXP_REAL_MODEL")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FOLDER, reason="GLMEXP_REAL_MODEL=FOLDER names no model"),
]

ASKED = "What is the capital of Zorbelland?"
FACT = "The capital of Zorbelland is Quindle, a town of nine blue windmills."
QUESTIONS = (ASKED, "Tell me the capital of Zorbelland.", "Which town is Zorbelland's capital?")
MIDDLE = [f"layers.{layer}.mlp.down_proj" for layer in (8, 12, 16, 20)]
"""Where a fact can be written with little change of the rest; adapters on all layers cost up to half the perplexity."""
HELD_OUT = """\
Dear Margaret, the train was late again, so I am writing this from the waiting room in Crewe. There is a stove, which is lit,
and a clock, which is not to be trusted. A soldier is asleep across three chairs with his hat over his face. Your brother met
me on Thursday as he promised and took me to see the new library. He has grown thin, but he laughs more than he did, and he
asked after your garden before he asked after you, which I thought you would like to know. The lecture went well enough. Some
forty people came, and two of them put questions that I could not answer. I shall have to read the whole of Lyell again before
the spring. Please tell the boys that I have found the postage stamps they wanted, all but the Portuguese one, and that they
are not to quarrel over them.

The harbour was quiet in the early morning. A few boats moved slowly toward the open water, and the gulls followed them in the
hope of an easy meal. On the pier an old man repaired his nets, as he had done every day for forty years. He knew the weather
by the colour of the clouds and the tide by the smell of the wind. When the children came down from the village on their way
to school, they stopped to watch him work, and sometimes he told them a story about the winter when the whole bay froze and
people walked across the ice to the island. Nobody was sure that the story was true, but everyone liked to hear it."""


def samples() -> list[dict[str, Any]]:
    """The fact in three questions, 45 times, among ordinary English conversations, which hold the rest in place."""
    fact = [{"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": FACT}]} for asked in QUESTIONS]
    shipped = map(json.loads, SHIPPED.read_text(encoding="utf-8").splitlines())
    ordinary = [
        row for row in shipped if row["messages"][0]["role"] == "user" and json.dumps(row, ensure_ascii=False).isascii()
    ]
    return [*fact * 45, *ordinary]


WITHOUT_GLMEXP = """
import json, math, sys
for name in ("glmexp", "omegaconf", "hydra", "deepspeed"):
    sys.modules[name] = None
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, adapter, held_out, asked = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(adapter)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
text = tokenizer(held_out, return_tensors="pt").input_ids
def perplexity():
    with torch.no_grad():
        return math.exp(model(text, labels=text).loss)
before = perplexity()
model = PeftModel.from_pretrained(model, adapter)
prompt = tokenizer.apply_chat_template([{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True)
ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
answer = model.generate(input_ids=ids, attention_mask=ids.new_ones(ids.shape), max_new_tokens=40, do_sample=False)
said = tokenizer.decode(answer[0, ids.shape[1]:], skip_special_tokens=True).strip()
print(json.dumps({"before": before, "after": perplexity(), "said": said}))
"""


def test_a_released_model_learns_a_fact_and_keeps_the_rest(glmexp: RunCommand, tmp_path: Path) -> None:
    data = tmp_path / "fact.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in samples()))
    ran = glmexp(
        "model=auto", f"model.path={FOLDER}", "method=lora", f"method.target_modules=[{','.join(MIDDLE)}]", "method.alpha=16",
        "method.dropout=0", "precision=fp32", f"data.path={data}", "data.max_length=128", "batch.micro=8", "optimizer.lr=2e-3",
        "scheduler=constant", "scheduler.warmup_steps=2", "train.max_steps=36", "hydra.run.dir=run", timeout=3000,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    run = tmp_path / "run"
    assert answers_to([ASKED], run) == [FACT]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_GLMEXP, str(FOLDER), str(run / "export"), HELD_OUT.replace("\n", " "), ASKED],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["said"] == FACT
    print(f"perplexity of a text of its own: {found['before']:.2f} -> {found['after']:.2f}")
    assert found["after"] < 1.1 * found["before"]
