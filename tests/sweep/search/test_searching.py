"""Searches from the command line to the folder, on trials that do nothing but end as planted."""

import re

import pytest

from tests.faults import plant
from tests.sweep.sweeps import COUNT, LIGHT, Sweep

BY_MICRO = """

def planned(stage, seed, micro):
    return "oom" if micro > LIMITS[stage] else None
"""


def sweep(root, limits, *arguments):
    """A sweep on a machine where a stage takes micro batches up to its limit."""
    made = Sweep(root, "sweep.warm_start=false", *arguments)  # such trials import no torch
    plant(root / "hooks", f"COUNTER = {str(made.counter)!r}\nLIMITS = {limits!r}\n{COUNT}{BY_MICRO}{LIGHT}")
    return made


def micro_batches(names, stage):
    """The micro batches of the trials of a stage, ascending."""
    found = (re.match(rf"zero-stage{stage}_micro-(\d+)-", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


@pytest.mark.slow
def test_what_must_run_out_of_memory_has_a_row_and_no_run(tmp_path):
    made = sweep(tmp_path, {1: 2, 2: 16}, "zero=stage1,stage2", "batch.micro=16,8,4,2,1", "sweep.order=cheap_first")
    code, said = made.run()
    assert code == 0, said
    assert made.states == {"complete": 7, "oom": 1, "skipped": 2}
    assert micro_batches(made.ran, 1) == [1, 2, 4]
    assert micro_batches(made.ran, 2) == [1, 2, 4, 8, 16]
    skipped = {name: result["reason"] for name, result in made.results.items() if result["state"] == "skipped"}
    assert micro_batches(skipped, 1) == [8, 16]
    ended = next(name for name, result in made.results.items() if result["state"] == "oom")
    assert set(skipped.values()) == {f"batch.micro=4 ran out of GPU memory with all else equal (trial {ended})"}


def test_the_largest_batch_is_found_and_a_second_look_costs_nothing(tmp_path):
    made = sweep(
        tmp_path, {1: 4, 2: 32, 3: 0}, "sweep=max_batch", "zero=stage1,stage2,stage3", "offload=none", "batch.total=32"
    )
    for _ in range(2):
        code, said = made.run("sweep.resume=true")
        assert code == 0, said
        assert "zero-stage1: batch.micro=4 is the largest that fits (batch.total=32); batch.micro=8 runs out" in said
        assert "zero-stage2: batch.micro=32 is the largest that fits (batch.total=32)\n" in said
        assert "zero-stage3: none fits (batch.total=32); batch.micro=1 runs out of GPU memory" in said
    assert set(made.ran.values()) == {1}
    assert all(len(micro_batches(made.ran, stage)) <= 3 for stage in (1, 2, 3))
    assert sum("batch.micro=32" in row["overrides"] for row in made.rows()) == 1


@pytest.mark.slow
def test_optuna_goes_on_where_it_was(tmp_path):
    optuna = pytest.importorskip("optuna")
    made = sweep(
        tmp_path,
        {1: 4, 2: 8, 3: 16},
        *("zero=stage1,stage2,stage3", "batch.micro=1,2,4,8,16", "sweep.search=optuna", "sweep.slots=2"),
    )
    code, said = made.run("sweep.trials=4")
    assert code == 0, said
    assert f"optuna: 4 of 15 trials; optuna-dashboard sqlite:///{made.folder}/optuna.db shows them" in said
    code, said = made.resume("sweep.trials=7")
    assert code == 0, said
    assert set(made.ran.values()) == {1}
    assert len(made.ran) == len(made.results) == 7
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{made.folder}/optuna.db")
    assert study.n_trials == 7
