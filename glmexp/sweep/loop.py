"""The main loop of a sweep: start what the search asks for, and record what ends, until all is decided.

One thread a trial waits for its ranks; everything else (search, screen, report) happens in the main thread.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from glmexp.config.schema import SweepConfig
from glmexp.sweep.ending import rebuild
from glmexp.sweep.execute import Surroundings, execute, outline
from glmexp.sweep.folder import Finished, SweepFolder
from glmexp.sweep.jobs import Job
from glmexp.sweep.search import Search, Skip
from glmexp.sweep.slots import Slot, Slots
from glmexp.sweep.view import SweepView
from glmexp.track.base import Tracker
from glmexp.trial.processes import Signals
from glmexp.trial.record import State
from glmexp.trial.result import Result
from glmexp.trial.resume import is_to_go_on
from glmexp.trial.starter import Starter

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Means:
    """What the loop works with."""

    folder: SweepFolder
    slots: Slots
    starter: Starter
    view: SweepView
    signals: Signals
    tracker: Callable[[Job], Tracker]
    """Makes the tracker of one trial."""


class Loop:
    """Runs the trials of one search to the end."""

    def __init__(self, settings: SweepConfig, search: Search, means: Means) -> None:
        self.search = search
        self.means = means
        self.retry = settings.retry
        budget = settings.time_budget_minutes
        self.stop_at = None if budget is None else time.monotonic() + 60 * budget
        self.finished: dict[str, Finished] = means.folder.ran()
        means.view.stops_at = self.stop_at
        self.results: dict[str, Result] = {}
        """By hash: the trials that this search has been told of."""
        self.skipped = 0
        self.ended: queue.SimpleQueue[tuple[Job, Slot, Result | Exception]] = queue.SimpleQueue()
        self.failure: Exception | None = None
        """What keeps results from being recorded, such as a full disk: further trials would run for nothing."""
        self.running = 0
        self.waiting: Job | None = None
        """Asked for, and needs more GPUs than are free."""

    @property
    def stopped_early(self) -> bool:
        """Whether the search would have had more trials run, or more of one that was interrupted."""
        interrupted = any(result.state is State.interrupted for result in self.results.values())
        return self.waiting is not None or not self.search.done or (interrupted and bool(self.means.signals.received))

    @property
    def out_of_time(self) -> bool:
        return self.stop_at is not None and time.monotonic() > self.stop_at

    def run(self) -> None:
        """Raises what kept a result from being recorded, once no trial is running any more."""
        try:
            self._run()
        except BaseException:
            # A fault of the search or the screen: the threads would go on to the end of trials that nobody waits for.
            self.means.signals.received.append(signal.SIGTERM)
            raise

    def _run(self) -> None:
        while True:
            self.start()
            if not self.running:
                if self.failure is not None:
                    raise self.failure
                if self.stopping or self.search.done:
                    return
                raise RuntimeError("the search is not done and asks for nothing, while no trial is running")
            self.collect()

    @property
    def stopping(self) -> bool:
        return bool(self.means.signals.received) or self.out_of_time or self.failure is not None

    def start(self) -> None:
        """Starts trials as long as there are slots and the search has any."""
        while not self.stopping and self.running < self.means.slots.count:
            step = self.waiting or self.search.ask()
            self.waiting = None
            if step is None:
                return
            if isinstance(step, Skip):
                self.skip(step)
            elif (known := self.known(step)) is not None:
                self.tell(step, known, earlier=True)
            elif (slot := self.means.slots.take(step)) is not None:
                self.running += 1
                threading.Thread(target=self.trial, args=(step, slot), name=step.name).start()
            else:
                self.waiting = step
                return

    def known(self, job: Job) -> Result | None:
        """What an earlier session found, unless ``sweep.retry`` names how that ended, or more steps are asked for now."""
        finished = self.finished.get(job.config_hash)
        if finished is None or is_to_go_on(job.composed.config, finished.folder, finished.result):
            return None
        return finished.result if finished.stands(self.retry) else None

    def name(self, job: Job) -> str:
        """Name of the trial's folder: an earlier session, with its overrides in another order, may have named it otherwise."""
        finished = self.finished.get(job.config_hash)
        return job.name if finished is None else finished.folder.name

    def trial(self, job: Job, slot: Slot) -> None:
        """One trial, on a thread of its own; the main thread waits for what it puts, whatever happens."""
        means = self.means
        ended: Result | Exception
        try:
            around = Surroundings(
                slot.placement, slot.environ, means.starter, means.signals, means.view.trial(self.name(job)), means.tracker(job)
            )
            ended = execute(job, means.folder, around)
        except Exception as error:
            ended = error
        self.ended.put((job, slot, ended))

    def collect(self) -> None:
        """Takes what has ended meanwhile, and keeps the screen alive."""
        if self.stopping:
            self.means.view.stops_at = float("-inf")
        try:
            job, slot, ended = self.ended.get(timeout=POLL_SECONDS)
        except queue.Empty:
            self.means.view.refresh()
            return
        self.running -= 1
        self.means.slots.give(slot)
        if isinstance(ended, Exception):
            self.failure = self.failure or ended
            return
        self.tell(job, ended)
        self.start()  # the next trial works while the report is made
        rebuild(self.means.folder.path, self.means.view.note)
        self.means.view.refresh()

    def tell(self, job: Job, result: Result, earlier: bool = False) -> None:
        self.search.tell(job, result)
        self.show(job, result, earlier)

    def show(self, job: Job, result: Result, earlier: bool) -> None:
        self.results[job.config_hash] = result
        self.means.view.finish(self.name(job), result.state, result.reason, result.metrics, earlier)

    def skip(self, step: Skip) -> None:
        if (known := self.known(step.job)) is not None:  # it ran in an earlier session, before this could be known
            self.show(step.job, known, earlier=True)
            return
        self.skipped += 1
        try:
            self.means.folder.record(step.job.name, outline(step.job, State.skipped, step.reason))
        except OSError as error:
            self.failure = error
        self.means.view.finish(step.job.name, State.skipped, step.reason, {})
