"""One trial of a sweep, from its folder to its result; whatever happens in it, a result is there afterwards."""

import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glmexp.config.checkpoint import resumes_itself
from glmexp.config.choices import Task
from glmexp.config.errors import UserError
from glmexp.sweep.folder import NEVER_RAN, SweepFolder, set_aside
from glmexp.sweep.jobs import Invalid, Job
from glmexp.track.base import Tracker
from glmexp.trial.placement import Placement
from glmexp.trial.processes import Signals
from glmexp.trial.progress import View
from glmexp.trial.record import RESULT, State
from glmexp.trial.redact import redact
from glmexp.trial.result import Result, describe_device, read_result, times_since, versions, write_result
from glmexp.trial.run import run_trial, write_configs
from glmexp.trial.saved import checkpoints
from glmexp.trial.starter import Starter


@dataclass(frozen=True)
class Surroundings:
    """What one trial is given by its sweep."""

    placement: Placement
    environ: Mapping[str, str]
    starter: Starter
    signals: Signals | None = None
    view: View | None = None
    tracker: Tracker | None = None


def execute(job: Job, sweep: SweepFolder, around: Surroundings) -> Result:
    """Runs one trial, whatever happens in it.

    An earlier try is kept in ``attempt<N>/``; with ``train.resume=auto`` it goes on in place, if it has saved a checkpoint.

    Raises:
        OSError: not even the result can be written.
    """
    folder = sweep.place(job.name, job.config_hash)
    earlier = read_result(folder)
    if earlier is not None and earlier.state in NEVER_RAN:
        (folder / RESULT).unlink()
    going_on = resumes_itself(job.composed.config) and bool(checkpoints(folder))
    if not going_on:
        set_aside(folder)
    started = time.time()
    try:
        if job.composed.config.task is Task.check:
            return check(job, folder)
        ended = run_trial(
            job.composed,
            folder,
            job.overrides,
            around.placement,
            view=around.view,
            tracker=around.tracker,
            environ=around.environ,
            starter=around.starter,
            signals=around.signals,
            name=job.label,
            group=sweep.name,
            going_on=going_on,
        )
    except Exception as error:
        # One trial must not end the sweep, not even by a fault of glmexp's own.
        state = State.invalid if isinstance(error, UserError) else State.failed
        told = str(error) if isinstance(error, UserError | OSError) else "".join(traceback.format_exception(error)).strip()
        result = outline(job, state, told[-2000:], started)
        record(result, folder)
        return result
    if not (folder / RESULT).exists():
        record(ended, folder)
    return ended


def record(result: Result, folder: Path) -> None:
    """Writes the result of a trial that did not come to write its own; raises OSError in the user's words."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_result(result, folder)
    except OSError as error:
        raise OSError(
            f"the result of {folder.name} could not be written: {error}\n"
            "make room, then the same command with sweep.resume=true runs what is missing"
        ) from error


def check(job: Job, folder: Path) -> Result:
    """``check`` as a trial: its files, and a result without figures."""
    started = time.time()
    folder.mkdir(parents=True, exist_ok=True)
    write_configs(job.composed.config, job.ds_config, folder)
    result = outline(job, State.complete, "", started)
    write_result(result, folder)
    return result


def outline(job: Job | Invalid, state: State, reason: str, started: float | None = None) -> Result:
    """The result of a trial that did not run to a record of its own."""
    valid = job if isinstance(job, Job) else None
    return Result(
        state=state,
        reason=redact(reason, os.environ),
        overrides=[redact(override, os.environ) for override in job.overrides],
        config_hash=valid.config_hash if valid else None,
        world_size=valid.placement.machine.world_size if valid else 0,
        metrics={},
        predicted=None,
        versions=versions(),
        device=describe_device(valid.placement) if valid else {},
        times=times_since(time.time() if started is None else started),
    )
