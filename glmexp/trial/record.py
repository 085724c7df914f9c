"""What crosses between the parent and its ranks: the files of a trial folder.

The parent writes ``config.yaml`` and ``ds_config.json`` and starts the ranks; each rank tells its progress, outcome and error
in ``rank<N>.json``; rank 0 appends to ``metrics.jsonl``. Both sides import this module, so it imports neither torch nor Hydra.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

CONFIG = "config.yaml"
DS_CONFIG = "ds_config.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
EVALUATED = "evaluations"
"""Folder of a run in which each call of ``evaluate`` has a folder of its own."""
PREDICTIONS = "predictions.jsonl"
"""What the model answered in the last evaluation that let it, with references and scores."""
LOG = "train.log"
RESULT = "result.json"
REQUEST = "request.json"
"""What a verb that uses a trained model asks of its child."""
RUN = "run.json"
"""What a run is, written before its ranks start: see ``glmexp.trial.resume``."""

LOG_TAIL_BYTES = 200_000
"""As much of the end of ``train.log`` is read for the cause of a failure."""
BUILDING_OP = "building DeepSpeed's "
"""How a rank's note begins before it compiles an op, which takes a minute: of all notes a sweep shows these."""

PARENT_PID = "GLMEXP_PARENT_PID"
"""Environment variable with the pid of the process that ends the ranks; a rank whose parent is gone ends itself."""


class State(str, Enum):
    """How a trial ended."""

    complete = "complete"
    invalid = "invalid"
    skipped = "skipped"
    oom = "oom"
    oom_host = "oom_host"
    diverged = "diverged"
    timeout = "timeout"
    interrupted = "interrupted"
    killed = "killed"
    failed = "failed"


STEP_FIGURES = (
    *("tokens_per_second", "padded_tokens_per_second", "mfu", "tflops_per_second"),
    *("step_seconds", "data_seconds", "forward_seconds", "backward_seconds", "update_seconds"),
)
"""Figures of a step whose median over the steps is the run's."""


class Phase(str, Enum):
    """What a rank is doing, in the order of a run."""

    starting = "starting"
    tokenising = "tokenising"
    loading = "loading"
    building = "building"
    training = "training"
    evaluating = "evaluating"
    """``evaluate`` alone: a run that evaluates meanwhile is training."""
    saving = "saving"
    done = "done"


@dataclass
class RankRecord:
    """The content of ``rank<N>.json``."""

    rank: int
    pid: int
    phase: Phase = Phase.starting
    done: int = 0
    """Units of the phase finished: samples, tensors or steps."""
    total: int | None = None
    resumed: int | None = None
    """The step that this session goes on from, 0 for a fresh start. Rank 0 sets it once ``metrics.jsonl`` is cut back to it,
    before it appends a row; in a folder with an earlier session the parent reads no row until then."""
    updated: float = 0.0
    """Seconds since the epoch."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Latest figures for the progress line, such as loss, lr and tokens_per_second."""
    outcome: State | None = None
    """Set once, when the rank has ended in a way that it could tell."""
    error: str | None = None
    signal: int | None = None
    """The signal that asked this rank itself to end."""
    notes: list[str] = field(default_factory=list)
    """What the user should read as the run goes on, such as how many samples were kept."""
    early: str | None = None
    """Why a run that is complete ended before its last step."""
    warnings: list[str] = field(default_factory=list)
    """Notes that also belong in ``result.json``: something asked for was cut, dropped or has no effect."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Figures of the whole run (rank 0) for ``result.json``."""


def write_json(path: Path, content: Any, lasting: bool = True) -> None:
    """Writes ``content`` as JSON, whole or not at all; ``lasting``, even if the machine goes down meanwhile."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # What is no character, such as a stray byte in a file's name, is written as JSON's own escape of it.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as handle:
            json.dump(content, handle, indent=2, ensure_ascii=False)
            if lasting:
                handle.flush()
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write of its own does not say where


def log_tail(path: Path, begin: int = 0) -> str:
    """The end of the workers' log, from byte ``begin`` on: what an earlier session wrote says nothing of this one."""
    try:
        with path.open("rb") as handle:
            handle.seek(max(begin, path.stat().st_size - LOG_TAIL_BYTES))
            return handle.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def log_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def read_rank(folder: Path, rank: int) -> RankRecord | None:
    """The record of one rank, or None if there is none that can be read."""
    try:
        content = json.loads(rank_file(folder, rank).read_text(encoding="utf-8"))
        outcome = State(content["outcome"]) if content["outcome"] else None
        return RankRecord(**{**content, "phase": Phase(content["phase"]), "outcome": outcome})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


class RankWriter:
    """A rank's side of its record."""

    def __init__(self, folder: Path, rank: int, every_seconds: float = 0.2) -> None:
        self.path = rank_file(folder, rank)
        self.record = RankRecord(rank=rank, pid=os.getpid())
        self.every_seconds = every_seconds
        self.write()

    def progress(self, phase: Phase, done: int = 0, total: int | None = None, **numbers: float) -> None:
        """Tells progress; within one phase it is written at most every ``every_seconds``."""
        record = self.record
        entered = phase is not record.phase
        record.phase, record.done, record.total, record.numbers = phase, done, total, numbers
        if entered or done == total or time.time() - record.updated >= self.every_seconds:
            with suppress(OSError):  # a full disk ends no run by what is news for a moment
                self.write()

    def resume(self, step: int) -> None:
        """Tells that ``metrics.jsonl`` ends with ``step`` and that the next row is that of the step after it."""
        self.record.resumed = step
        self.write()

    def note(self, line: str, warning: bool = False) -> None:
        """Tells the user one line; a ``warning`` is kept in the result too."""
        (self.record.warnings if warning else self.record.notes).append(line)
        with suppress(OSError):  # told with whatever is told next
            self.write()

    def finish(self, outcome: State, error: str | None = None, metrics: dict[str, Any] | None = None) -> None:
        """Tells how this rank ended; the first outcome stands."""
        if self.record.outcome is not None:
            return
        self.record.outcome, self.record.error = outcome, error
        self.record.metrics = metrics or {}
        if outcome is State.complete:
            self.record.phase = Phase.done
        self.write()

    def write(self) -> None:
        self.record.updated = time.time()
        # Of use to a parent that lives: waiting for the disk would cost a run a hundredth of a second each time.
        write_json(self.path, asdict(self.record), lasting=False)
