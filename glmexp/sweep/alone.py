"""One trial of a sweep whose trials some other launcher starts: Hydra's basic one, joblib, submitit, Ray.

What keeps trials apart, finds what is finished and rebuilds the report works from the sweep's files alone, in whichever
process the launcher runs this.
"""

import os
from pathlib import Path

from omegaconf import DictConfig

from glmexp.config.compose import as_written
from glmexp.sweep.ending import objective_value, rebuild
from glmexp.sweep.execute import Surroundings, execute, outline
from glmexp.sweep.folder import SweepFolder, claimed
from glmexp.sweep.jobs import Invalid, Job, job
from glmexp.sweep.parent import follow_parent
from glmexp.sweep.session import current
from glmexp.track.selection import tracker_for
from glmexp.trial.closing import printable
from glmexp.trial.machine import probe
from glmexp.trial.record import State
from glmexp.trial.result import Result
from glmexp.trial.starter import COLD


def run_alone(task: DictConfig, node: DictConfig) -> float:
    """Runs the trial that Hydra composed, unless it is finished or another process is at it; says how it ended.

    Args:
        task: the composed configuration.
        node: Hydra's own part of it.

    Returns the value of ``sweep.objective``, infinitely bad where there is none. Raises SystemExit after a signal.
    """
    follow_parent()
    folder = SweepFolder(Path(node.sweep.dir).absolute())
    swept = folder.settings().get("swept", [])
    asked = job(
        int(node.job.num),
        as_written(node.overrides.task),
        swept,
        lambda _: current().compose(task, node),
        probe(os.environ),
        slots=1,
    )
    result = decide(asked, folder)
    reason = f": {result.reason.splitlines()[0]}" if result.reason else ""
    print(printable(f"{asked.name}: {result.state.value}{reason}"), flush=True)
    rebuild(folder.path, print)
    if result.state is State.interrupted:
        raise SystemExit(128 + (result.signal or 2))  # a BaseException: Hydra's basic launcher would go on otherwise
    return objective_value(result, task.sweep.objective)


def decide(asked: Job | Invalid, folder: SweepFolder) -> Result:
    """The trial's result, by running it if need be."""
    if isinstance(asked, Invalid):
        result = outline(asked, State.invalid, asked.reason)
        folder.record(asked.name, result)
        return result
    with claimed(folder.path, asked.config_hash):
        finished = folder.ran().get(asked.config_hash)
        retry = asked.composed.config.sweep.retry
        if finished is not None and folder.of_this_session(finished) and finished.folder.name != asked.name:
            twin = outline(asked, State.skipped, f"the same effective configuration as {finished.folder.name}")
            folder.record(asked.name, twin)
            return twin
        if finished is not None and (folder.of_this_session(finished) or finished.stands(retry)):
            return finished.result
        tracker = tracker_for(asked.composed.config.tracker, os.environ, print)
        return execute(asked, folder, Surroundings(asked.placement, os.environ, COLD, tracker=tracker))
