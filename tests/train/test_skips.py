"""Gradients and losses that are not finite: skipped, recorded, and in the end given up with a reason."""

import pytest
from worker_trials import MOVING, RunTrial  # type: ignore[import-not-found]

from glmexp.trial.record import State

FP16 = {"TEST_FP16": "1"}
SCALED = [*MOVING, "precision=fp16", "batch.micro=4"]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_overflow_is_a_skipped_step(run_trial: RunTrial, stage: int) -> None:
    trial = run_trial(
        "trial", *SCALED, f"zero=stage{stage}", "scaler.initial_scale_power=21", "scaler.hysteresis=1", extra=FP16
    ).ok()
    skipped = [line for line in trial.metrics if line["skipped"]]
    applied = [line for line in trial.metrics if not line["skipped"]]
    assert trial.metrics[0]["skipped"]
    assert applied
    assert all(line["grad_norm"] is None for line in skipped)
    assert all(line["grad_norm"] > 0 for line in applied)
    scales = [line["loss_scale"] for line in trial.metrics]
    assert scales[0] == 2**21
    assert scales[1] == scales[0] / 2
    assert trial.record().metrics["skipped_steps"] == len(skipped)
    assert trial.log.count("normal at the start") == len(skipped)
    assert "OVERFLOW" not in trial.log
    # The schedule moves with applied steps only.
    assert trial.metrics[len(skipped)]["lr"] == trial.metrics[0]["lr"]


def test_the_scale_at_its_floor_ends_the_run(run_trial: RunTrial) -> None:
    floor = ["scaler.initial_scale_power=24", "scaler.min_loss_scale=4194304", "scaler.hysteresis=1"]
    trial = run_trial("trial", *SCALED, "zero=stage2", *floor, extra={**FP16, "TEST_FAULT": "gradient:0"})
    record = trial.record()
    assert (trial.codes, record.outcome) == ([1], State.diverged)
    for word in ("step 3", "4.1943e+06", "3 steps in a row", "precision=bf16", "optimizer.lr"):
        assert word in record.error, record.error
    assert [line["skipped"] for line in trial.metrics] == [True, True]


def test_a_static_scale_is_given_up_after_ten(run_trial: RunTrial) -> None:
    static = ["scaler=static", "train.max_steps=20"]
    trial = run_trial("trial", *SCALED, "zero=stage1", *static, extra={**FP16, "TEST_FAULT": "gradient:0"})
    assert trial.record().outcome is State.diverged
    assert len(trial.metrics) == 10
    assert "static" in trial.record().error


@pytest.mark.parametrize("stage", [0, 2])
def test_fp32_gradients_that_are_not_finite_leave_the_weights_alone(run_trial: RunTrial, stage: int) -> None:
    overrides = [*MOVING, f"zero=stage{stage}", "batch.micro=8"]
    trial = run_trial("bad", *overrides, extra={"TEST_FAULT": "gradient:2"}).ok()
    assert [line["skipped"] for line in trial.metrics] == [False, True] + [False] * 6
    assert trial.metrics[1]["grad_norm"] is None
    healthy = run_trial("healthy", *overrides, "train.max_steps=2").ok()
    assert trial.losses[:2] == pytest.approx(healthy.losses, abs=1e-6)
    assert trial.losses[-1] < trial.losses[1] - 0.2


@pytest.mark.parametrize("stage", [0, 3])
def test_ten_bad_steps_in_a_row_are_enough(run_trial: RunTrial, stage: int) -> None:
    overrides = [*MOVING, f"zero=stage{stage}", "batch.micro=2", "train.max_steps=30", "train.save_weights=true"]
    trial = run_trial("trial", *overrides, extra={"TEST_FAULT": "gradient:0"})
    assert trial.record().outcome is State.diverged
    assert "10 steps in a row" in trial.record().error
    assert not (trial.folder / "export").exists()


def test_a_loss_that_is_not_finite_ends_the_run_on_all_ranks(run_trial: RunTrial) -> None:
    overrides = [*MOVING, "zero=stage0", "batch.micro=4", "train.save_weights=true"]
    trial = run_trial("trial", *overrides, ranks=2, extra={"TEST_FAULT": "loss:3:1"})
    assert trial.codes == [1, 1]
    for rank in (0, 1):
        assert trial.record(rank).outcome is State.diverged
        assert "step 3" in trial.record(rank).error
    assert len(trial.metrics) == 2
    assert not (trial.folder / "export").exists()


def test_a_huge_learning_rate_diverges(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *MOVING, "zero=stage0", "batch.micro=4", "optimizer.lr=1e25", "train.grad_clip=null")
    assert trial.record().outcome is State.diverged
    assert "optimizer.lr" in trial.record().error
    assert "train.grad_clip" in trial.record().error


def test_bf16_norms_agree_between_stages(run_trial: RunTrial) -> None:
    overrides = [*MOVING, "precision=bf16", "batch.micro=4", "train.max_steps=3", "train.grad_clip=1e-6"]
    norms = [run_trial(f"stage{stage}", *overrides, f"zero=stage{stage}").ok().norms for stage in (0, 1, 3)]
    assert norms[0] == pytest.approx(norms[1], rel=0.02)
    assert norms[0] == pytest.approx(norms[2], rel=0.02)
    assert min(norms[0]) > 0.1  # before clipping to 1e-6
