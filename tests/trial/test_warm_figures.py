"""A warm run measures what a cold one does."""

import json
import os
import re

import pytest

from glmexp.config import compose
from glmexp.trial.launcher import cleaned
from glmexp.trial.placement import resolve
from glmexp.trial.record import State
from glmexp.trial.run import run_trial
from glmexp.trial.starter import COLD
from glmexp.trial.warm import WarmStarter
from tests.trial.test_starter import servers_of

SHORT = ("model=tiny", "launch.device=cpu", "tracker=none", "train.max_steps=4", "data.max_length=64")


@pytest.fixture(scope="module")
def warm():
    warnings = []
    with WarmStarter(warnings.append) as starter:
        yield starter
        (server,) = servers_of(os.getpid(), name=b"glmexp.train.server")
        assert len(os.listdir(f"/proc/{server}/task")) == 1, "a thread would not survive a fork"
    assert warnings == []


def losses(folder):
    """What decides a step, to the last bit."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"], row["lr"], row["tokens"]) for row in rows]


def log(folder):
    """The log without the time of the day and the folder's name."""
    text = (folder / "train.log").read_text().replace(str(folder), "FOLDER")
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in text.splitlines()]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("launch.ranks=1", "method=lora", "zero=stage1"), id="one rank, LoRA"),
        pytest.param(
            ("launch.ranks=2", "zero=stage3", "train.save_weights=false"), id="two ranks, stage 3", marks=pytest.mark.slow
        ),
    ],
)
def test_the_figures_are_those_of_a_cold_run(warm, tmp_path, overrides):
    composed = compose([*SHORT, *overrides])
    environ = {**cleaned(os.environ), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environ.pop("PYTEST_CURRENT_TEST")
    placement = resolve(composed.config, environ)
    results = {}
    for name, starter in {"cold": COLD, "warm": warm, "again": warm}.items():
        result = run_trial(composed, tmp_path / name, [], placement, environ=environ, starter=starter)
        assert result.state is State.complete, result.reason
        results[name] = result
    assert len(losses(tmp_path / "cold")) == 4
    assert losses(tmp_path / "warm") == losses(tmp_path / "again") == losses(tmp_path / "cold")
    assert log(tmp_path / "warm") == log(tmp_path / "cold")
    # A forked rank starts with what its server holds resident, which is what a cold one has imported when it trains.
    peaks = [results[name].metrics["host_peak_gib"] for name in ("cold", "warm")]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.35), peaks
