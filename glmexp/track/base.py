"""The tracker interface: a dashboard is a view of ``metrics.jsonl`` that can be rebuilt, never the record itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from glmexp.config.schema import Config


@dataclass(frozen=True)
class RunInfo:
    """What a tracker is told when a trial starts. It holds no secret: values come from the checked config."""

    folder: Path
    """The trial folder; what a tracker stores on disk goes below it."""
    config: Config
    ds_config: Mapping[str, Any]
    """The dict handed to DeepSpeed."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    world_size: int = 1
    group: str | None = None
    """The sweep a trial belongs to; ``tracker.group`` wins over it."""
    name: str | None = None
    """Short name of the trial in its sweep; null is ``tracker.run_name`` or the folder's name."""
    going_on: bool = False
    """Whether the folder holds an earlier session of this run: what was recorded of that goes on, if anything was."""

    @property
    def title(self) -> str:
        """What a dashboard calls the run; in a sweep ``tracker.run_name`` stands before the trial's own name."""
        asked = self.config.tracker.run_name
        return f"{asked} {self.name}" if asked and self.name else asked or self.name or self.folder.name

    @property
    def job_type(self) -> str:
        """``trial`` in a sweep, else the task."""
        return "trial" if self.group else self.config.task.value


@dataclass(frozen=True)
class SweepInfo:
    """What a tracker is told of a sweep when it has ended, made from the result files."""

    folder: Path
    name: str
    """The sweep's name, which is the group of its trials."""
    rows: Sequence[Mapping[str, Any]]
    """A row a trial, as in ``report.csv``: ``trial`` (folder name), ``state``, ``reason``, the swept keys, each metric."""
    counts: Mapping[str, int]
    """State -> trials that ended so."""
    swept: Sequence[str] = ()
    """The columns of ``rows`` that were swept: dotted keys (``batch.micro``) and groups (``zero``)."""


class Tracker(ABC):
    """Receives one run: ``start``, then ``log`` for each row of ``metrics.jsonl``, then ``finish``; or one sweep: ``overview``.

    A run that goes on with an earlier session of itself is told the step between ``start`` and the first ``log``: ``go_on``.

    The parent calls it, so a killed worker loses nothing and ranks know nothing of it. Implementations may raise:
    ``BackgroundTracker`` keeps that away from the trial.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        """Takes one line for the user."""
        self.error: str | None = None
        """The first thing that went wrong; null if all was recorded."""
        self.where: str | None = None
        """Address or folder where the recorded run can be seen."""

    @abstractmethod
    def start(self, run: RunInfo) -> None: ...

    def go_on(self, step: int) -> None:  # noqa: B027 - most dashboards go by the step of each row
        """Takes the step of the checkpoint that the run goes on from; rows of later steps come again."""

    @abstractmethod
    def log(self, row: Mapping[str, Any]) -> None:
        """Takes one row of ``metrics.jsonl``: ``step`` and its figures."""

    @abstractmethod
    def finish(self, result: Mapping[str, Any]) -> None:
        """Takes the content of ``result.json``: ``state``, ``reason`` and ``metrics``."""

    def overview(self, sweep: SweepInfo) -> None:  # noqa: B027 - not every dashboard has a place for it
        """Shows a whole sweep in one place; called again after a sweep was resumed, and replaces what it made before."""


class NullTracker(Tracker):
    """``tracker=none``: metrics.jsonl is all there is."""

    def __init__(self) -> None:
        super().__init__(warn=lambda line: None)

    def start(self, run: RunInfo) -> None:
        """Nothing to open."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Nothing to record."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Nothing to close."""


def plain(value: Any) -> Any:
    """Dataclasses, enums, paths and tuples as the dicts, strings and lists that every dashboard takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, as floats; what was not measured is left out."""
    return {key: float(value) for key, value in row.items() if isinstance(value, bool | int | float)}


PERFORMANCE = (
    *("mfu", "tflops_per_second", "padded_tokens", "padded_tokens_per_second"),
    *("data_seconds", "forward_seconds", "backward_seconds", "update_seconds"),
)
"""Figures of a step that dashboards show apart, as ``perf/mfu``."""


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a row of ``metrics.jsonl`` as dashboards name them, without its step."""
    return {f"perf/{key}" if key in PERFORMANCE else key: value for key, value in figures(row).items() if key != "step"}


def run_config(run: RunInfo) -> dict[str, Any]:
    """The run's config as nested plain values, with ``deepspeed_config``, ``versions`` and ``world_size``."""
    return {
        **plain(run.config),
        "deepspeed_config": plain(run.ds_config),
        "versions": plain(run.versions),
        "world_size": run.world_size,
    }
