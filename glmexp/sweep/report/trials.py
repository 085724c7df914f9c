"""What a sweep folder holds: its settings and the trials that have ended, as the report reads them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glmexp.config.choices import Language, Objective, Task
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.overrides import is_of_the_sweep, swept_keys, values_of
from glmexp.trial.record import CONFIG, RESULT, State
from glmexp.trial.result import METRIC_NAMES, Result, read_result

PLAN = "plan.json"
LIMITS = ("launch.timeout_minutes", "launch.hang_minutes", "launch.collective_timeout_minutes")


@dataclass(frozen=True)
class Settings:
    """What ``sweep.json`` says of the report."""

    objective: Objective = Objective.throughput
    gpu_memory_gib: float | None = None
    """Memory of the card that the recommendation must fit; None is the card at hand."""
    lang: Language = Language.en


@dataclass(frozen=True)
class Trial:
    """One ended trial."""

    name: str
    result: Result
    values: Mapping[str, str]
    """Key -> value of each override, as written."""
    predicted_gib: float | None
    """Predicted GPU peak."""

    @property
    def state(self) -> State:
        return self.result.state

    @property
    def complete(self) -> bool:
        return self.state is State.complete

    @property
    def trained(self) -> bool:
        """Whether it was a whole training: its task is ``train``."""
        return self.values.get("task") == Task.train.value

    @cached_property
    def metrics(self) -> dict[str, float | None]:
        """Every metric by name; None where it was not measured."""
        told = self.result.metrics if isinstance(self.result.metrics, dict) else {}
        return {name: number(told.get(name)) for name in METRIC_NAMES}

    @property
    def speed(self) -> float | None:
        """Tokens/s over all ranks."""
        return self.metrics["tokens_per_second"]

    @property
    def loss(self) -> float | None:
        """Of the last step, in nats a token; None too where it was not finite."""
        return self.metrics["loss_last"]

    @property
    def gpu_gib(self) -> float | None:
        """Peak of what the tensors of one GPU took."""
        return self.metrics["peak_allocated_gib"]

    @property
    def reserved_gib(self) -> float | None:
        """Peak of what the allocator of one GPU held, cached blocks included; the allocated peak where it is not known."""
        return self.metrics["peak_reserved_gib"] if self.metrics["peak_reserved_gib"] is not None else self.gpu_gib

    @property
    def host_gib(self) -> float | None:
        return self.metrics["host_peak_gib"]

    @property
    def speed_error(self) -> float:
        """Standard error of the median speed in tokens/s, by spread / (2 sqrt(steps)); 0 where no spread was measured.

        For 5 to 20 normally distributed steps that is 0.9 to 1.5 times the true figure.
        """
        seconds, spread, steps = (self.metrics[name] for name in ("step_seconds", "step_seconds_spread", "steps"))
        if not (self.speed and seconds and spread and steps and steps > 0):
            return 0.0
        return self.speed * spread / seconds / (2 * math.sqrt(steps))

    @property
    def seconds(self) -> float | None:
        """Wall time from start to end."""
        return number(_mapping(self.result.times).get("seconds"))

    @property
    def device(self) -> str:
        described = _mapping(self.result.device)
        return str(described.get("name") or described.get("kind") or "")


@dataclass(frozen=True)
class Trials:
    ended: Sequence[Trial]
    """In the order in which they were started."""
    swept: Sequence[str]
    """Keys of overrides whose values differ between the trials."""
    unreadable: Sequence[str]
    """Trial folders whose result cannot be read."""
    running: int
    """Trial folders without a result: running, or cut off."""


def read_trials(folder: Path) -> Trials:
    """Reads every ``result.json`` one level below ``folder``; one that is damaged is told of and left out."""
    found, unreadable, running = [], [], 0
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        result = read_result(place)
        if result is not None:
            found.append(Trial(place.name, result, values_of(result.overrides), _predicted(place, result)))
        elif (place / RESULT).exists():
            unreadable.append(place.name)
        elif (place / CONFIG).exists():
            running += 1
    found.sort(key=lambda trial: (str(_mapping(trial.result.times).get("started") or ""), trial.name))
    # ``sweep.resume`` and its like are of no trial, and a limit of time is not what a trial is about.
    swept = [key for key in swept_keys([trial.values for trial in found]) if not is_of_the_sweep(key) and key not in LIMITS]
    return Trials(found, swept, unreadable, running)


def read_settings(folder: Path) -> Settings:
    """The settings in ``sweep.json``; the shipped ones for what it does not say."""
    told = SweepFolder(folder).settings()
    try:
        return Settings(
            Objective(told.get("objective") or Objective.throughput),
            number(told.get("gpu_memory_gib")),
            Language(told.get("lang") or Language.en),
        )
    except ValueError:
        return Settings()


def how_measured(values: Mapping[str, str]) -> dict[str, str]:
    """The overrides that say how a trial was measured, not what it is."""
    return {key: value for key, value in values.items() if key.startswith("measure.")}


def number(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _predicted(folder: Path, result: Result) -> float | None:
    """The GPU peak that was predicted, from ``plan.json`` or the result."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        plan = result.predicted
    return number(_mapping(_mapping(plan).get("gpu")).get("peak_gib"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
