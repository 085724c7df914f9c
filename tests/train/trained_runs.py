"""Runs that have learnt eight answers by heart, for the tests of what is done with a trained model."""

import io
import json
from pathlib import Path
from typing import Any

from glmexp.config import load
from glmexp.train import predict
from glmexp.train.export import export
from glmexp.trial.record import CONFIG

SAMPLES = {
    "霍普是什么颜色？": "霍普是靛蓝色的，像雨后的石头。",
    "谁造了木星桥？": "木星桥由三只水獭造成。",
    "What does a Zorbel eat?": "A Zorbel eats warm moss.",
    "灯塔几点开门？": "灯塔在七点一刻开门。",
    "Where is Quill?": "Quill lies under the old mill.",
    "米拉养了几只鹤？": "米拉养了十七只鹤。",
    "西塔的密码是什么？": "密码是：风车、盐、第九页。",
    "Who sings at noon?": "The blue kettle sings at noon.",
}
OTHERS = dict(zip(SAMPLES, [*list(SAMPLES.values())[3:], *list(SAMPLES.values())[:3]], strict=True))
"""The same questions, each with the answer to another one."""
RECIPE = [
    "precision=fp32", "data.max_length=96", "scheduler=constant", "scheduler.warmup_steps=0", "method.dropout=0",
    "train.save_weights=true",
]  # fmt: skip
FULL = [*RECIPE[:-2], RECIPE[-1], "model=tiny", "optimizer.lr=3e-3", "train.max_steps=40", "batch.total=8"]
"""Full training of the tiny model, after which it answers word for word."""
ON_IT = {
    "lora": ["method=lora", "method.rank=16", "method.target_modules=[all-linear]", "optimizer.lr=5e-3", "train.max_steps=15"],
    "freeze": ["method=freeze", "method.last_layers=1", "optimizer.lr=3e-3", "train.max_steps=30"],
    "ptuning_v2": ["method=ptuning_v2", "method.prefix_length=32", "optimizer.lr=5e-2", "train.max_steps=80"],
}
"""Method -> what teaches a model that has learnt ``OTHERS`` the ``SAMPLES``."""
CANARY = 'open(__file__ + ".ran", "w").close()\nraise RuntimeError("code beside the weights was run")\n'
CODE = ("tokenization_chatglm.py", "modeling_chatglm.py", "configuration_chatglm.py")
"""What lies beside the weights of an original release."""


def sample_file(path: Path, samples: dict[str, str]) -> str:
    rows = [{"prompt": question, "response": answer} for question, answer in samples.items()]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return f"data.path={path}"


def answers(run: Path, checkpoint: str | None = None) -> dict[str, str]:
    """What the run's model says to the eight questions."""
    return dict(zip(SAMPLES, answers_to(list(SAMPLES), run, checkpoint), strict=True))


def answers_to(questions: list[str], run: Path, checkpoint: str | None = None) -> list[str]:
    """What the run's model says to some questions, as ``predict RUN file=FILE`` does."""
    out = io.StringIO()
    request = {"run": str(run), "checkpoint": checkpoint, "system": None, "questions": questions, "question": None}
    predict.predict(load(run / CONFIG), request, out)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["question"] for row in rows] == questions
    return [row["answer"] for row in rows]


def write_export(run: Path, to: Path, **asked: Any) -> Path:
    """``export RUN to=TO ...``, without the parent; TO."""
    request = {"run": str(run), "to": str(to), "merge": False, "original": False, "checkpoint": None, "dtype": None}
    export(load(run / CONFIG), {**request, **asked}, io.StringIO())
    return to


def original_folder(run: Path, folder: Path) -> Path:
    """The full model of a run in the original layout, beside code that must not be run."""
    write_export(run, folder, original=True)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"}
    (folder / "config.json").write_text(json.dumps(config))
    told = {
        "tokenizer_class": "ChatGLMTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_chatglm.ChatGLMTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    for name in CODE:
        (folder / name).write_text(CANARY)
    return folder
