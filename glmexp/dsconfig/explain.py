"""Every key of the emitted DeepSpeed dict: value, who set it, whether it does anything in this run, what it does and costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from glmexp.config.compose import Composed
from glmexp.config.files import leaves
from glmexp.config.schema import Config
from glmexp.dsconfig.build import build
from glmexp.dsconfig.effect import Text, bucket_bytes, idle, unlike_its_name
from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation, View
from glmexp.dsconfig.lint import lint
from glmexp.dsconfig.machine import Machine
from glmexp.dsconfig.passthrough import place
from glmexp.dsconfig.table import DESCRIBES

KNOWLEDGE = Path(__file__).with_name("knowledge.yaml")
NO_TEXT: Text = {"en": "There is no text for this key yet.", "zh": "这个键还没有说明。"}
UNKNOWN: Text = {
    "en": "glmexp does not know this key; lint.allow lets it through.",
    "zh": "glmexp 不认识这个键，由 lint.allow 放行。",
}
NEVER = f"DeepSpeed {DESCRIBES} 不使用它"
GATHERED = {
    "zero_optimization.allgather_partitions": "更新后的参数总是一次收集完",
    "zero_optimization.allgather_bucket_size": "更新后的参数整体收集，不分桶",
}
"""What the linter says in English of the keys of published recipes that DeepSpeed does not use."""
DEFAULT: Text = {"en": "glmexp's default", "zh": "glmexp 的默认值"}
FORMULA = {
    " x ": " × ",
    " or ": " 或 ",
    ", ": "，",
    "ranks": "rank 数",
    "1 (batch.accumulation=null)": "1（batch.accumulation=null）",
}
"""The words of ``derivation`` in Chinese."""


@dataclass(frozen=True)
class Row:
    """One key, with its texts in ``config.lang``."""

    key: str
    """Dotted, as ``zero_optimization.overlap_comm``."""
    value: Any
    origin: str
    """Who set it: ``zero=stage2``, ``experiment=NAME``, ``command line: ...``, ``derived: FORMULA`` or ``glmexp's default``."""
    place: str
    """The field of the config behind it; ``deepspeed.KEY`` for a raw key."""
    in_effect: bool
    why: str
    """Why it is not in effect; empty if it is."""
    text: str
    """What it does and what it costs."""
    how: str = ""
    """How it takes effect here, where that is not what its name and value lead one to expect; empty otherwise."""
    bytes: int | None = None
    """Memory that the value takes on each rank, where the value alone tells."""


def explain(composed: Composed, machine: Machine) -> list[Row]:
    """A row for each key of the DeepSpeed dict, in its order; raises UserError where ``build`` does."""
    config, language = composed.config, composed.config.lang.value
    ds_config = build(config, machine)
    idle_keys, unlike = idle(ds_config, machine), unlike_its_name(ds_config, machine)
    situation = Situation(world_size=machine.world_size, device=machine.device, splits_sequences=True)
    findings = lint(ds_config, situation)
    rows = []
    for key, value in leaves(ds_config):
        why = _why(key, findings, idle_keys)
        origin, field = _origin(key, composed, language)
        rows.append(
            Row(
                key=key,
                value=value,
                origin=origin,
                place=field,
                in_effect=why is None,
                why=why[language] if why else "",
                text=_text(key, findings)[language],
                how=unlike[key][language] if why is None and key in unlike else "",
                bytes=bucket_bytes(ds_config) if key == "zero_optimization.reduce_bucket_size" else None,
            )
        )
    return rows


@lru_cache(maxsize=1)
def knowledge() -> dict[str, Text]:
    """DeepSpeed key or section -> its text in each language."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it
    loaded: dict[str, Text] = yaml.load(KNOWLEDGE.read_text(encoding="utf-8"), Loader=loader)
    return loaded


def text_of(key: str) -> Text:
    """The text of a key, or of the nearest section around it."""
    while key:
        if key in knowledge():
            return knowledge()[key]
        key = key.rpartition(".")[0]
    return NO_TEXT


def _text(key: str, findings: list[Finding]) -> Text:
    return UNKNOWN if any(finding.kind is Kind.unknown and _is_about(finding, key) for finding in findings) else text_of(key)


def _why(key: str, findings: list[Finding], idle_keys: Mapping[str, Text]) -> Text | None:
    """Why a key is not in effect, None if it is."""
    if key in idle_keys:
        return idle_keys[key]
    for finding in findings:
        if finding.kind is Kind.no_effect and _is_about(finding, key):
            return {"en": finding.message, "zh": _unused(key) if finding.severity is Severity.info else finding.message}
    return None


def _unused(key: str) -> str:
    return f"{NEVER}：{GATHERED[key]}" if key in GATHERED else NEVER


def _is_about(finding: Finding, key: str) -> bool:
    return key == finding.key or key.startswith(f"{finding.key}.")


def _origin(key: str, composed: Composed, language: str) -> tuple[str, str]:
    """(who set a key, the field of the config behind it)."""
    config, sources = composed.config, composed.sources
    field = place(key)
    if View(config.deepspeed).has(key) and field not in sources:
        field = f"deepspeed.{key}"
    if rule := derivation(key, config, sources):
        formula, behind = rule
        return _derived(formula, _who(sources[behind], language) if behind else "", language), field
    return _who(sources[field], language), field


def _who(source: str, language: str) -> str:
    if source == "config.yaml":
        return DEFAULT[language]
    return source.replace("command line: ", "命令行：", 1) if language == "zh" else source


def _derived(formula: str, who: str, language: str) -> str:
    if language == "en":
        return f"derived: {formula}" + (f" ({who})" if who else "")
    for english, chinese in FORMULA.items():
        formula = formula.replace(english, chinese)
    return f"推导：{formula}" + (f"（{who}）" if who else "")


def derivation(key: str, config: Config, sources: Mapping[str, str]) -> tuple[str, str | None] | None:
    """(the formula, the one field that it rests on) of a key that no field holds as it is; None for the others."""
    batch = config.batch
    ranks = "ranks" if (config.comm.sequence_parallel_size or 1) == 1 else "(ranks / comm.sequence_parallel_size)"
    if key == "train_batch_size" and batch.total is None:
        return f"batch.micro x batch.accumulation x {ranks}", None
    if key == "train_micro_batch_size_per_gpu" and batch.micro is None:
        return f"batch.total / (batch.accumulation x {ranks})", None
    if key == "gradient_accumulation_steps" and batch.accumulation is None:
        return (
            f"batch.total / (batch.micro x {ranks})" if batch.total and batch.micro else "1 (batch.accumulation=null)"
        ), None
    if key == "data_types.grad_accum_dtype" and config.precision.grad_accum_dtype is None:
        return "precision.dtype", "precision.dtype"
    if place(key) == "comm.communication_data_type" and config.comm.communication_data_type is None:
        return "precision.dtype", "precision.dtype"
    if key == "optimizer.params.lr" and config.optimizer.lr == config.model.recommended_lr:
        option = sources["optimizer.lr"].removeprefix("command line: ")
        return ("model.recommended_lr", "model.recommended_lr") if option.startswith("optimizer=") else None
    if key == "optimizer.params.adam_lr" and config.optimizer.adam_lr is None:
        return "optimizer.lr", "optimizer.lr"
    if key == "optimizer.params.torch_adam":
        return "offload.device=none", "offload.device"
    if key == "optimizer.params.fused":
        return "device=gpu, offload.device=none", "offload.device"
    if key == "bf16.check_grad_overflow":
        return "zero.stage=1 or 2", "zero.stage"
    return None
