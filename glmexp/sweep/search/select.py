"""Which search the configuration asks for."""

from collections.abc import Sequence
from pathlib import Path

from glmexp.config.choices import Order, Task
from glmexp.config.choices import Search as Kind
from glmexp.config.errors import UserError
from glmexp.config.schema import SweepConfig
from glmexp.sweep.jobs import Job
from glmexp.sweep.search.base import Search
from glmexp.sweep.search.cost import cheap_first
from glmexp.sweep.search.grid import Grid
from glmexp.sweep.search.max_batch import MaxBatch, Vary
from glmexp.sweep.search.optuna_search import OptunaSearch
from glmexp.sweep.search.pruning import Pruned


def select(config: SweepConfig, jobs: Sequence[Job], vary: Vary, folder: Path) -> Search:
    """The search over ``jobs``, which is the grid without its invalid cells. ``check`` takes all of it, whatever the search.

    Args:
        vary: gives a job with another ``batch.micro``.
        folder: the sweep's.

    Raises:
        UserError: what was asked for cannot be had with these jobs.
    """
    if config.trials is not None and config.search is not Kind.optuna:
        raise UserError(
            f"sweep.trials={config.trials} has no effect with sweep.search={config.search.value}, which runs what it needs\n"
            "add sweep.search=optuna, or limit the time: sweep.time_budget_minutes=60"
        )
    cheap = config.order is Order.cheap_first
    chosen = cheap_first(jobs) if cheap else list(jobs)
    search = _search(config, chosen, vary, folder)
    return Pruned(search, config.slots) if cheap else search


def _search(config: SweepConfig, jobs: Sequence[Job], vary: Vary, folder: Path) -> Search:
    if not jobs or config.search is Kind.grid:
        return Grid(jobs)
    checking = any(job.composed.config.task is Task.check for job in jobs)  # nothing to compare: the whole grid is checked
    if config.search is Kind.max_batch:
        search = MaxBatch(jobs, vary)  # which refuses what it could not search, also where it is only checked
        return Grid(jobs) if checking else search
    seed = jobs[0].composed.config.train.seed
    return Grid(jobs) if checking else OptunaSearch(jobs, folder, config.trials, seed)
