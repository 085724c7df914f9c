"""``result.json``: one run in one file, written whole or not at all."""

import importlib.metadata
import json
import math
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from glmexp.config.choices import Task
from glmexp.trial.placement import Placement
from glmexp.trial.record import METRICS, RESULT, STEP_FIGURES, State, write_json

METRIC_NAMES = (
    "tokens_per_second",
    "padded_tokens_per_second",
    "samples_per_second",
    "step_seconds",
    "step_seconds_spread",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "update_seconds",
    "mfu",
    "tflops_per_second",
    "peak_tflops_per_second",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "host_peak_gib",
    "loss_first",
    "loss_last",
    "skipped_steps",
    "steps",
    "eval_loss",
    "eval_perplexity",
    "eval_rouge-1",
    "eval_rouge-2",
    "eval_rouge-l",
    "eval_bleu-4",
)
"""Those of the last evaluation begin with ``eval_``."""
PACKAGES = ("glmexp", "torch", "deepspeed", "transformers", "peft")
OF_THE_WHOLE = ("loss_first", "loss_last", "skipped_steps", "steps")
"""Metrics that a run in several sessions has as a whole."""


@dataclass
class Result:
    """The content of ``result.json``."""

    state: State
    reason: str
    overrides: list[str]
    config_hash: str | None
    """None for a combination that could not be composed."""
    world_size: int
    metrics: dict[str, Any]
    """Figures of design's names; null where not measured."""
    predicted: dict[str, Any] | None
    versions: dict[str, str | None]
    device: dict[str, Any]
    times: dict[str, Any]
    """``started`` and ``finished`` (ISO 8601 with time zone), ``seconds``."""
    signal: int | None = None
    """The signal that interrupted the run."""
    resumed: int | None = None
    """The step of the checkpoint that the run, or its last session, went on from."""
    warnings: list[str] = field(default_factory=list)


def write_result(result: Result, folder: Path) -> None:
    """Writes ``result.json``; anything JSON has no word for (nan, infinity) becomes null."""
    write_json(folder / RESULT, finite(asdict(result)))


def exit_code(result: Result) -> int:
    """0 complete; 2 the user's error; 128 + signal (130, 143) interrupted; 1 anything else."""
    if result.state is State.complete:
        return 0
    if result.state is State.invalid:
        return 2
    if result.state is State.interrupted:
        return 128 + (result.signal or 2)
    return 1


def finite(value: Any) -> Any:
    """Plain JSON: enum members as their values, floats that are not finite as None."""
    if isinstance(value, State):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def versions() -> dict[str, str | None]:
    """Versions of what decides a result, by the packages' metadata: nothing is imported. None for one not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if found["glmexp"] is None:
        from glmexp import __version__

        found["glmexp"] = __version__
    return found


def times_since(started: float) -> dict[str, Any]:
    """The ``times`` of a result that ends now; ``started`` in seconds since the epoch."""
    now = time.time()

    def iso(seconds: float) -> str:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")

    return {"started": iso(started), "finished": iso(now), "seconds": round(now - started, 3)}


def describe_device(placement: Placement) -> dict[str, Any]:
    """Kind, name and, for GPUs, the memory in GiB of what the ranks of this node run on."""
    memory = min((gpu.memory_gib for gpu in placement.gpus[: placement.ranks]), default=None)
    return {
        "kind": placement.machine.device,
        "name": placement.device_name,
        "memory_gib": None if memory is None else round(memory, 2),
    }


def read_result(folder: Path) -> Result | None:
    """The result of a trial folder, or None if there is none that can be read."""
    try:
        content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        result = Result(**{**content, "state": State(content["state"])})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return result if _is_whole(result) else None


def _is_whole(result: Result) -> bool:
    """Whether a file that was read has what others go by in its fields."""
    return (
        isinstance(result.reason, str)
        and isinstance(result.overrides, list)
        and all(isinstance(text, str) for text in result.overrides)
        and isinstance(result.config_hash, str | None)
        and all(isinstance(part, dict) for part in (result.metrics, result.versions, result.device, result.times))
        and isinstance(result.predicted, dict | None)
        and isinstance(result.warnings, list)
    )


def complete_metrics(
    told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], task: Task = Task.train, earlier: int = 0
) -> dict[str, Any]:
    """Every metric by name: as rank 0 told it, else from the rows of ``metrics.jsonl``, else null.

    The rows matter for a run that did not get to its end: its last loss and its speed are worth a line in a table. Those of
    ``measure`` hold no warm-up. Of a run in several sessions, the first ``earlier`` rows are those of earlier ones: steps and
    losses are of the whole run, the speed is that of the last session.
    """
    figures: dict[str, Any] = dict.fromkeys(METRIC_NAMES)
    if rows:
        recent = rows[earlier:] or rows
        # The first steps allocate and compile; where there are enough, they do not count for speed.
        steady = recent[2:] if task is not Task.measure and len(recent) > 4 else recent
        seconds = _numbers(steady, "step_seconds")
        losses = [row["loss"] for row in rows if isinstance(row.get("loss"), int | float)]
        figures |= {
            **{name: _middle(steady, name) for name in STEP_FIGURES},
            "step_seconds_spread": max(seconds) - min(seconds) if seconds else None,
            "peak_allocated_gib": max(_numbers(rows, "peak_allocated_gib"), default=None),
            "loss_first": losses[0] if losses else None,
            "loss_last": losses[-1] if losses else None,
            "skipped_steps": sum(bool(row.get("skipped")) for row in rows),
            "steps": len(rows),
        }
    of_rows = OF_THE_WHOLE if earlier else ()  # rank 0 knows its own session alone
    return figures | {name: value for name, value in told.items() if value is not None and name not in of_rows}


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if isinstance(row.get(name), int | float) and math.isfinite(row[name])]


def _middle(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _numbers(rows, name)
    return statistics.median(values) if values else None


class MetricsTail:
    """Reads ``metrics.jsonl``, or another file of rows with their step, as it grows.

    Args:
        going_on: whether the file may hold rows of an earlier session. Nothing is read then before ``resume``: rank 0 cuts the
            file back to the checkpoint first.
    """

    def __init__(self, folder: Path, going_on: bool = False, name: str = METRICS) -> None:
        self.path = folder / name
        self.rows: list[dict[str, Any]] = []
        """All rows so far, those of earlier sessions included."""
        self.earlier = 0
        """How many of them are of earlier sessions."""
        self.waiting = going_on
        self._resumed = 0.0
        self._offset = 0

    def resume(self, step: float) -> None:
        """Lets the file be read; the rows up to ``step`` are those of earlier sessions."""
        self.waiting, self._resumed = False, step

    def fresh(self) -> list[dict[str, Any]]:
        """The rows of this session that have come since the last call; a line still being written is left for the next."""
        if self.waiting:
            return []
        try:
            with self.path.open("rb") as handle:
                handle.seek(self._offset)
                text = handle.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = [row for row in map(_row, whole.splitlines()) if row is not None]
        new = [row for row in rows if row.get("step", math.inf) > self._resumed]
        self.rows += rows
        self.earlier += len(rows) - len(new)
        return new


def _row(line: bytes) -> dict[str, Any] | None:
    """One line; None for one that a machine going down has left half written."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
