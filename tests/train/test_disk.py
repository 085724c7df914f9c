"""The room that a run needs is told beforehand, as it turns out to be."""

from pathlib import Path

import pytest
from worker_trials import RunTrial  # type: ignore[import-not-found]

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.train.checkpoint import disk
from glmexp.trial import saved

TINY = ("model=tiny", "data.max_length=32", "train.max_steps=2", "checkpoint.every=2")
STORED = [
    ("zero=stage0", "precision=fp32"),
    ("zero=stage0", "precision=bf16"),
    ("zero=stage2", "precision=fp32"),
    ("zero=stage2", "precision=bf16"),
    ("zero=stage3", "precision=bf16"),
    ("zero=stage2", "precision=bf16", "method=lora", "method.rank=64"),
]
STORED_TOO = [
    ("zero=stage1", "precision=bf16", "precision.grad_accum_dtype=fp32"),
    ("zero=stage2", "precision=bf16_states"),
    ("zero=stage3", "precision=fp32"),
    ("zero=stage2", "precision=bf16", "optimizer=muon"),
    ("zero=stage3", "precision=bf16", "method=ptuning_v2"),
    ("zero=stage2", "precision=bf16", "method=freeze"),
]


def measured(run_trial: RunTrial, overrides: tuple[str, ...]) -> None:
    ran = run_trial("ran", *TINY, *overrides).ok()
    found = sum(path.stat().st_size for path in (ran.folder / saved.FOLDER / saved.tag(2)).iterdir())
    told = disk.checkpoint_bytes(ran.config, disk.size_of(ran.config))
    assert found <= told <= 1.06 * found + disk.HEADERS, (found, told)
    written = sum(path.stat().st_size for path in (ran.folder / "export").glob("*.safetensors"))
    exported = disk.export_bytes(ran.config, disk.size_of(ran.config))
    assert written <= exported <= 1.06 * written, (written, exported)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", STORED + STORED_TOO, ids=" ".join)
def test_estimates_are_what_is_written(run_trial: RunTrial, overrides: tuple[str, ...]) -> None:
    measured(run_trial, overrides)


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["checkpoint.every=10", "checkpoint.keep=2"], 3),
        (["checkpoint.every=60", "checkpoint.keep=5"], 1),
        (["checkpoint.every=10", "checkpoint.keep=2", "checkpoint.best=loss", "data.eval_share=0.1"], 4),
        (["train.stop_after=5"], 1),
        (["train.resume=auto"], 1),
        ([], 0),
    ],
)
def test_as_many_as_lie_there_at_once(overrides: list[str], count: int) -> None:
    assert disk.most_checkpoints(compose([*overrides, "train.max_steps=100"]).config, 100) == count


def test_too_small_a_disk_is_refused_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["model=tiny", "zero=stage2", "checkpoint.every=2", "checkpoint.keep=4"]).config
    size = disk.size_of(config)
    needed = 5 * disk.checkpoint_bytes(config, size) + disk.export_bytes(config, size)

    def has(free: int) -> None:
        monkeypatch.setattr(disk.os, "statvfs", lambda path: type("disk", (), {"f_bavail": free, "f_frsize": 1})())

    has(needed)
    disk.check_room(config, tmp_path, 100)
    has(needed - 1)
    with pytest.raises(UserError) as refused:
        disk.check_room(config, tmp_path, 100)
    for words in (f"{needed / 1e9:.3g} GB", "5 checkpoints", "checkpoint.keep", "train.save_weights=false", "hydra.run.dir"):
        assert words in str(refused.value), refused.value
