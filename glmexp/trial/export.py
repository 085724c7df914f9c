"""``python -m glmexp export RUN``: a run's trained weights as a folder that other programs load."""

from collections.abc import Sequence
from pathlib import Path

from glmexp.config.choices import Dtype
from glmexp.config.errors import USER_ERROR, UserError
from glmexp.trial.use import ask, parse, run_config

HELP = """usage: python -m glmexp export RUN [KEY=VALUE ...]

Writes the trained weights of a run, finished or killed, with tokenizer and model card: a whole model in the standard layout
(full, freeze), a PEFT adapter (lora, qlora), or a prefix under its official names (ptuning_v2). Into RUN/export; what differs
from that form has a folder of its own beside it, such as RUN/export_merged.

  merge=true         an adapter merged into its base model: a whole model, which needs no PEFT
  layout=original    the names, config.json and tokenizer of the original ChatGLM2, ChatGLM3 or GLM-4 release
  checkpoint=NAME    export, best, newest, or one such as step-000100; without it export/, else the best, else the newest
  dtype=bf16         or fp16, fp32; without it the run's precision
  to=DIR             another folder; it must be new, empty or an earlier export"""

OPTIONS = ("merge", "layout", "checkpoint", "dtype", "to")
WORKER = "glmexp.train.export"
LAYOUTS = ("standard", "original")


def main(arguments: Sequence[str]) -> int:
    """Exports and returns the exit code; raises UserError."""
    if not arguments or arguments[0] in ("--help", "-h"):
        print(HELP)
        return 0 if arguments else USER_ERROR
    words, given = parse("export", arguments, OPTIONS)
    if len(words) != 1:
        raise UserError(f"export takes one run, got {', '.join(words) or 'none'}\npython -m glmexp export RUN")
    run = Path(words[0])
    config = run_config("export", run)
    merge = _one_of("merge", given.get("merge", "false"), ("true", "false")) == "true"
    original = _one_of("layout", given.get("layout", LAYOUTS[0]), LAYOUTS) == "original"
    dtype = _one_of("dtype", given["dtype"], [dtype.value for dtype in Dtype]) if "dtype" in given else None
    parts = ["merged" * merge, "original" * original, given.get("checkpoint", ""), dtype or ""]
    name = "_".join(["export", *(part for part in parts if part and part != "export")])
    target = Path(given["to"]).expanduser() if given.get("to") else run / name
    request = {
        "run": str(run.absolute()),
        "to": str(target.absolute()),
        "merge": merge,
        "original": original,
        "checkpoint": given.get("checkpoint"),
        "dtype": dtype,
    }
    return ask(WORKER, config, request)


def _one_of(key: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UserError(f"{key}={value}: must be {' or '.join(known)}")
    return value
