"""What ``hydra/launcher=glmexp`` does with the trials of a sweep: compose and check them all, then run them."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from omegaconf import DictConfig

from glmexp.config.choices import Objective, Search, Task
from glmexp.config.compose import Composed
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.sweep.ending import conclude, objective_value
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.grid import Grid
from glmexp.sweep.jobs import OF_THE_SWEEP, Invalid, Job, job, swept_keys
from glmexp.sweep.loop import Loop, Means
from glmexp.sweep.search.select import select
from glmexp.sweep.session import SweepRefusedError, current
from glmexp.sweep.slots import Slots, check_slots
from glmexp.sweep.view import SweepView
from glmexp.track.base import SweepInfo, Tracker
from glmexp.track.selection import overview, preflight, tracker_for
from glmexp.track.session import Session as TrackerSession
from glmexp.trial.machine import probe
from glmexp.trial.processes import Signals
from glmexp.trial.result import Result
from glmexp.trial.starter import COLD, WarmStarter
from glmexp.trial.tasks import Screen


def launch(loader: ConfigLoader, master: DictConfig, job_overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Runs these trials in the session's folder, resuming and searching as the configuration says.

    Returns one JobReturn a trial for Hydra's sweeper, with the value of ``sweep.objective`` (infinitely bad for a trial that
    has none), so that a sweeper that searches never walks into what ran out of memory again.
    """
    setup_globals()
    session = current()
    assert session.folder is not None, "SweepCallback opens it"
    if session.signal is not None:  # a further batch of the sweeper, after Ctrl-C
        return []
    try:
        sweep = Sweep(loader, master, job_overrides, first, session.folder)
        sweep.run()
    except UserError as error:
        raise SweepRefusedError(error) from error
    objective: Objective = master.sweep.objective
    return [
        JobReturn(overrides=list(item.overrides), status=JobStatus.COMPLETED, _return_value=objective_value(result, objective))
        for item, result in sweep.results()
    ]


class Sweep:
    """One batch of trials, composed and then run."""

    def __init__(
        self, loader: ConfigLoader, master: DictConfig, job_overrides: Sequence[Sequence[str]], first: int, folder: SweepFolder
    ) -> None:
        self.loader, self.master, self.folder = loader, master, folder
        self.swept = folder.settings().get("swept") or swept_keys(job_overrides)
        refuse_swept_settings(self.swept)
        self.found = probe(os.environ)
        self.grid = Grid([self.make(first + number, given) for number, given in enumerate(job_overrides)], folder.ran())
        self.told: dict[str, Result] = {}
        self.trackers = TrackerSession()

    def make(self, number: int, overrides: Sequence[str], varied: Sequence[str] = ()) -> Job | Invalid:
        """Composes and checks one trial; ``varied`` are keys of its name beside the swept ones."""
        return job(number, overrides, [*self.swept, *varied], self.compose, self.found, max(1, self.master.sweep.slots))

    def compose(self, overrides: Sequence[str]) -> Composed:
        composed = self.loader.load_sweep_config(self.master, list(overrides))
        return current().compose(composed, composed.hydra)

    def vary(self, base: Job, micro: int) -> Job:
        """``base`` with another micro batch at the same global batch; raises UserError."""
        others = [override for override in base.overrides if not override.startswith("batch.micro=")]
        varied = self.make(base.number, [*others, f"batch.micro={micro}"], ["batch.micro"])
        if isinstance(varied, Invalid):
            raise UserError(varied.reason)
        return varied

    def run(self) -> None:
        """Runs the trials to the end and says what came out."""
        console = Screen(soft_wrap=True, highlight=False)
        verbs = " and ".join(sorted({item.composed.config.task.value for item in self.grid.jobs})) or "no trial can run"
        count = len(self.grid.made)
        trials = f"{count} trial{'' if count == 1 else 's'}"
        if self.total is None:
            trials = f"sweep.search={self.master.sweep.search.value} over a grid of {count}"
        console.print(f"{verbs}: {trials}, in {self.folder.path}", markup=False)
        summary: list[str] = []
        with ExitStack() as stack:
            signals = stack.enter_context(Signals())
            view = stack.enter_context(SweepView(console, total=self.total, slots=self.master.sweep.slots))
            self.grid.record_what_cannot_run(self.folder, lambda name, state, reason: view.finish(name, state, reason, {}))
            for line in dict.fromkeys(line for item in self.grid.jobs for line in item.warnings):
                view.note(f"warning: {line}")
            if self.grid.jobs:
                loop = self.loop(self.grid.jobs, view, signals, stack)
                loop.run()
                self.told, summary = loop.results, loop.search.summary()
                if loop.stopped_early:
                    summary.append("not all trials were started: the same command with sweep.resume=true goes on")
        session = current()
        session.signal = signals.received[0] if signals.received else None
        session.concluded = True
        conclude(self.folder, summary, lambda line: console.print(line, markup=False), self.overview)

    def overview(self, sweep: SweepInfo) -> str | None:
        """The sweep as a whole in the tracker."""
        if not self.tracked:
            return None
        warn = lambda line: print(f"warning: {line}", file=sys.stderr)  # noqa: E731
        return overview(self.grid.jobs[0].composed.config.tracker, os.environ, warn, sweep, self.trackers)

    @property
    def total(self) -> int | None:
        """Trials in all, where that is known beforehand: a search takes as many as it needs."""
        return len(self.grid.made) if self.master.sweep.search is Search.grid else None

    @property
    def tracked(self) -> bool:
        """Whether there are runs that a tracker has to be told of; a check has none."""
        return any(item.composed.config.task is not Task.check for item in self.grid.jobs)

    def loop(self, jobs: list[Job], view: SweepView, signals: Signals, stack: ExitStack) -> Loop:
        config: Config = jobs[0].composed.config
        settings = config.sweep
        check_slots(settings.slots, jobs, self.found.gpus)
        search = select(settings, jobs, self.vary, self.folder.path)
        warm = settings.warm_start and self.tracked
        starter = stack.enter_context(WarmStarter(lambda line: view.note(f"warning: {line}"))) if warm else COLD
        slots = Slots(settings.slots, self.found.gpus)

        def tracker(item: Job) -> Tracker:
            return tracker_for(
                item.composed.config.tracker, os.environ, lambda line: view.note(f"warning: {line}"), self.trackers
            )

        for line in preflight(config.tracker, os.environ):
            view.note(f"warning: {line}")
        return Loop(settings, search, Means(self.folder, slots, starter, view, signals, tracker))

    def results(self) -> list[tuple[Job | Invalid, Result | None]]:
        """Each trial with its result, where it has one."""
        return [(item, self.told.get(item.config_hash) if isinstance(item, Job) else None) for item in self.grid.made]


def refuse_swept_settings(swept: Sequence[str]) -> None:
    """Raises UserError for a setting of the whole sweep that was given several values."""
    for key in swept:
        if key.split(".")[0] in OF_THE_SWEEP:
            raise UserError(f"{key} is of the sweep as a whole and takes one value\nstart one sweep for each value")
