"""A run that goes on from a checkpoint is the run that was left alone: losses, lr, master weights and moments, to the bit."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_trials import RunTrial, Trial  # type: ignore[import-not-found]

from glmexp.train.checkpoint_files import Contents, trained_weights
from glmexp.trial import saved
from glmexp.trial.record import State

TINY = (
    "model=tiny", "data.max_length=48", "optimizer.lr=1e-3", "scheduler.warmup_steps=1", "train.save_weights=false",
    "train.max_steps=4", "train.grad_clip=0.5",
)  # fmt: skip
PARTS = ("zero.stage3_param_persistence_threshold=0",)
"""Tiny tensors are really partitioned."""

DROPPING = ("method=lora", "method.rank=4", "method.dropout=0.3")
NARROW = ("zero.sub_group_size=100000", *PARTS)
EXACT = [
    ("zero=stage0", "precision=fp32"),
    ("zero=stage0", "precision=bf16"),
    ("zero=stage2", "precision=bf16"),
    ("zero=stage3", "precision=bf16", *NARROW),
    ("zero=stage2", "precision=fp32", "batch.accumulation=2", *DROPPING),
]
EXACT_TOO = [
    ("zero=stage0", "precision=autocast"),
    ("zero=stage1", "precision=bf16"),
    ("zero=stage1", "precision=bf16", "precision.grad_accum_dtype=fp32"),
    ("zero=stage2", "precision=autocast"),
    ("zero=stage2", "precision=bf16_states"),
    ("zero=stage3", "precision=bf16_states"),
    ("zero=stage3", "precision=fp32", *PARTS),
    ("zero=stage3", "precision=bf16", *DROPPING, *PARTS),
    ("zero=stage3", "precision=bf16", "method=ptuning_v2", "method.dropout=0.2", *PARTS),
    ("zero=stage2", "precision=bf16", "offload=cpu"),
    ("zero=stage3", "precision=bf16", "offload=cpu_all", *NARROW),
    ("zero=stage2", "precision=bf16", "optimizer=muon"),
    ("zero=stage3", "precision=bf16", "optimizer=muon", "zero.reduce_scatter=false", *PARTS),
    ("zero=stage0", "precision=bf16", *DROPPING, "activation=checkpoint"),
]
SCALED = [
    (f"zero=stage{stage}", "precision=fp16", "scaler.initial_scale_power=17", "scaler.hysteresis=2", "scaler.loss_scale_window=2")
    for stage in (1, 2, 3)
]


def tensors(trial: Trial, step: int) -> dict[tuple[str, str | None], torch.Tensor]:
    """(name, None for the master weights or what the optimizer keeps) -> whole tensor."""
    contents = Contents(saved.find(trial.folder / saved.FOLDER / saved.tag(step)))
    return {
        (name, key): contents.read(name, 0, torch.Size(shape).numel(), key).clone()
        for name, shape in contents.shapes.items()
        for key in (None, *contents.keys(name))
    }


def same(first: dict[Any, torch.Tensor], second: dict[Any, torch.Tensor]) -> None:
    assert set(first) == set(second)
    different = [name for name, tensor in first.items() if not torch.equal(tensor, second[name])]
    assert not different, f"{len(different)} of {len(first)}: {different[:3]}"


def halves(run_trial: RunTrial, *overrides: str, ranks: int = 1, extra: dict[str, str] | None = None) -> tuple[Trial, Trial]:
    """A run of 4 steps, and one that goes on from its step 2."""
    whole = run_trial("whole", *TINY, "checkpoint.every=2", *overrides, ranks=ranks, extra=extra).ok()
    resume = f"train.resume={whole.folder / 'checkpoints' / 'step-000002'}"
    return whole, run_trial("rest", *TINY, "checkpoint.every=4", resume, *overrides, ranks=ranks, extra=extra).ok()


def numbers(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("step", "loss", "lr", "grad_norm", "skipped", "loss_scale"))


def exact(whole: Trial, rest: Trial) -> None:
    assert [numbers(row) for row in rest.metrics] == [numbers(row) for row in whole.metrics[2:]]
    same(tensors(whole, 4), tensors(rest, 4))


@pytest.mark.parametrize("overrides", EXACT, ids=" ".join)
def test_a_resumed_run_is_the_run_left_alone(run_trial: RunTrial, overrides: tuple[str, ...]) -> None:
    exact(*halves(run_trial, *overrides))


@pytest.mark.slow
@pytest.mark.parametrize("overrides", EXACT_TOO, ids=" ".join)
def test_so_it_is_everywhere(run_trial: RunTrial, overrides: tuple[str, ...]) -> None:
    exact(*halves(run_trial, *overrides))


@pytest.mark.slow
@pytest.mark.parametrize("overrides", SCALED, ids=" ".join)
def test_the_loss_scale_goes_on(run_trial: RunTrial, overrides: tuple[str, ...]) -> None:
    whole, rest = halves(run_trial, *overrides, extra={"TEST_FP16": "1"})
    exact(whole, rest)
    assert len({row["loss_scale"] for row in whole.metrics}) > 1 or any(row["skipped"] for row in whole.metrics)


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_save_their_parts_and_go_on(run_trial: RunTrial, stage: int) -> None:
    overrides = (f"zero=stage{stage}", "precision=bf16", "batch.total=4", *(PARTS if stage == 3 else ()))
    whole, rest = halves(run_trial, *overrides, ranks=2)
    exact(whole, rest)
    assert len(list((whole.folder / "checkpoints" / "step-000004").glob("*optim_states.pt"))) == 2


MOVES = [
    (("zero=stage2",), 2, ("zero=stage2",), 1),
    (("zero=stage2",), 1, ("zero=stage1",), 2),
    (("zero=stage3", *NARROW), 2, ("zero=stage3", *PARTS), 1),
    (("zero=stage2",), 1, ("zero=stage3", *PARTS), 2),
]
MOVES_TOO = [
    (("zero=stage3", *PARTS), 2, ("zero=stage1", "precision.grad_accum_dtype=fp32"), 1),
    (("zero=stage0",), 1, ("zero=stage2",), 2),
    (("zero=stage3", *PARTS), 2, ("zero=stage0",), 1),
    (("zero=stage1", "precision.grad_accum_dtype=fp32"), 2, ("zero=stage2", "offload=cpu"), 1),
    (("zero=stage2", "method=lora"), 2, ("zero=stage3", "method=lora", *PARTS), 1),
    (("zero=stage2", "offload=cpu"), 1, ("zero=stage2",), 2),
]
"""(Before, its ranks, after, its ranks)."""


def arrives(run_trial: RunTrial, before: tuple[str, ...], ranks: int, after: tuple[str, ...], others: int) -> None:
    """The state is equal to the bit when it has been put into the other engine and saved again, and training goes on from it."""
    same_run = (*TINY, "train.max_steps=3", "checkpoint.every=2", "batch.total=4")
    first = run_trial("first", *same_run, *before, ranks=ranks).ok()
    resume = f"train.resume={first.folder / 'checkpoints' / 'step-000002'}"
    second = run_trial("second", *same_run, resume, *after, ranks=others, extra={"TEST_FAULT": "saves_first:0"}).ok()
    same(tensors(first, 2), tensors(second, 2))
    assert [row["step"] for row in second.metrics] == [3]
    assert second.losses == pytest.approx(first.losses[2:], rel=2e-3)
    assert second.metrics[0]["lr"] == first.metrics[2]["lr"]


@pytest.mark.parametrize(("before", "ranks", "after", "others"), MOVES, ids=str)
def test_the_state_arrives_on_other_ranks_and_stages(
    run_trial: RunTrial, before: Any, ranks: int, after: Any, others: int
) -> None:
    arrives(run_trial, before, ranks, after, others)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "ranks", "after", "others"), MOVES_TOO, ids=str)
def test_so_it_does_everywhere(run_trial: RunTrial, before: Any, ranks: int, after: Any, others: int) -> None:
    arrives(run_trial, before, ranks, after, others)
