"""A trial that is tried again goes on from its own checkpoint where that was asked for."""

import json

import pytest

from glmexp.config import compose
from glmexp.dsconfig import Machine, build
from glmexp.sweep import execute as executing
from glmexp.sweep.execute import Surroundings, execute
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.jobs import Job
from glmexp.trial.placement import Placement
from glmexp.trial.record import State
from glmexp.trial.result import Result, write_result
from glmexp.trial.starter import COLD

PLACEMENT = Placement(Machine(1, "cpu"), 1)


def result(state):
    return Result(state, "", [], "0" * 16, 1, {}, None, {}, {}, {})


@pytest.mark.parametrize(
    ("overrides", "checkpoint", "going_on"),
    [(["train.resume=auto"], True, True), (["train.resume=auto"], False, False), ([], True, False)],
)
def test_a_trial_tried_again(tmp_path, monkeypatch, overrides, checkpoint, going_on):
    composed = compose(["model=tiny", "launch.device=cpu", "checkpoint.every=1", *overrides])
    job = Job(1, (), "trial", composed, PLACEMENT, build(composed.config, PLACEMENT.machine), "0" * 16)
    sweep = SweepFolder(tmp_path)
    folder = tmp_path / job.name
    folder.mkdir()
    write_result(result(State.killed), folder)
    if checkpoint:
        saved = folder / "checkpoints" / "step-000002"
        saved.mkdir(parents=True)
        (saved / "state.json").write_text(json.dumps({"step": 2, "files": {}}))
    calls = []

    def run_trial(composed, folder, overrides, placement, **how):
        calls.append((folder, how["going_on"], sorted(path.name for path in folder.iterdir())))
        write_result(result(State.complete), folder)
        return result(State.complete)

    monkeypatch.setattr(executing, "run_trial", run_trial)
    assert execute(job, sweep, Surroundings(PLACEMENT, {}, COLD)).state is State.complete
    there = ["checkpoints", "result.json"] if going_on else ["attempt1"]
    assert calls == [(folder, going_on, there)]
