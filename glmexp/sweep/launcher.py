"""What ``hydra/launcher=glmexp`` does with the trials of a sweep: compose and check them all, then run them."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from omegaconf import DictConfig

from glmexp.config.checkpoint import saves_on_signal
from glmexp.config.choices import Objective, Search, Task
from glmexp.config.compose import SWEEPER, Composed, as_written
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.sweep.callback import folder_given
from glmexp.sweep.earlier import not_of_this_grid
from glmexp.sweep.ending import conclude, counted, objective_value, why_stopped
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.grid import Grid
from glmexp.sweep.jobs import Invalid, Job, job
from glmexp.sweep.loop import Loop, Means
from glmexp.sweep.overrides import is_of_the_sweep, swept_keys, values_of
from glmexp.sweep.search import select
from glmexp.sweep.session import SweepRefusedError, current
from glmexp.sweep.slots import Slots, check_slots
from glmexp.sweep.view import SweepView
from glmexp.track.base import SweepInfo, Tracker
from glmexp.track.selection import overview, preflight, tracker_for
from glmexp.track.session import Session as TrackerSession
from glmexp.trial.machine import probe
from glmexp.trial.processes import Signals
from glmexp.trial.progress import is_terminal
from glmexp.trial.result import Result
from glmexp.trial.starter import COLD
from glmexp.trial.tasks import Screen, warn
from glmexp.trial.warm import WarmStarter


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
        if not job_overrides:
            refuse_no_values(loader, as_written(master.hydra.overrides.task))
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
        self.swept = folder.settings().get("swept") or swept_keys([values_of(given) for given in job_overrides])
        refuse_swept_settings(self.swept)
        self.found = probe(os.environ)
        self.console = Screen(soft_wrap=True, highlight=False)
        with composing(self.console, len(job_overrides)):
            made = [self.make(first + number, given) for number, given in enumerate(job_overrides)]
        if self.whole:
            refuse_if_none_can_run(made)
        self.grid = Grid(made, folder.ran())
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
        console = self.console
        verbs = " and ".join(sorted({item.composed.config.task.value for item in self.grid.jobs})) or self.master.task.value
        trials = counted(len(self.grid.made))
        if self.total is None:
            trials = f"sweep.search={self.master.sweep.search.value} over a grid of {len(self.grid.made)}"
        console.print(f"{verbs}: {trials}, in {self.folder.path}", markup=False)
        summary: list[str] = []
        with ExitStack() as stack:
            signals = stack.enter_context(Signals(any(saves_on_signal(item.composed.config) for item in self.grid.jobs)))
            view = stack.enter_context(SweepView(console, total=self.total, slots=self.master.sweep.slots))
            self.grid.record_what_cannot_run(self.folder, lambda name, state, reason: view.finish(name, state, reason, {}))
            for line in self.cautions():
                view.note(f"warning: {line}")
            view.refresh()
            if self.grid.jobs:
                loop = self.loop(self.grid.jobs, view, signals, stack)
                loop.run()
                self.told, summary = loop.results, loop.search.summary()
                if loop.stopped_early:
                    summary.append(self.why_stopped(loop, signals))
        session = current()
        session.signal = signals.received[0] if signals.received else None
        session.concluded = True
        conclude(self.folder, summary, lambda line: console.print(line, markup=False), self.overview)

    def cautions(self) -> list[str]:
        """What is likely not what was meant, one line each."""
        jobs, sweep = self.grid.jobs, self.master.sweep
        found = list(dict.fromkeys(line for item in jobs for line in item.warnings))
        on_cpu = any(item.placement.machine.device == "cpu" and item.composed.config.task is Task.measure for item in jobs)
        if sweep.slots > 1 and on_cpu:
            found.append(f"sweep.slots={sweep.slots} on the CPU: trials share the cores, speeds are lower than of one alone")
        saving = [item for item in jobs if item.composed.config.task is Task.train and item.composed.config.checkpoint.every]
        if saving:
            keep = max(item.composed.config.checkpoint.keep for item in saving)
            found.append(f"checkpoint.every: {counted(len(saving))} with up to {keep} checkpoints each on the disk")
        if self.whole and jobs:
            searched = ["batch.micro"] if sweep.search is Search.max_batch else []
            others = not_of_this_grid(self.folder, jobs, searched)
            found += [others] if others else []
        return found

    def why_stopped(self, loop: Loop, signals: Signals) -> str:
        left = None if self.total is None else len(self.grid.jobs) - len(loop.results) - loop.skipped
        which = "" if folder_given(self.master.hydra) else f"hydra.sweep.dir={os.path.relpath(self.folder.path)} "
        number = signals.received[0] if signals.received else None
        budget = self.master.sweep.time_budget_minutes
        return why_stopped(number, budget, left, len(self.grid.made), f"{which}sweep.resume=true")

    def overview(self, sweep: SweepInfo) -> str | None:
        """The sweep as a whole in the tracker."""
        if not self.tracked:
            return None
        return overview(self.grid.jobs[0].composed.config.tracker, os.environ, warn, sweep, self.trackers)

    @property
    def whole(self) -> bool:
        """Whether this batch is the whole sweep: another sweeper makes several."""
        return bool(self.master.hydra.sweeper["_target_"] == SWEEPER)

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


def composing(console: Screen, count: int) -> AbstractContextManager[object]:
    """Tells what is going on meanwhile: each trial takes some tenths of a second."""
    line = f"composing {counted(count)}"
    if is_terminal(console):
        return console.status(line, spinner="line")
    console.print(line)
    return nullcontext()


def refuse_if_none_can_run(made: Sequence[Job | Invalid]) -> None:
    """Raises UserError if all trials are refused for one and the same reason: a table would say it once a row."""
    reasons = {item.reason if isinstance(item, Invalid) else None for item in made}
    reason = reasons.pop() if len(reasons) == 1 else None
    if reason is not None:
        raise UserError(reason if len(made) == 1 else f"{reason}\nall {len(made)} trials are refused for this reason")


def refuse_no_values(loader: ConfigLoader, overrides: Sequence[str]) -> None:
    """Raises UserError for a grid without trials, by the override that comes to no value."""
    for item in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        if item.is_discrete_sweep() and not list(item.sweep_string_iterator()):
            raise UserError(
                f"{item.input_line} comes to no value, so there is no trial\ngive values, or the names of options that exist"
            )
    raise UserError("the overrides come to no trial\ngive at least one value for each key")


def refuse_swept_settings(swept: Sequence[str]) -> None:
    """Raises UserError for a setting of the whole sweep that was given several values."""
    for key in swept:
        if is_of_the_sweep(key):
            raise UserError(f"{key} is of the sweep as a whole and takes one value\nstart one sweep for each value")
