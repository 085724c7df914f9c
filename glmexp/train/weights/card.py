"""The model card: what was trained, on what, how well it does, and how it is loaded. The README.md of an export."""

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from glmexp import __version__
from glmexp.config.choices import Init, Source
from glmexp.config.measure import initialisation
from glmexp.config.schema import Config
from glmexp.data.store import COUNTS, TOKENS, Counts
from glmexp.models.source import local_folder
from glmexp.train.weights.usage import base_words, usage
from glmexp.trial.record import DS_CONFIG, EVALUATIONS, METRICS, RESULT

TAG = "glmexp"
"""Tag in the card's front matter by which an export is known as one."""
FOLDERS = re.compile(r"(?<![\w.:/-])[~/][^,\[\]\n'\"]*/")
"""The folders of an absolute path: they say whose machine it was."""
PACKAGES = ("glmexp", "deepspeed", "torch", "transformers", "peft")


def card(config: Config, run: Path, layout: str, template: str | None, step: int | None) -> str:
    """The card as Markdown with the front matter of the Hugging Face hub; no secret and no folder of this machine is in it.

    Args:
        config: of the run.
        run: its folder, of which metrics, evaluations, token counts and result are read, as far as they are there.
        layout: what the export is: ``model``, ``adapter``, ``prefix``, ``original`` or ``original_prefix``.
        template: the tokenizer's prompt format; None without a tokenizer.
        step: optimizer steps behind the weights; None is the run's last.
    """
    base = base_words(config)
    rows = _rows(run / METRICS, step)
    sections = [
        front_matter(config, layout),
        f"# {base}, fine-tuned\n\n{_summary(config, layout, base)}",
        "## Use\n\n" + usage(config, layout, template),
        "## Recipe\n\n" + _table(_recipe(config, run, rows)) + _command(run),
        "## Data\n\n" + _data(config, run),
        "## Scores\n\n" + _scores(run, rows, step),
        "## Versions\n\n" + ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name))),
    ]
    return "\n\n".join(sections) + "\n"


def is_export(folder: Path) -> bool:
    """Whether ``folder`` is an export of glmexp's, as the front matter of its card says."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return text.startswith("---\n") and f"- {TAG}\n" in text.split("\n---\n", 1)[0]


def front_matter(config: Config, layout: str) -> str:
    lines = ["---"]
    if local_folder(config.model.path) is None:
        lines += [
            f"base_model: {config.model.path}",
            f"base_model_relation: {'adapter' if layout == 'adapter' else 'finetune'}",
        ]
    if layout in ("model", "adapter"):
        lines.append(f"library_name: {'transformers' if layout == 'model' else 'peft'}")
    return "\n".join([*lines, "pipeline_tag: text-generation", "tags:", f"- {TAG}", f"- {config.method.name.value}", "---"])


def _summary(config: Config, layout: str, base: str) -> str:
    kinds = {
        "model": "A whole model in the standard layout",
        "adapter": "A PEFT adapter, which goes onto its base model",
        "prefix": "A P-tuning v2 prefix, which goes onto its base model",
        "original": "Weights under the names of the original ChatGLM code",
        "original_prefix": "A P-tuning v2 prefix as ChatGLM2's P-tuning script saves it, which goes onto its base model",
    }
    drawn = " The base model's weights are random, drawn with train.seed." if initialisation(config) is Init.random else ""
    return f"{kinds[layout]}: {base} trained with method={config.method.name.value} by glmexp.{drawn}"


def _recipe(config: Config, run: Path, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    method, optimizer, scheduler = config.method, config.optimizer, config.scheduler
    settings = ((field.name, getattr(method, field.name)) for field in fields(method) if field.name != "name")
    chosen = ", ".join(f"{name} {getattr(value, 'value', value)}" for name, value in settings if value not in (None, False))
    yield "method", method.name.value + (f": {chosen}" if chosen else "")
    yield "steps", f"{rows[-1]['step']} optimizer steps" if rows else "not recorded"
    yield "batch", _batch(_json(run / DS_CONFIG))
    yield "optimizer", f"{optimizer.type.value}, lr {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}"
    yield "schedule", f"{scheduler.name.value}, {scheduler.warmup_steps} warm-up steps"
    yield "precision", config.precision.dtype.value
    yield "gradient clipping", f"{config.train.grad_clip:g}" if config.train.grad_clip else "none"
    yield "seed", str(config.train.seed)
    yield (
        "DeepSpeed",
        f"ZeRO stage {config.zero.stage}, optimizer on {config.offload.device.value.replace('none', 'the device')}",
    )


def _batch(ds_config: Mapping[str, Any]) -> str:
    micro, accumulation, total = (
        ds_config.get(key) for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    )
    if not micro or not accumulation or not total:
        return "not recorded"
    ranks = round(total / (micro * accumulation))
    return f"micro {micro} x accumulation {accumulation} x ranks {ranks} = {total} samples an optimizer step"


def _command(run: Path) -> str:
    """The command line, where the run has its result."""
    overrides = _json(run / RESULT).get("overrides")
    if not isinstance(overrides, list):
        return ""
    kept = [FOLDERS.sub("", str(text)) for text in overrides if not str(text).startswith(("hydra.", "tracker"))]
    quoted = [f"'{text}'" if re.search(r"[\s\[\]*?{}$&|;<>()~]", text) else text for text in kept]
    return f"\n\n```sh\n{' '.join(['python -m glmexp', *quoted])}\n```"


def _data(config: Config, run: Path) -> str:
    data = config.data
    if data.source is Source.synthetic:
        return "Random tokens."
    paths = data.path if isinstance(data.path, list) else [data.path]
    names = ", ".join(
        "the instruction set that ships with glmexp" if path is None else _without_folders(str(path)) for path in paths
    )
    content = _json(run / TOKENS / COUNTS)
    known = {field.name for field in fields(Counts)}
    counts = Counts(**{name: value for name, value in content.items() if name in known}).describe() if content else None
    return f"{names}{f': {counts}' if counts else ''}. At most {data.max_length} tokens a sample."


def _without_folders(path: str) -> str:
    """The name of a local file or pattern; a hub id as it is."""
    return path.rpartition("/")[2] if path.startswith(("/", "~")) else path


def _scores(run: Path, rows: list[dict[str, Any]], step: int | None) -> str:
    lines = []
    if rows:
        lines.append(
            f"Training loss {rows[0]['loss']:.4g} at step {rows[0]['step']}, {rows[-1]['loss']:.4g} at step {rows[-1]['step']}."
        )
    evaluations = _rows(run / EVALUATIONS, step)
    if evaluations and step in (None, evaluations[-1]["step"]):
        last = evaluations[-1]
        figures = [(name, f"{value:.4g}") for name, value in last.items() if isinstance(value, int | float)]
        lines.append(f"On the validation samples after step {last['step']}:\n")
        lines.append(_table((name, value) for name, value in figures if name not in ("step", "seconds")))
    return "\n".join(lines) or "None were recorded."


def _table(rows: Any) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def _rows(path: Path, step: int | None) -> list[dict[str, Any]]:
    """Lines of a JSONL file with a ``step``, up to ``step``; none if it cannot be read."""
    found = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if isinstance(row.get("loss"), int | float) and (step is None or row["step"] <= step):
                found.append(row)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return found
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return __version__ if package == "glmexp" else None  # a checkout that is not installed
