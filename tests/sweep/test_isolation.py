"""Nothing of one trial reaches another: figures are the same alone and in a sweep, and each log has its own lines."""

import json

import pytest

from tests.sweep.sweeps import Sweep

TRAIN = ("model=tiny", "launch.device=cpu", "train.max_steps=2", "train.save_weights=false", "data.max_length=32")


def losses(folder):
    """To the last bit."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    return [(row["loss"], row["grad_norm"]) for row in rows]


def swept(root, *arguments, name="s"):
    """Option of zero -> the folder of its trial, after a sweep."""
    sweep = Sweep(root, *TRAIN, "task=train", *arguments, real=True, name=name)
    code, said = sweep.run()
    assert code == 0, said
    return {folder.split("_")[0].split("-")[1]: sweep.folder / folder for folder in sweep.results}


def alone(glmexp, *arguments):
    """The folder of a run of its own."""
    name = arguments[0].replace("=", "-")
    ran = glmexp("train", *TRAIN, *arguments, f"hydra.run.dir=alone/{name}", env={"OMP_NUM_THREADS": "1"})
    assert ran.code == 0, ran.err
    return ran.folder / "alone" / name


@pytest.mark.slow
def test_a_trial_after_a_stage_3_trial_is_as_if_alone(tmp_path, glmexp):
    folders = swept(tmp_path, "zero=stage3,stage0")
    assert losses(folders["stage0"]) == losses(alone(glmexp, "zero=stage0"))
    for folder in folders.values():
        lines = (folder / "train.log").read_text().splitlines()
        assert len([line for line in lines if " samples a step" in line]) == 1
        assert len([line for line in lines if "ZeRO stage" in line or "optimizer: " in line]) == 1
        assert len(lines) == len(set(lines)), "a line came twice"
    assert "ZeRO stage 3" in (folders["stage3"] / "train.log").read_text()
    assert "stage 3" not in (folders["stage0"] / "train.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("warm", ["true", "false"], ids=["warm", "cold"])
def test_figures_do_not_depend_on_the_place_in_the_sweep(tmp_path, glmexp, warm):
    more = (f"sweep.warm_start={warm}", "launch.ranks=2")
    first = swept(tmp_path, "zero=stage3,stage0,stage2", *more)
    last = swept(tmp_path, "zero=stage2,stage0,stage3", *more, name="t")
    peaks = {}
    for stage in ("stage0", "stage2", "stage3"):
        single = alone(glmexp, f"zero={stage}", "launch.ranks=2")
        assert losses(first[stage]) == losses(last[stage]) == losses(single)
        peaks[stage] = [
            json.loads((folder / "result.json").read_text())["metrics"]["host_peak_gib"]
            for folder in (first[stage], last[stage], single)
        ]
    for found in peaks.values():
        assert max(found[:2]) < 1.1 * min(found[:2]), peaks
        assert max(found) < 1.3 * min(found), peaks
