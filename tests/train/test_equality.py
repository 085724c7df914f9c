"""ZeRO stages, ranks, accumulation, offload and checkpointing change speed and memory, and no number."""

import pytest
from worker_trials import MOVING, Plain, RunTrial, train_plainly, write_trial  # type: ignore[import-not-found]

CLOSE = 5e-4


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """The same training in plain PyTorch: one global batch of 8 at a time, the mean over its target tokens, AdamW, clipping."""
    folder = write_trial(tmp_path_factory.mktemp("plain") / "plain", MOVING)
    return train_plainly(folder)


def same(trial: list[float], reference: list[float], relative: float = 0.0, absolute: float = CLOSE) -> None:
    assert trial == pytest.approx(reference, abs=absolute, rel=relative)


PARTITION_ALL = "zero.stage3_param_persistence_threshold=0"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_stage_equals_plain_pytorch(run_trial: RunTrial, plain: Plain, stage: int, ranks: int) -> None:
    extra = [PARTITION_ALL] if stage == 3 else []
    trial = run_trial("trial", *MOVING, f"zero=stage{stage}", "batch.total=8", "batch.micro=2", *extra, ranks=ranks).ok()
    assert plain.losses[0] - plain.losses[-1] > 0.3
    assert "8 optimizer steps over 24 samples (2.67 epochs)" in trial.log
    same(trial.losses, plain.losses)
    same(trial.norms, plain.norms, relative=2e-3)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_activation_checkpointing_changes_no_number(run_trial: RunTrial, plain: Plain, stage: int) -> None:
    trial = run_trial("trial", *MOVING, f"zero=stage{stage}", "activation=checkpoint", "batch.micro=8").ok()
    same(trial.losses, plain.losses)
    same(trial.norms, plain.norms, relative=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "offload"), [(1, "cpu"), (2, "cpu"), (3, "cpu"), (3, "cpu_all")])
def test_offload_changes_no_number(run_trial: RunTrial, plain: Plain, stage: int, offload: str) -> None:
    trial = run_trial("trial", *MOVING, f"zero=stage{stage}", f"offload={offload}", "batch.micro=4", "batch.total=8").ok()
    assert "DeepSpeedCPUAdam" in trial.log
    same(trial.losses, plain.losses)
    same(trial.norms, plain.norms, relative=2e-3)
