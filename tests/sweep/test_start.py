"""What a sweep says before its first trial, and what it refuses then."""

import signal

import pytest

from tests.sweep.sweeps import Sweep, ended


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep.slots=0", "sweep.time_budget_minutes=-1"], ["sweep.slots=0: must be", "sweep.time_budget_minutes=-1"]),
        (["sweep.gpu_memory_gib=${oc.env:NOWHERE_SET}"], ["NOWHERE_SET"]),
        (["zero=stage0", "offload=cpu"], ["offload=cpu needs", "all 3 trials"]),
        (["hydra.mode=RUN"], ["hydra.mode=RUN and a sweep"]),
        (["data.path=absent.jsonl"], ["absent.jsonl is not there", "all 3 trials"]),
    ],
)
def test_what_is_wrong_with_the_whole_sweep_is_said_once(tmp_path, arguments, words):
    sweep = Sweep(tmp_path, "task=check", "train.seed=1,2,3", *arguments)
    code, said = sweep.run()
    assert code == 2, said
    assert all(said.count(text) == 1 for text in words), said
    assert len(said.splitlines()) <= 6
    assert not sweep.folder.exists()


def test_a_refusal_leaves_earlier_trials_alone(tmp_path):
    sweep = Sweep(tmp_path, "task=check", "train.seed=1,2")
    assert sweep.run()[0] == 0
    stamps = sweep.stamps
    assert sweep.resume("zero=stage0", "offload=cpu")[0] == 2
    assert sweep.stamps == stamps
    code, said = sweep.resume("train.grad_clip=0.5")
    assert code == 0, said
    assert "2 earlier trials in this folder are not of this grid (train.grad_clip=1.0 there, 0.5 now)" in said


def test_ctrl_c_while_trials_are_composed(tmp_path):
    sweep = Sweep(tmp_path, "task=check", "train.seed=range(0,200)")
    process = sweep.start()
    assert process.stdout.readline() == "composing 200 trials\n"
    code, said = ended(process, signal.SIGINT, timeout=5)
    assert (code, said) == (130, "")
    assert not sweep.folder.exists()
