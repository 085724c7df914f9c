"""The largest micro batch that fits, for each cell of the grid, at a constant global batch."""

from collections.abc import Callable, Sequence

from glmexp.config.batch import data_parallel_size
from glmexp.config.errors import UserError
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.sweep.jobs import Job
from glmexp.trial.record import State
from glmexp.trial.result import Result

Vary = Callable[[Job, int], Job]
"""A job with another ``batch.micro``; raises UserError for one that a rule refuses."""
TOO_LARGE = (State.oom, State.oom_host, State.skipped)
"""``skipped``: it would have run out of memory, as a trial that needs no more has."""


class MaxBatch:
    """Bisection over the divisors of each rank's share of ``batch.total``: about log2 of their number trials a cell.

    What fits and what does not has to come in this order, from small to large. A trial that ends in any other way than complete
    or out of memory says nothing about the next one, and its cell ends with what it has.

    Args:
        jobs: the cells; their own micro batch does not matter.

    Raises:
        UserError: the global batch is not constant, or the micro batch is swept.
    """

    def __init__(self, jobs: Sequence[Job], vary: Vary) -> None:
        for job in jobs:
            check_cell(job)
        check_micro_not_swept(jobs)
        self._cells = [Cell(job, vary) for job in jobs]
        self._running: dict[str, Cell] = {}

    def ask(self) -> Job | None:
        for cell in self._cells:
            if not cell.done and cell not in self._running.values():
                job = cell.next()
                if job is not None:
                    self._running[job.name] = cell
                    return job
        return None

    def tell(self, job: Job, result: Result) -> None:
        self._running.pop(job.name).told(job, result)

    @property
    def done(self) -> bool:
        return all(cell.done for cell in self._cells)

    def summary(self) -> list[str]:
        return [cell.summary() for cell in self._cells]


class Cell:
    """One combination of all but the micro batch."""

    def __init__(self, job: Job, vary: Vary) -> None:
        config = job.composed.config
        ranks = data_parallel_size(job.placement.machine.world_size, sequence_parallel_size(config))
        assert config.batch.total is not None
        self.job = job
        self.total = config.batch.total
        self._vary = vary
        self._open = divisors(self.total // ranks)
        """Micro batches larger than the one that fits and smaller than the one that does not."""
        self._micro = 0
        """The one that runs."""
        self.fits: int | None = None
        self.beyond = ""
        """What came of a larger one than fits."""

    @property
    def done(self) -> bool:
        return not self._open

    def next(self) -> Job | None:
        """The trial that halves what is open; None when rules refuse all that is left."""
        while self._open:
            self._micro = self._open[len(self._open) // 2]
            try:
                return self._vary(self.job, self._micro)
            except UserError as error:
                self._open.remove(self._micro)
                self.beyond = self.beyond or f"batch.micro={self._micro} is refused: {str(error).splitlines()[0]}"
        return None

    def told(self, job: Job, result: Result) -> None:
        if result.state is State.complete:
            self.fits = self._micro
            self._open = [micro for micro in self._open if micro > self._micro]
        elif result.state in TOO_LARGE:
            self._open = [micro for micro in self._open if micro < self._micro]
            memory = (
                "host memory" if result.state is State.oom_host else "GPU memory" if result.state is State.oom else "memory"
            )
            self.beyond = f"batch.micro={self._micro} runs out of {memory}"
        else:
            self._open = []
            self.beyond = f"the search ended at batch.micro={self._micro}, which was {result.state.value} (trial {job.name})"

    def summary(self) -> str:
        if not self.done:  # stopped by the user or the time budget
            open_ones = ", ".join(map(str, self._open))
            found = f"{'none' if self.fits is None else f'batch.micro={self.fits}'} fits so far, {open_ones} not decided"
        else:
            found = "none fits" if self.fits is None else f"batch.micro={self.fits} is the largest that fits"
        return f"{self.job.label}: {found} (batch.total={self.total})" + (f"; {self.beyond}" if self.beyond else "")


def check_cell(job: Job) -> None:
    config = job.composed.config
    if config.batch.total is None:
        raise UserError(
            "sweep.search=max_batch looks for the largest batch.micro at a constant global batch, and batch.total is not set\n"
            "add batch.total=64, or another global batch that you train with"
        )
    if config.batch.accumulation is not None:
        raise UserError(
            f"sweep.search=max_batch varies batch.micro, and batch.accumulation={config.batch.accumulation} leaves one alone\n"
            "leave batch.accumulation out: it follows from batch.total and the micro batch"
        )


def check_micro_not_swept(jobs: Sequence[Job]) -> None:
    seen = {override.partition("=")[2] for job in jobs for override in job.overrides if override.startswith("batch.micro=")}
    if len(seen) > 1:
        raise UserError(
            f"batch.micro={','.join(sorted(seen))}: sweep.search=max_batch finds it itself\n"
            "leave batch.micro out, or set sweep.search=grid to run them all"
        )


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
