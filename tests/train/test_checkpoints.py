"""A run that goes on from a checkpoint is the run that was left alone: losses, lr, master weights and moments, to the bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from worker_trials import RunTrial, Trial, start, write_trial  # type: ignore[import-not-found]

from glmexp.train.checkpoint import files as checkpoint_files
from glmexp.train.checkpoint.files import Contents, trained_weights
from glmexp.trial import saved
from glmexp.trial.record import METRICS, State

TINY = (
    "model=tiny", "data.max_length=48", "optimizer.lr=1e-3", "scheduler.warmup_steps=1", "train.save_weights=false",
    "train.max_steps=4", "train.grad_clip=0.5",
)  # fmt: skip
PARTS = ("zero.stage3_param_persistence_threshold=0",)
"""Tiny tensors are really partitioned."""

DROPPING = ("method=lora", "method.rank=4", "method.dropout=0.3")
NARROW = ("zero.sub_group_size=100000", *PARTS)
EXACT = [
    ("zero=stage3", "precision=bf16", *NARROW),
    ("zero=stage2", "precision=fp32", "batch.accumulation=2", *DROPPING),
]
EXACT_TOO = [
    ("zero=stage2", "precision=bf16"),
    ("zero=stage0", "precision=fp32"),
    ("zero=stage0", "precision=bf16"),
    ("zero=stage0", "precision=autocast"),
    ("zero=stage1", "precision=bf16"),
    ("zero=stage1", "precision=bf16", "precision.grad_accum_dtype=fp32"),
    ("zero=stage2", "precision=autocast"),
    ("zero=stage2", "precision=bf16_states"),
    ("zero=stage3", "precision=bf16_states"),
    ("zero=stage3", "precision=fp32", *PARTS),
    ("zero=stage3", "precision=bf16", *DROPPING, *PARTS),
    ("zero=stage3", "precision=bf16", "method=ptuning_v2", "method.dropout=0.2", *PARTS),
    ("zero=stage3", "precision=bf16", "method=freeze", *PARTS),
    ("zero=stage2", "precision=bf16", "offload=cpu"),
    ("zero=stage3", "precision=bf16", "offload=cpu_all", *NARROW),
    ("zero=stage2", "precision=bf16", "optimizer=muon"),
    ("zero=stage3", "precision=bf16", "optimizer=muon", "zero.reduce_scatter=false", *PARTS),
    ("zero=stage0", "precision=bf16", *DROPPING, "activation=checkpoint"),
    ("zero=stage3", "precision=bf16", *DROPPING, "method.dora=true", *PARTS),
    ("zero=stage2", "precision=bf16", "method=freeze", "method.last_layers=1"),
    ("zero=stage3", "precision=bf16", "method=freeze", "method.last_layers=1", *PARTS),
    ("zero=stage2", "precision=bf16", "method=qlora"),
    ("zero=stage3", "precision=bf16", "method=qlora", *PARTS),
]
SCALED = [
    (
        f"zero=stage{stage}",
        "precision=fp16",
        "scaler.initial_scale_power=17",
        "scaler.hysteresis=2",
        "scaler.loss_scale_window=2",
    )
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


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_save_their_parts_and_go_on(run_trial: RunTrial, stage: int) -> None:
    overrides = (f"zero=stage{stage}", "precision=bf16", "batch.total=4", *(PARTS if stage == 3 else ()))
    whole, rest = halves(run_trial, *overrides, ranks=2)
    exact(whole, rest)
    assert len(list((whole.folder / "checkpoints" / "step-000004").glob("*optim_states.pt"))) == 2


MOVES = [
    (("zero=stage2",), 2, ("zero=stage1",), 1),
    (("zero=stage2",), 1, ("zero=stage3", *PARTS), 2),
]
MOVES_TOO = [
    (("zero=stage2",), 1, ("zero=stage1",), 2),
    (("zero=stage3", *NARROW), 2, ("zero=stage3", *PARTS), 1),
    (("zero=stage3", *PARTS), 2, ("zero=stage1", "precision.grad_accum_dtype=fp32"), 1),
    (("zero=stage0",), 1, ("zero=stage2",), 2),
    (("zero=stage3", *PARTS), 2, ("zero=stage0",), 1),
    (("zero=stage1", "precision.grad_accum_dtype=fp32"), 2, ("zero=stage2", "offload=cpu"), 1),
    (("zero=stage2", "method=lora"), 2, ("zero=stage3", "method=lora", *PARTS), 1),
    (("zero=stage2", "offload=cpu"), 1, ("zero=stage2",), 2),
]
"""(Before, its ranks, after, its ranks)."""


def arrives(run_trial: RunTrial, before: tuple[str, ...], ranks: int, after: tuple[str, ...], others: int) -> None:
    """The state is equal to the bit when it is put into the other engine and saved again, and training goes on from it."""
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


@pytest.fixture(scope="module")
def finished(preloaded: Any, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run of 4 steps with checkpoints of steps 2 and 4, and its export."""
    overrides = [*TINY, "zero=stage2", "checkpoint.every=2", "train.save_weights=true"]
    trial = start(preloaded, write_trial(tmp_path_factory.mktemp("finished") / "ran", overrides)).ok()
    assert isinstance(trial, Trial)
    return trial


@pytest.fixture
def ran(finished: Trial, tmp_path: Path) -> Trial:
    """The same in a folder of its own, to be damaged."""
    shutil.copytree(finished.folder, tmp_path / "ran")
    return Trial(tmp_path / "ran", [0])


def again(trial: Trial, preloaded: Any, *overrides: str) -> Trial:
    """The same folder once more, with other values in its config.yaml."""
    write_trial(trial.folder, [*TINY, "zero=stage2", "checkpoint.every=2", *overrides])
    return start(preloaded, trial.folder)


EVIL = """
class Evil:
    def __reduce__(self):
        import os
        return os.system, ("touch CANARY",)
"""


def test_a_file_that_holds_more_than_weights_is_refused_and_nothing_is_run(
    ran: Trial, run_trial: RunTrial, tmp_path: Path
) -> None:
    folder, canary = ran.folder / "checkpoints" / "step-000004", tmp_path / "canary"
    file = next(folder.glob("*model_states.pt"))
    space: dict[str, Any] = {}
    exec(EVIL.replace("CANARY", str(canary)), space)
    with torch.serialization.safe_globals(checkpoint_files._known_classes()):
        content = torch.load(file, weights_only=True)
    torch.save({**content, "note": space["Evil"]()}, file)
    resume = (*TINY, "zero=stage2", "train.max_steps=6", f"train.resume={folder}")
    for resized in (False, True):
        if resized:  # state.json is told the new size, as one who knew it would
            state = json.loads((folder / saved.STATE).read_text())
            state["files"][file.name] = file.stat().st_size
            (folder / saved.STATE).write_text(json.dumps(state))
        refused = run_trial(f"refused{resized}", *resume)
        record = refused.record()
        assert record.outcome is State.invalid
        assert file.name in record.error
        assert "loading" not in refused.log  # before any weights are read
    assert "holds more than weights, and nothing of it was run" in record.error
    assert not canary.exists()


def test_auto_passes_over_a_damaged_checkpoint_and_cuts_metrics_back(ran: Trial, preloaded: Any) -> None:
    before, weights = ran.metrics, tensors(ran, 4)
    file = next((ran.folder / "checkpoints" / "step-000004").glob("*optim_states.pt"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # the size is what it was
    file.write_bytes(content)
    with (ran.folder / METRICS).open("a") as handle:
        handle.write('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')  # it was killed as it wrote
    rest = again(ran, preloaded, "train.resume=auto").ok()
    assert any("step-000004 is passed over" in line and "checksum" in line for line in rest.record().warnings)
    assert any("resumed from" in line and "step-000002: step 3 of 4" in line for line in rest.record().notes)
    assert rest.record().resumed == 2
    assert [numbers(row) for row in rest.metrics] == [numbers(row) for row in before]
    assert rest.metrics[:2] == before[:2]
    same(weights, tensors(rest, 4))


def test_the_present_lr_is_in_force_and_said(finished: Trial, run_trial: RunTrial) -> None:
    resume = f"train.resume={finished.folder / 'checkpoints' / 'step-000002'}"
    now = ("optimizer.lr=5e-4", "scheduler=constant", "optimizer.weight_decay=0.3", "train.grad_clip=0.1", "train.max_steps=5")
    rest = run_trial("rest", *TINY, "zero=stage2", "checkpoint.every=5", resume, *now).ok()
    assert [row["lr"] for row in rest.metrics] == [5e-4] * 3
    assert any("step 3 of 5 runs at lr 0.0005, by the present optimizer.lr=0.0005" in line for line in rest.record().notes)
    content = checkpoint_files.load(next((rest.folder / "checkpoints" / "step-000005").glob("*optim_states.pt")))
    optimizer = content["optimizer_state_dict"]
    assert optimizer["clip_grad"] == 0.1
    assert optimizer["base_optimizer_state"]["param_groups"][0]["weight_decay"] == 0.3


def test_trained_weights_are_those_of_the_export(finished: Trial) -> None:
    weights = trained_weights(finished.folder)
    exported = load_file(finished.folder / "export" / "model.safetensors")
    assert set(weights) <= set(exported)
    assert len(weights) > 20
    for name, tensor in weights.items():
        assert tensor.dtype is torch.float32
        assert torch.equal(tensor.to(exported[name].dtype), exported[name]), name


def test_a_path_that_is_not_there_or_of_another_shape_is_refused(run_trial: RunTrial, tmp_path: Path) -> None:
    absent = run_trial("absent", *TINY, f"train.resume={tmp_path / 'none'}").record()
    assert absent.outcome is State.invalid
    assert "no such folder" in absent.error
    prompted = ("method=ptuning_v2", "zero=stage2")
    first = run_trial("first", *TINY, *prompted, "method.prefix_length=4", "checkpoint.every=4").ok()
    resume = ("train.max_steps=6", f"train.resume={first.folder}")
    other = run_trial("other", *TINY, *prompted, "method.prefix_length=6", *resume).record()
    assert other.outcome is State.invalid
    assert "of another model or method" in other.error
    assert "prefix_encoder" in other.error
    done = run_trial("done", *TINY, *prompted, "method.prefix_length=4", f"train.resume={first.folder}").record()
    assert done.outcome is State.invalid
    assert "raise train.max_steps" in done.error


def test_a_signal_saves_and_ends_on_all_ranks(run_trial: RunTrial, preloaded: Any) -> None:
    overrides = ("zero=stage2", "train.resume=auto", "batch.total=4")
    signalled = run_trial("run", *TINY, *overrides, ranks=2, extra={"TEST_FAULT": "sigterm:3:1"})
    assert [signalled.record(rank).outcome for rank in (0, 1)] == [State.interrupted] * 2
    assert "saved checkpoint step-000003" in signalled.record().error
    assert "ended by SIGTERM" in signalled.record(1).error
    assert [row["step"] for row in signalled.metrics] == [1, 2, 3]
    rest = start(preloaded, signalled.folder, 2).ok()
    assert [row["step"] for row in rest.metrics] == [1, 2, 3, 4]


def test_stop_after_saves_and_is_complete(run_trial: RunTrial, preloaded: Any) -> None:
    first = run_trial("run", *TINY, "zero=stage2", "train.stop_after=2").ok()
    assert any("ended after step 2 of 4 (train.stop_after)" in line for line in first.record().notes)
    whole = run_trial("whole", *TINY, "zero=stage2").ok()
    write_trial(first.folder, [*TINY, "zero=stage2", "train.resume=auto"])
    rest = start(preloaded, first.folder).ok()
    assert [numbers(row) for row in rest.metrics] == [numbers(row) for row in whole.metrics]


@pytest.mark.slow
def test_rank_0_decides_which_checkpoint_it_is(run_trial: RunTrial, preloaded: Any) -> None:
    """A shared disk may show another rank an older listing."""
    first = run_trial("run", *TINY, "zero=stage2", "batch.total=4", "checkpoint.every=1", "train.stop_after=2", ranks=2).ok()
    write_trial(first.folder, [*TINY, "zero=stage2", "batch.total=4", "train.resume=auto"], ranks=2)
    rest = start(preloaded, first.folder, 2, {"TEST_FAULT": "old_listing:0:1"}).ok()
    assert [row["step"] for row in rest.metrics] == [1, 2, 3, 4]
    assert "step-000002: step 3 of 4" in rest.log


@pytest.mark.slow
def test_ranks_that_share_samples_go_on(run_trial: RunTrial) -> None:
    overrides = (
        "zero=stage3",
        "precision=fp32",
        "comm=ulysses",
        "comm.sequence_parallel_size=2",
        "kernels.attention=sdpa",
        *PARTS,
    )
    exact(*halves(run_trial, *overrides, ranks=2))
