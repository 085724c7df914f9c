"""Freezing under DeepSpeed: the numbers of plain PyTorch at every stage, and a whole model as export."""

import re
from pathlib import Path

import pytest
import torch
from worker_trials import MOVING, Plain, RunTrial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.models import build_model, load_model

FREEZE = [*MOVING, "method=freeze", "method.last_layers=1", "method.trainable=['lm_head.*']", "batch.total=8"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return train_plainly(write_trial(tmp_path_factory.mktemp("freeze") / "plain", FREEZE))


@pytest.mark.parametrize(
    ("stage", "ranks", "activation"),
    [
        (3, 2, "checkpoint"),
        pytest.param(0, 2, "none", marks=pytest.mark.slow),
        pytest.param(1, 2, "checkpoint", marks=pytest.mark.slow),
        pytest.param(2, 2, "none", marks=pytest.mark.slow),
    ],
)
def test_every_stage_equals_plain_pytorch(run_trial: RunTrial, plain: Plain, stage: int, ranks: int, activation: str) -> None:
    extra = ["zero.stage3_param_persistence_threshold=0"] if stage == 3 else []
    options = [f"zero=stage{stage}", *extra, f"activation={activation}", "batch.micro=2", "train.save_weights=true"]
    trial = run_trial("trial", *FREEZE, *options, ranks=ranks).ok()
    assert plain.losses[0] - plain.losses[-1] > 0.05
    assert trial.losses == pytest.approx(plain.losses, abs=5e-4)
    assert trial.norms == pytest.approx(plain.norms, rel=2e-3)
    check_export(trial.folder / "export", plain, trial.config.model)
    trained = {name: p.numel() for name, p in plain.model.named_parameters() if p.requires_grad}
    (told,) = re.findall("trainable parameters: ([\\d,]+) of", trial.log)
    assert int(told.replace(",", "")) == sum(trained.values())


def check_export(export: Path, plain: Plain, model: object) -> None:
    """It is a whole model: what is frozen as it was, the rest as plain PyTorch trained it."""
    before = dict(build_model(model, torch.float32, "eager", 42, torch.device("cpu")).named_parameters())
    after = dict(load_model(export).named_parameters())
    assert after.keys() == before.keys()
    for name, parameter in plain.model.named_parameters():
        if parameter.requires_grad:
            assert not torch.equal(after[name], before[name]), name
            torch.testing.assert_close(after[name], parameter, atol=2e-3, rtol=1e-3)
        else:
            assert torch.equal(after[name], before[name]), name
