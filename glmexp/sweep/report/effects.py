"""What each knob does, all else equal: ratios between pairs of trials that differ in that knob alone."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glmexp.sweep.report.decision import Axis, memory_of
from glmexp.sweep.report.trials import Trial
from glmexp.trial.record import State

PLAIN = ("none", "null", "false", "")
"""Values that mean without; a knob's effect is told against them."""


@dataclass(frozen=True)
class Ratio:
    """Of a figure with a value of a knob to the same figure with its reference value."""

    middle: float
    """Geometric mean over the pairs."""
    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    key: str
    value: str
    reference: str
    pairs: int
    speed: Ratio | None
    memory: Ratio | None
    lost: Counter[str]
    """State -> trials with this value that did not complete."""
    trials: int

    @property
    def partial(self) -> bool:
        """Some trials with this value have no pair."""
        return self.pairs < self.trials


def effects(trials: Sequence[Trial], swept: Sequence[str], axis: Axis) -> list[Effect]:
    """One entry for each value of each swept key but its reference, the first one that any trial has completed with.

    Invalid trials say nothing of a knob and are left out.
    """
    found = []
    trials = [trial for trial in trials if trial.state is not State.invalid]
    for key in swept:
        values = sorted({trial.values.get(key, "") for trial in trials}, key=_order)
        reference = next((value for value in values if any(_has(trial, key, value) for trial in trials)), None)
        cells: dict[tuple[str | None, ...], dict[str, Trial]] = {}
        for trial in trials:
            if trial.complete:
                rest = tuple(trial.values.get(other) for other in swept if other != key)
                cells.setdefault(rest, {})[trial.values.get(key, "")] = trial
        if reference is not None:
            others = [value for value in values if value != reference]
            found += [_effect(key, value, reference, list(cells.values()), trials, axis) for value in others]
    return found


def _has(trial: Trial, key: str, value: str) -> bool:
    return trial.complete and trial.values.get(key, "") == value


def _effect(
    key: str, value: str, reference: str, cells: Sequence[dict[str, Trial]], trials: Sequence[Trial], axis: Axis
) -> Effect:
    pairs = [(cell[value], cell[reference]) for cell in cells if value in cell and reference in cell]
    here = [trial for trial in trials if trial.values.get(key, "") == value]
    return Effect(
        key,
        value,
        reference,
        len(pairs),
        _ratio([(one.speed, other.speed) for one, other in pairs]),
        _ratio([(memory_of(one, axis), memory_of(other, axis)) for one, other in pairs]),
        Counter(trial.state.value for trial in here if not trial.complete),
        len(here),
    )


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> Ratio | None:
    ratios = [one / other for one, other in pairs if one and other]
    if not ratios:
        return None
    low, high = min(ratios), max(ratios)
    middle = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return Ratio(min(max(middle, low), high), low, high)  # rounding can carry the mean of equal ratios past them


def _order(value: str) -> tuple[bool, list[tuple[int, float, str]]]:
    """What means without first, then numbers by size and words by the alphabet."""
    try:
        return value not in PLAIN, [(0, float(value), "")]
    except ValueError:
        parts = re.findall(r"\d+|\D+", value)
        return value not in PLAIN, [(0, float(part), "") if part.isdecimal() else (1, 0.0, part) for part in parts]
