"""The end of a sweep: the report, what it says in a few lines, and the exit code."""

import math
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glmexp.config.choices import Objective
from glmexp.config.errors import USER_ERROR
from glmexp.sweep.folder import SweepFolder
from glmexp.track.base import SweepInfo
from glmexp.trial.record import State
from glmexp.trial.result import Result

if TYPE_CHECKING:
    from glmexp.sweep.report import Report

TROUBLE = (State.failed, State.killed, State.timeout, State.interrupted)
"""Ends that do not follow from what was asked for. Running out of memory or diverging is a finding of a sweep."""


def exit_code(results: Sequence[Result], signal: int | None = None) -> int:
    """Of all trials in a sweep's folder.

    0: at least one is complete and none failed, was killed, timed out or was interrupted. 2: every one was refused.
    128 + signal: the sweep was interrupted. 1: anything else.
    """
    if signal is not None:
        return 128 + signal
    states = {result.state for result in results}
    if State.complete in states and not states & set(TROUBLE):
        return 0
    return USER_ERROR if states == {State.invalid} else 1


def objective_value(result: Result | None, objective: Objective) -> float:
    """What a sweeper that searches is told: tokens/s, or the memory peak in GiB; infinitely bad where there is none."""
    fast = objective is Objective.throughput
    metrics = result.metrics if result is not None and result.state is State.complete else {}
    peak = metrics.get("peak_allocated_gib")
    value = metrics.get("tokens_per_second") if fast else metrics.get("host_peak_gib") if peak is None else peak
    return float(value) if isinstance(value, int | float) else (-math.inf if fast else math.inf)


def rebuild(folder: Path, say: Callable[[str], None], plots: bool = False) -> "Report | None":
    """Builds the report; one that cannot be written, as on a full disk, is told of and takes no sweep along."""
    from glmexp.sweep.report import build

    try:
        return build(folder, plots=plots)
    except Exception as error:
        say(f"warning: the report was not written: {type(error).__name__}: {error}")
        return None


def why_stopped(signal_number: int | None, budget_minutes: float | None, left: int | None, total: int, resume: str) -> str:
    """Why not all trials were started, and how to go on.

    Args:
        left: trials that were not started; null if a search decides how many there are.
        resume: the overrides that go on with the sweep.
    """
    if signal_number is None:
        why = f"sweep.time_budget_minutes={budget_minutes:g} is over"
    else:
        why = f"stopped by {'Ctrl-C' if signal_number == signal.SIGINT else signal.Signals(signal_number).name}"
    if left is None:
        why += ": not all trials were started"
    elif left:
        why += f": {left} of {counted(total)} {'was' if left == 1 else 'were'} not started"
    return f"{why}; the same command with {resume} goes on"


def counted(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def unsent(folder: Path) -> list[str]:
    """Shell patterns, relative to the folder of the call, of what W&B recorded offline and has not been uploaded since."""
    patterns = [
        pattern
        for pattern in ("*/wandb/offline-run-*", "wandb/offline-run-*")
        if any(not list(run.glob("*.synced")) for run in folder.glob(pattern))
    ]
    return [f"{shlex.quote(os.path.relpath(folder))}/{pattern}" for pattern in patterns]


def conclude(
    folder: SweepFolder,
    summary: Sequence[str],
    say: Callable[[str], None],
    track: Callable[[SweepInfo], str | None] = lambda sweep: None,
) -> None:
    """Builds the report with its plots and says what came out.

    Args:
        summary: what the search has found, a line each.
        track: shows the sweep in a tracker; the address or folder of it.
    """
    report = rebuild(folder.path, say, plots=True)
    say("")
    if report is None:
        for line in summary:
            say(line)
        return
    where = track(SweepInfo(folder.path, folder.name, report.rows, report.counts, report.swept))
    for line in [*summary, *report.sentences]:
        say(line)
    if where:
        say(f"tracked: {where}")
    if offline := unsent(folder.path):
        say(f"W&B was offline; this uploads the sweep: wandb sync {' '.join(offline)}")
    say(f"report: {os.path.relpath(folder.path / 'report.html')}")
