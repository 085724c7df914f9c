"""Optuna chooses which trials of the grid to run: high tokens/s, little memory."""

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glmexp.config.errors import missing_package
from glmexp.sweep.jobs import Job
from glmexp.sweep.overrides import swept_keys, values_of
from glmexp.trial.record import State
from glmexp.trial.result import Result

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STORAGE = "optuna.db"
WORST = (-math.inf, math.inf)
"""Told of a trial that did not complete: of all that Optuna can be told, this keeps it best away from running out of memory."""
DIRECTIONS: tuple[Literal["maximize"], Literal["minimize"]] = ("maximize", "minimize")
PROPOSALS = 10
"""How often Optuna may propose what has run, or what no rule allows, before the first trial that is left is taken."""


class OptunaSearch:
    """Samples the grid with TPE, for tokens per second and peak memory (the GPU's; on the CPU the host's).

    Optuna proposes in a study in memory, from what has been told in this session; what an earlier session has begun is asked
    for first, so that its results come in again. ``optuna.db`` in the sweep's folder is written along for optuna-dashboard, a
    row for each trial that ran.

    Args:
        folder: the sweep's.
        trials: how many to run at most; None runs up to the whole grid.
        seed: of the sampler.

    Raises:
        UserError: Optuna is not installed.
    """

    def __init__(self, jobs: Sequence[Job], folder: Path, trials: int | None, seed: int) -> None:
        if find_spec("optuna") is None:
            raise missing_package("sweep.search=optuna", "optuna", "'glmexp[optuna]'", "choose another sweep.search")
        self._grid = len(jobs)
        self._budget = min(trials or len(jobs), len(jobs))
        self._space = Space(jobs)
        self._waiting = {job.name: job for job in jobs}
        begun = {path.name[-8:] for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
        self._begun = [job for job in self._waiting.values() if job.config_hash[:8] in begun]
        self._asked: dict[str, Trial] = {}
        self._ran = 0
        self._study = sampling_study(seed)
        self._record = Record(folder / STORAGE, self._space)

    def ask(self) -> Job | None:
        if self.done:
            return None
        job, trial = self._again(self._begun.pop(0)) if self._begun else self._proposed()
        self._asked[job.name] = trial
        del self._waiting[job.name]
        return job

    def tell(self, job: Job, result: Result) -> None:
        values = objectives(job, result)
        self._study.tell(self._asked.pop(job.name), values)
        if result.state is not State.skipped:
            self._ran += 1
            self._record.add(job, result, values)

    @property
    def done(self) -> bool:
        return not self._waiting or self._ran + len(self._asked) >= self._budget

    def summary(self) -> list[str]:
        return [f"optuna: {self._ran} of {self._grid} trials; {self._record.told()}"]

    def _proposed(self) -> tuple[Job, "Trial"]:
        for _ in range(PROPOSALS):
            trial = self._study.ask(self._space.distributions)
            job = self._space.job(trial.params, self._waiting)
            if job is not None:
                return job, trial
            self._forget(trial)
        return self._again(next(iter(self._waiting.values())))

    def _again(self, job: Job) -> tuple[Job, "Trial"]:
        """A trial of a job that Optuna did not choose."""
        self._study.enqueue_trial(self._space.params(job))
        return job, self._study.ask(self._space.distributions)

    def _forget(self, trial: "Trial") -> None:
        from optuna.trial import TrialState

        self._study.tell(trial, state=TrialState.FAIL)  # which the sampler does not look at


def objectives(job: Job, result: Result) -> tuple[float, float]:
    """Tokens per second and GiB, or the worst of both for a trial that has not both."""
    memory = "peak_allocated_gib" if job.placement.machine.device == "gpu" else "host_peak_gib"
    speed, gib = result.metrics.get("tokens_per_second"), result.metrics.get(memory)
    return (float(speed), float(gib)) if result.state is State.complete and speed and gib else WORST


class Space:
    """The swept keys and their values: numbers in their order, words without one."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        given = [values_of(job.overrides) for job in jobs]
        keys = swept_keys(given)
        self.values = {key: in_order({values.get(key, "") for values in given}) for key in keys}
        self.distributions: dict[str, BaseDistribution] = {
            # A number by its place, so that 1, 2, 4, 8 are as far from each other as they are meant.
            key: IntDistribution(0, len(values) - 1) if is_numeric(values) else CategoricalDistribution(values)
            for key, values in self.values.items()
        }
        self._given = {job.name: values for job, values in zip(jobs, given, strict=True)}
        self._names = {self._point(values): job.name for job, values in zip(jobs, given, strict=True)}

    def _point(self, values: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(values.get(key, "") for key in self.values)

    def given(self, job: Job) -> dict[str, str]:
        """The swept values of a job, as in its overrides."""
        return dict(zip(self.values, self._point(self._given[job.name]), strict=True))

    def params(self, job: Job) -> dict[str, Any]:
        """A job as Optuna would propose it."""
        return {
            key: self.values[key].index(value) if is_numeric(self.values[key]) else value
            for key, value in self.given(job).items()
        }

    def job(self, params: Mapping[str, Any], among: Mapping[str, Job]) -> Job | None:
        """The job that Optuna has proposed; None if it is not among those."""
        values = {key: self.values[key][value] if isinstance(value, int) else value for key, value in params.items()}
        return among.get(self._names.get(self._point(values), ""))


def number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_numeric(values: Sequence[str]) -> bool:
    return all(number(value) is not None for value in values)


def in_order(values: Iterable[str]) -> list[str]:
    """Ascending if all are numbers, else by the alphabet."""
    words = sorted(values)
    return sorted(words, key=float) if is_numeric(words) else words


def sampling_study(seed: int) -> "Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that Optuna calls experimental
        # Trials that run side by side count as poor until they are told, so that no two ask the same.
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        return optuna.create_study(directions=DIRECTIONS, sampler=sampler)


class Record:
    """``optuna.db``: the trials that ran, for optuna-dashboard. What it holds is not read back: the truth is ``result.json``.

    A study a grid: Optuna wants the same values of a parameter in all trials of a study. A database that cannot be written (a
    full disk) does not end a sweep.
    """

    def __init__(self, path: Path, space: Space) -> None:
        self._url = f"sqlite:///{path}"
        self._space = space
        self._trouble = ""
        self._study: Study | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._kept():
            self._study = recording_study(self._url, space)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trouble = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            self._study = None

    def add(self, job: Job, result: Result, values: tuple[float, float]) -> None:
        if self._study is None:
            return
        with self._kept():
            there = {(trial.user_attrs.get("trial"), tuple(trial.values)) for trial in self._study.get_trials(deepcopy=False)}
            if (job.name, values) not in there:
                told = {"trial": job.name, "state": result.state.value}
                self._study.add_trial(recorded(self._space, self._space.given(job), values, told))

    def told(self) -> str:
        """Where the trials are shown, or why not."""
        if self._trouble:
            return f"{STORAGE} was not written: {self._trouble}"
        return f"optuna-dashboard {self._url} shows them"


def recording_study(url: str, space: Space) -> "Study":
    import optuna

    digest = hashlib.sha256(json.dumps(space.values).encode()).hexdigest()[:8]
    study = optuna.create_study(directions=DIRECTIONS, storage=url, study_name=f"grid-{digest}", load_if_exists=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.set_metric_names(["tokens_per_second", "memory_gib"])
    return study


def recorded(
    space: Space, given: Mapping[str, str], values: tuple[float, float], attributes: Mapping[str, str]
) -> "FrozenTrial":
    """A finished trial with its values as they are, numbers as numbers."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.trial import create_trial

    distributions: dict[str, BaseDistribution] = {}
    params: dict[str, Any] = {}
    for key, value in given.items():
        choices = space.values[key]
        if is_numeric(choices):
            distributions[key], params[key] = FloatDistribution(float(choices[0]), float(choices[-1])), float(value)
        else:
            distributions[key], params[key] = CategoricalDistribution(choices), value
    return create_trial(params=params, distributions=distributions, values=values, user_attrs=dict(attributes))
