"""``evaluations.jsonl`` on the parent's side: shown, handed to trackers in step with ``metrics.jsonl``, its last row kept."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmexp.trial.record import EVALUATIONS
from glmexp.trial.result import MetricsTail

FIGURES = ("loss", "perplexity", "rouge-1", "rouge-2", "rouge-l", "bleu-4")
"""What an evaluation comes to; a score that was not asked for is null."""


class EvaluationsTail(MetricsTail):
    """Reads ``evaluations.jsonl`` as it grows."""

    def __init__(self, folder: Path, going_on: bool = False) -> None:
        super().__init__(folder, going_on, EVALUATIONS)
        self._early: list[dict[str, Any]] = []

    def up_to(self, step: float) -> list[dict[str, Any]]:
        """The new rows of steps up to ``step``, the last one read of ``metrics.jsonl``; later ones wait for the next call.

        Rank 0 writes an evaluation after its step's own row and before the next one's. Read after ``metrics.jsonl`` and held
        back so, an evaluation comes neither before its step nor after a later one, which dashboards would not take.
        """
        rows = [*self._early, *self.fresh()]
        self._early = [row for row in rows if row["step"] > step]
        return [row for row in rows if row["step"] <= step]


def in_step(rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Rows of ``metrics.jsonl`` and, as ``eval/<name>``, those of evaluations, by step: what a tracker takes."""
    named = [{"step": row["step"], **{f"eval/{name}": row.get(name) for name in FIGURES}} for row in evaluations]
    yield from sorted([*rows, *named], key=lambda row: row.get("step") or 0)  # stable: a step's own row comes first


def described(row: Mapping[str, Any]) -> str:
    """``step 20: validation loss 2.1934, perplexity 8.966, rouge-l 41.2``."""
    return f"step {row['step']}: validation {shown(row)}"


def shown(row: Mapping[str, Any], prefix: str = "") -> str:
    """``loss 2.1934, perplexity 8.966, rouge-l 41.2``, what is known of it; ``prefix`` stands before the names in ``row``."""
    known = [(name, row.get(f"{prefix}{name}")) for name in FIGURES]
    numbers = [(name, value) for name, value in known if isinstance(value, int | float)]
    return ", ".join(f"{name} {value:.4f}" if name == "loss" else f"{name} {value:.4g}" for name, value in numbers)


def metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last evaluation's part of ``result.json``: ``eval_loss``, ``eval_perplexity``, ``eval_rouge-l`` …"""
    return {f"eval_{name}": rows[-1].get(name) for name in FIGURES} if rows else {}
