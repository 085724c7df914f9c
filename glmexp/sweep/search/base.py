"""What a sweep's main loop and a search say to each other."""

from dataclasses import dataclass
from typing import Protocol

from glmexp.sweep.jobs import Job
from glmexp.trial.result import Result


@dataclass(frozen=True)
class Skip:
    """A trial that need not run: how it would end follows from others."""

    job: Job
    reason: str


class Search(Protocol):
    """Decides which trial comes next; called from one thread alone.

    The main loop calls ``ask`` whenever a slot is free and ``tell`` when a trial has ended, in whatever order they end. For a
    trial that an earlier session has finished, and for one that is the same as another, it calls ``tell`` at once with the
    result that is there. A ``Skip`` is not told.
    """

    def ask(self) -> Job | Skip | None:
        """What to do next; None is nothing now: something may come after the next ``tell``, unless ``done``."""
        ...

    def tell(self, job: Job, result: Result) -> None:
        """How a job that ``ask`` has given ended."""
        ...

    @property
    def done(self) -> bool:
        """Whether ``ask`` will give nothing any more, whatever is still told."""
        ...

    def summary(self) -> list[str]:
        """What was found, a line each, for the end of the sweep; empty where the report says it all."""
        ...
