"""The whole grid, one after the other."""

from collections.abc import Sequence

from glmexp.sweep.jobs import Job
from glmexp.trial.result import Result


class Grid:
    """Every job once, in the order given."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = list(reversed(jobs))

    def ask(self) -> Job | None:
        return self._waiting.pop() if self._waiting else None

    def tell(self, job: Job, result: Result) -> None:
        """A grid learns nothing from how a trial ended."""

    @property
    def done(self) -> bool:
        return not self._waiting

    def summary(self) -> list[str]:
        return []
