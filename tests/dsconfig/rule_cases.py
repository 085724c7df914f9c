"""A rule by example: a wrong config with its finding, and the nearest right one, of which nothing is said."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from glmexp.dsconfig.findings import Situation
from glmexp.dsconfig.lint import lint

BASE = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}}
FP16 = {"bf16": None, "fp16": {"enabled": True}}
ABSENT = object()
"""Takes a key out."""


ANYWHERE = Situation()


class Case(NamedTuple):
    key: str
    kind: str
    severity: str
    wrong: Mapping[str, Any]
    right: Mapping[str, Any]
    """Both: changes to BASE, with dotted keys."""
    situation: Situation = ANYWHERE


def name(case: Case) -> str:
    shown = (f"{key}={'absent' if value is ABSENT else value}" for key, value in case.wrong.items())
    return f"{case.key.rpartition('.')[2]}: {' '.join(shown)}"[:110]


def config(changes: Mapping[str, Any]) -> dict[str, Any]:
    """BASE with the changes; sections are copied on the way."""
    made: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    for dotted, value in changes.items():
        target = made
        *sections, last = dotted.split(".")
        for section in sections:
            target[section] = dict(target.get(section) or {})
            target = target[section]
        if value is ABSENT:
            target.pop(last, None)
        else:
            target[last] = value
    return {key: value for key, value in made.items() if value is not None}


def found(changes: Mapping[str, Any], situation: Situation = ANYWHERE) -> set[tuple[str, str, str]]:
    return {(each.key, each.kind.value, each.severity.value) for each in lint(config(changes), situation)}


def holds(case: Case) -> None:
    assert (case.key, case.kind, case.severity) in found(case.wrong, case.situation)
    assert not found(case.right, case.situation), "the nearest right config is not accused"
