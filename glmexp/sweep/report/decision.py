"""Which trial is recommended, which ones are dominated, and on which cards a trial fits.

Candidates are the complete trials with a figure for the objective. Left out are, with ``sweep.gpu_memory_gib`` set, those that
need more, and those whose training was ruined: more than a tenth of the steps were skipped, or, of a ``train`` task, the last
loss is not finite or more than 1 nat above the first. If all are ruined, the least ruined are compared. Then

- ``throughput`` takes the highest tokens/s. Trials whose speed differs from it by less than the two standard errors together,
  and by 3 % at most, count as equally fast, and of them the one that skipped the fewest steps is taken, then the one with the
  lowest memory peak. Host memory, most of which is what any process takes, has to differ by 5 % to count.
- ``memory`` takes the lowest memory peak, and of equal ones (to 0.01 GiB) the fastest.
- In a sweep of ``train`` over nothing but keys that change neither speed nor memory (``SPEEDLESS``), the lowest last loss is
  taken under either objective: the rest would be noise.

The memory peak is the GPU's allocated peak; the host's in a sweep that has measured no GPU memory, where no limit applies.
"""

import math
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

RUINED_SHARE = 0.1
"""Of a training's steps: more skipped ones than that are no training to go by."""
RUINED_NATS = 1.0
"""A last loss so far above the first has exploded; noise between two batches stays below."""
TIE_SHARE = 0.03
"""Trials whose speeds differ by more are told apart, however large the error of a short measurement is."""
HOST_SHARE = 0.05
SPEEDLESS = ("optimizer.lr", "optimizer.betas", "optimizer.eps", "optimizer.weight_decay", "optimizer.momentum",
             "optimizer.adam_lr", "scheduler", "train.seed", "method.alpha")  # fmt: skip
"""Keys, with those below them, that change what is learnt and neither speed nor memory."""

Axis = Literal["gpu", "host"]
Fit = Literal["yes", "tight", "no"]


@dataclass(frozen=True)
class Choice:
    trial: Trial | None
    axis: Axis
    """Whose memory is compared."""
    candidates: Sequence[Trial]
    compared: Sequence[Trial] = ()
    """Candidates within the limit that are not left out as ruined; the least ruined where all are."""
    ruined: Sequence[Trial] = ()
    """Candidates within the limit whose training was ruined."""
    tied: Sequence[Trial] = ()
    """Those that count as equal to the best by the objective; the recommended one is among them."""
    rival: Trial | None = None
    """The fastest other one that the measurement's error does not tell from the recommended one."""
    by_loss: bool = False
    """The last loss has decided."""


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


def decide(trials: Sequence[Trial], settings: Settings, swept: Sequence[str] = ()) -> Choice:
    """The recommended trial, or None where nothing that was measured fits."""
    axis = axis_of(trials)
    fast = settings.objective is Objective.throughput
    candidates = [trial for trial in trials if trial.complete and (trial.speed if fast else memory_of(trial, axis)) is not None]
    limit = settings.gpu_memory_gib if axis == "gpu" else None
    fitting = [trial for trial in candidates if limit is None or fit(trial, limit) == "yes"]
    if not fitting:
        return Choice(None, axis, candidates)
    ruined = [trial for trial in fitting if is_ruined(trial)]
    compared = [trial for trial in fitting if trial not in ruined]
    if not compared:
        least = min(map(_ruin, ruined))
        compared = [trial for trial in ruined if _ruin(trial) == least]
    losses = all(trial.trained and trial.loss is not None for trial in compared)
    if losses and swept and all(map(speedless, swept)):
        lowest = min(map(_loss, compared))
        tied = [trial for trial in compared if _loss(trial) == lowest]
        return Choice(min(tied, key=_fastest), axis, candidates, compared, ruined, tied, by_loss=True)
    if fast:
        chosen, tied, rival = _of_the_fast(compared, axis)
        return Choice(chosen, axis, candidates, compared, ruined, tied, rival)
    lightest = min(round(_memory(trial, axis), 2) for trial in compared)
    tied = [trial for trial in compared if round(_memory(trial, axis), 2) == lightest]
    return Choice(min(tied, key=_fastest), axis, candidates, compared, ruined, tied)


def _of_the_fast(trials: Sequence[Trial], axis: Axis) -> tuple[Trial, list[Trial], Trial | None]:
    """By throughput: the recommended trial, the equally fast, and the rival that the error does not tell from it."""
    best = min(trials, key=_fastest)
    near = [trial for trial in trials if _speed(best) - _speed(trial) <= best.speed_error + trial.speed_error]
    tied = [trial for trial in near if _speed(best) - _speed(trial) <= TIE_SHARE * _speed(best)]
    fewest = min(map(skipped, tied))
    steady = [trial for trial in tied if skipped(trial) == fewest]
    chosen = min(steady, key=_fastest)
    enough = _memory(chosen, axis) * (1 - HOST_SHARE if axis == "host" else 1)
    smaller = [trial for trial in steady if _memory(trial, axis) < enough]
    chosen = min(smaller or [chosen], key=lambda trial: (_memory(trial, axis), *_fastest(trial)))
    return chosen, tied, min((trial for trial in near if trial is not chosen), key=_fastest, default=None)


def skipped(trial: Trial) -> float:
    """Optimizer steps that trained nothing, since gradients were not finite."""
    return trial.metrics["skipped_steps"] or 0.0


def skipped_share(trial: Trial) -> float:
    """Of all optimizer steps."""
    return skipped(trial) / max(trial.metrics["steps"] or 0.0, skipped(trial), 1.0)


def exploded(trial: Trial) -> bool:
    """Whether the loss of a ``train`` task rose by more than ``RUINED_NATS``; a loss that is no number has no place in JSON."""
    first, last = trial.metrics["loss_first"], trial.loss
    return trial.trained and first is not None and (last is None or last > first + RUINED_NATS)


def is_ruined(trial: Trial) -> bool:
    return exploded(trial) or skipped_share(trial) > RUINED_SHARE


def speedless(key: str) -> bool:
    """Whether a swept key changes what is learnt alone."""
    return any(key == name or key.startswith(f"{name}.") for name in SPEEDLESS)


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


def _ruin(trial: Trial) -> tuple[float, bool]:
    return skipped_share(trial), exploded(trial)


def _loss(trial: Trial) -> float:
    return math.inf if trial.loss is None else trial.loss


def _fastest(trial: Trial) -> tuple[float, str]:
    """The order by speed, and by name among equals."""
    return -_speed(trial), trial.name


def _speed(trial: Trial) -> float:
    return trial.speed if trial.speed is not None else 0.0


def _memory(trial: Trial, axis: Axis) -> float:
    memory = memory_of(trial, axis)
    return math.inf if memory is None else memory
