"""Which trial is recommended, which ones are dominated, and on which cards a trial fits.

Candidates are the complete trials with a figure for the objective. With ``sweep.gpu_memory_gib`` set, those that need more are
left out. Then

- ``throughput`` takes the highest tokens/s. Trials whose speed differs from it by less than the two standard errors together
  count as equally fast, and of them the one that skipped the fewest steps is taken, then the one with the lowest memory peak.
- ``memory`` takes the lowest memory peak, and of equal ones (to 0.01 GiB) the fastest.

The memory peak is the GPU's allocated peak; the host's in a sweep that has measured no GPU memory, where no limit applies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glmexp.config.choices import Objective
from glmexp.sweep.report.trials import Settings, Trial

OUTSIDE_GIB = 1.5
"""What a card must have beyond the allocator's peak: the CUDA context and what NCCL and the driver keep (0.5 to 1 GiB), and
what is missing on a card of that name (an RTX 4090 gives 23.6 of its 24 GiB, an A100 79.2 of 80)."""
CARDS_GIB = {"24 GB": 24.0, "40 GB": 40.0, "80 GB": 80.0, "141 GB": 139.0}
"""Cards by the name they are sold under, with their memory as in ``conf/hardware``."""

Axis = Literal["gpu", "host"]
Fit = Literal["yes", "tight", "no"]


@dataclass(frozen=True)
class Choice:
    trial: Trial | None
    axis: Axis
    """Whose memory is compared."""
    candidates: Sequence[Trial]
    fitting: Sequence[Trial]
    """Candidates within the limit."""
    tied: Sequence[Trial]
    """Those that count as equal to the best by the objective; the recommended one is among them."""


@dataclass(frozen=True)
class Front:
    """The complete trials with both figures, by rising memory."""

    best: Sequence[Trial]
    beaten: Sequence[Trial]


def axis_of(trials: Sequence[Trial]) -> Axis:
    return "gpu" if any(trial.gpu_gib for trial in trials) else "host"


def memory_of(trial: Trial, axis: Axis) -> float | None:
    """Peak in GiB on the axis that is compared."""
    return trial.gpu_gib if axis == "gpu" else trial.host_gib


def fit(trial: Trial, card_gib: float) -> Fit | None:
    """Whether a complete trial would run on a card; None where that cannot be told.

    ``tight``: the tensors fit, what the allocator held besides does not; it would have to give cached blocks back.
    """
    allocated, reserved = trial.gpu_gib, trial.reserved_gib
    if not trial.complete or allocated is None or reserved is None:
        return None
    if reserved + OUTSIDE_GIB <= card_gib:
        return "yes"
    return "tight" if allocated + OUTSIDE_GIB <= card_gib else "no"


def decide(trials: Sequence[Trial], settings: Settings) -> Choice:
    """The recommended trial, or None where nothing that was measured fits."""
    axis = axis_of(trials)
    fast = settings.objective is Objective.throughput
    candidates = [trial for trial in trials if trial.complete and (trial.speed if fast else memory_of(trial, axis)) is not None]
    limit = settings.gpu_memory_gib if axis == "gpu" else None
    fitting = [trial for trial in candidates if limit is None or fit(trial, limit) == "yes"]
    if not fitting:
        return Choice(None, axis, candidates, [], [])
    if fast:
        best = max(fitting, key=_speed)
        tied = [trial for trial in fitting if _speed(best) - _speed(trial) <= best.speed_error + trial.speed_error]
        chosen = min(tied, key=lambda trial: (skipped(trial), _memory(trial, axis), -_speed(trial), trial.name))
    else:
        least = min(round(_memory(trial, axis), 2) for trial in fitting)
        tied = [trial for trial in fitting if round(_memory(trial, axis), 2) == least]
        chosen = min(tied, key=lambda trial: (-_speed(trial), trial.name))
    return Choice(chosen, axis, candidates, fitting, tied)


def skipped(trial: Trial) -> float:
    """Optimizer steps that trained nothing, since fp16 gradients overflowed."""
    return trial.metrics["skipped_steps"] or 0.0


def pareto(trials: Sequence[Trial], axis: Axis) -> Front:
    """The complete trials by whether another one beats them: no slower, no larger, and better in one of the two."""
    points = sorted(
        (trial for trial in trials if trial.complete and trial.speed is not None and memory_of(trial, axis) is not None),
        key=lambda trial: (_memory(trial, axis), -_speed(trial), trial.name),
    )
    best: list[Trial] = []
    beaten: list[Trial] = []
    # By rising memory, and by falling speed among equals: only one that comes earlier can beat a trial.
    for trial in points:
        rival = best[-1] if best else None
        same = rival is not None and (_speed(rival), _memory(rival, axis)) == (_speed(trial), _memory(trial, axis))
        (best if rival is None or _speed(trial) > _speed(rival) or same else beaten).append(trial)
    return Front(best, beaten)


def _speed(trial: Trial) -> float:
    return trial.speed if trial.speed is not None else 0.0


def _memory(trial: Trial, axis: Axis) -> float:
    memory = memory_of(trial, axis)
    return float("inf") if memory is None else memory
