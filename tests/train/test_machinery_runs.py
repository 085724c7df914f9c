"""Options of the newer machinery train on the CPU, and equal the plain run wherever they only move memory or work."""

from collections.abc import Callable

import pytest
from worker_trials import MOVING, RunTrial, Trial  # type: ignore[import-not-found]

from glmexp.train.schedule import lr_at

BATCH = ["batch.micro=2", "batch.total=8"]
PARTITION_ALL = ["zero=stage3", "zero.stage3_param_persistence_threshold=0"]
Run = Callable[..., Trial]


def stage(number: int) -> list[str]:
    return PARTITION_ALL if number == 3 else [f"zero=stage{number}"]


def near(trial: Trial, reference: Trial, relative: float) -> None:
    assert trial.losses == pytest.approx(reference.losses, rel=relative)
    assert trial.losses[0] - trial.losses[-1] > 0.3
    assert all(norm is not None for norm in trial.norms)


@pytest.fixture
def run(run_trial: RunTrial) -> Run:
    def trial(name: str, *overrides: str, **options: object) -> Trial:
        return run_trial(name, *MOVING, *BATCH, *overrides, **options).ok()

    return trial


@pytest.mark.parametrize(("number", "ranks"), [(0, 1), (3, 2)])
def test_autocast_is_fp32_but_for_the_products(run: Run, number: int, ranks: int) -> None:
    trial = run("autocast", "precision=autocast", *stage(number), ranks=ranks)
    plain = run("fp32", *stage(number), ranks=ranks)
    near(trial, plain, relative=5e-3)
    assert trial.losses != plain.losses
    assert trial.norms == pytest.approx(plain.norms, rel=3e-2)


@pytest.mark.parametrize("number", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_everything_in_bf16_is_close_to_fp32_states(run: Run, number: int) -> None:
    trial = run("states", "precision=bf16_states", *stage(number))
    plain = run("bf16", "precision=bf16", *stage(number))
    near(trial, plain, relative=2e-2)
    assert trial.losses[2:] != plain.losses[2:]  # its first update is rounded to bf16 and is the same all the same


@pytest.mark.parametrize(("number", "ranks"), [pytest.param(2, 1, marks=pytest.mark.slow), (3, 2)])
def test_muon_is_the_same_at_every_stage(run: Run, number: int, ranks: int) -> None:
    muon = ["optimizer=muon", "train.grad_clip=null"]
    scatter = ["zero.reduce_scatter=false"] if number == 3 else []
    trial = run("muon", *muon, *stage(number), *scatter, ranks=ranks)
    near(trial, run("unsharded", *muon, "zero=stage0"), relative=1e-4)
    assert "MuonWithAuxAdam" in trial.log


def test_a_copy_of_the_weights_in_each_half_of_the_ranks_changes_no_number(run: Run) -> None:
    trial = run("hpz", *PARTITION_ALL, "zero.zero_hpz_partition_size=2", "batch.micro=1", ranks=4)
    near(trial, run("plain", "zero=stage2"), relative=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "number"), [("bf16_states", 2), ("bf16_states", 3), ("autocast", 2), ("autocast", 3)])
def test_offload_goes_with_each_precision(run: Run, precision: str, number: int) -> None:
    offloaded = run("offloaded", f"precision={precision}", "offload=cpu", *stage(number))
    near(offloaded, run("kept", f"precision={precision}", *stage(number)), relative=1e-2)
    assert "DeepSpeedCPUAdam" in offloaded.log


@pytest.mark.slow
@pytest.mark.parametrize(("number", "offload"), [(1, "cpu"), (2, "cpu"), (3, "cpu_all")])
def test_offload_changes_no_number_of_muon(run: Run, number: int, offload: str) -> None:
    muon = ["optimizer=muon", "train.grad_clip=null", *stage(number), *(["zero.reduce_scatter=false"] if number == 3 else [])]
    near(run("offloaded", *muon, f"offload={offload}"), run("kept", *muon), relative=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "ranks"), [(1, 1), (2, 1), (2, 2)])
def test_zenflow_that_only_warms_up_is_plain_offload(run: Run, number: int, ranks: int) -> None:
    """The whole gradient is applied then, so that any weight that is not where it belongs shows."""
    whole = [f"batch.micro={8 // ranks}", f"zero=stage{number}", "offload=zenflow", "offload.zenflow.update_interval=1"]
    trial = run("zenflow", *whole, "offload.zenflow.full_warm_up_rounds=100", ranks=ranks)
    near(trial, run("offload", f"zero=stage{number}", "offload=cpu"), relative=1e-4)
    assert "ZenFlowCPUAdam" in trial.log


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
def test_zenflow_trains_and_keeps_to_the_schedule(run: Run, overlap: str) -> None:
    trial = run("zenflow", "zero=stage2", "offload=zenflow", f"offload.zenflow.overlap_step={overlap}")
    assert trial.losses[0] - trial.losses[-1] > 1.0
    scheduler = trial.config.scheduler
    assert [line["lr"] for line in trial.metrics] == pytest.approx([lr_at(step, 8, 1e-3, scheduler) for step in range(1, 9)])
