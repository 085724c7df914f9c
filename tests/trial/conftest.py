"""A config, a placement and an environment for runs of the stand-in worker."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from glmexp.config import Composed, compose
from glmexp.dsconfig import Machine
from glmexp.trial.launcher import cleaned
from glmexp.trial.placement import Placement
from glmexp.trial.result import Result
from glmexp.trial.run import run_trial

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def composed() -> Composed:
    return compose(["model=tiny", "launch.device=cpu", "tracker=none"])


def stand_in_environ(deeds: Mapping[int, str] | None = None, **more: str) -> dict[str, str]:
    """An environment in which ``stand_in`` can be imported and every rank knows what to do."""
    root = HERE.parent.parent
    return {
        **cleaned(os.environ),
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, root))),
        "STAND_IN": json.dumps({str(rank): deed for rank, deed in (deeds or {}).items()}),
        **more,
    }


@pytest.fixture
def environ() -> Callable[..., dict[str, str]]:
    return stand_in_environ


@pytest.fixture
def place() -> Callable[..., Placement]:
    return lambda ranks=1: Placement(Machine(ranks, "cpu"), ranks, cpus=2, device_name="a processor")


@pytest.fixture
def run(composed: Composed, tmp_path: Path, place: Callable[..., Placement]) -> Callable[..., Result]:
    """Runs the stand-in worker: ``run({0: "oom"}, ranks=2)``; its folder is ``tmp_path / "run"``."""

    def start(deeds: Mapping[int, str] | None = None, ranks: int = 1, overrides: tuple[str, ...] = (), **more: str) -> Result:
        chosen = compose(["model=tiny", "launch.device=cpu", "tracker=none", *overrides]) if overrides else composed
        environ = stand_in_environ(deeds, **more)
        return run_trial(chosen, tmp_path / "run", overrides, place(ranks), environ=environ, worker="stand_in")

    return start
