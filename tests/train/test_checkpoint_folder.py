"""How a checkpoint becomes whole and which are kept, with an engine that only writes two small files."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.train.checkpoint import checkpoints as checkpoint
from glmexp.train.checkpoint import restore as checkpoint_restore
from glmexp.train.checkpoint import writer as checkpoint_writer
from glmexp.train.ranks import Ranks
from glmexp.train.skips import Skips
from glmexp.trial import saved
from glmexp.trial.record import RankWriter


class Engine:
    """Writes as DeepSpeed does: through its checkpoint engine, into SAVE_DIR/TAG."""

    module = torch.nn.Linear(1, 1, bias=False)
    optimizer = None
    checkpoint_engine: Any = None

    def zero_optimization_stage(self) -> int:
        return 2

    def save_checkpoint(self, root: str, tag: str, save_latest: bool, exclude_frozen_parameters: bool) -> None:
        folder = Path(root) / tag
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
            self.checkpoint_engine.save({"module": {"weight": torch.ones(10)}}, str(folder / name))

    def _copy_recovery_script(self, path: str) -> None:
        raise AssertionError("no scripts beside the weights")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, without a process group."""

    def gather(told: list[Any], value: Any) -> None:
        told[0] = value

    group = SimpleNamespace(all_gather_object=gather, broadcast_object_list=lambda told, src: None)
    monkeypatch.setattr(checkpoint, "dist", group)
    monkeypatch.setattr(checkpoint, "layout", lambda engine: [])


def checkpoints(folder: Path, *overrides: str) -> checkpoint.Checkpoints:
    config = compose(["model=tiny", "zero=stage2", *overrides]).config
    folder.mkdir(exist_ok=True)
    return checkpoint.Checkpoints(folder, config, 100, 2, Ranks(0, 0, 1, 1), RankWriter(folder, 0))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / saved.FOLDER).iterdir())


pytestmark = pytest.mark.usefixtures("alone")


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, "checkpoint.every=1", "checkpoint.keep=2", "checkpoint.best=loss", "data.eval_share=0.1")
    engine, skips = Engine(), Skips(kept.config)
    for step in (1, 2):
        assert kept.save(engine, step, skips)
    kept.keep_best(engine, 2, skips, 1.5)
    for step in (3, 4, 5):
        assert kept.save(engine, step, skips)
    assert names(tmp_path) == ["best.json", "step-000002", "step-000004", "step-000005"]
    assert saved.best(tmp_path) == {"tag": "step-000002", "score": "loss", "value": 1.5, "step": 2}
    kept.keep_best(engine, 6, skips, 1.25)  # saved for its score alone
    assert names(tmp_path) == ["best.json", "step-000005", "step-000006"]
    assert all(saved.is_whole(folder) for folder in saved.folders(tmp_path))


def test_a_damaged_one_of_a_later_step_takes_no_place(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, "checkpoint.every=1", "checkpoint.keep=1")
    (tmp_path / saved.FOLDER / "step-000006").mkdir(parents=True)  # passed over; the run went on from an earlier step
    for step in (4, 5):
        assert kept.save(Engine(), step, Skips(kept.config))
    assert names(tmp_path) == ["step-000005", "step-000006"]


def test_state_holds_what_resuming_needs(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    assert kept.save(Engine(), 3, Skips(kept.config, in_a_row=1, total=1, applied=2))
    state = saved.find(tmp_path).state
    assert (state["step"], state["applied"], state["skipped"], state["skipped_in_a_row"]) == (3, 2, 1, 1)
    assert (state["world_size"], state["zero_stage"], state["method"], state["optimizer"]) == (1, 2, "full", "AdamW")
    assert set(state["files"]) == {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}
    for file in (tmp_path / saved.FOLDER / "step-000003").glob("*.pt"):
        assert saved.corruption(file) is None


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    for name in (".step-000007.saving", ".step-000001.removed"):
        (tmp_path / saved.FOLDER / name).mkdir(parents=True)
    assert checkpoints(tmp_path).choose() is None
    assert names(tmp_path) == []


def test_a_step_that_is_done_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    (tmp_path / saved.FOLDER / "step-000003").mkdir(parents=True)  # damaged: nothing in it
    assert kept.save(Engine(), 3, Skips(kept.config))
    assert names(tmp_path) == ["step-000003"]
    assert saved.is_whole(tmp_path / saved.FOLDER / "step-000003")


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 128 vs 0"),
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_full_disk_takes_nothing_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    kept, engine = checkpoints(tmp_path, "checkpoint.every=1"), Engine()
    assert kept.save(engine, 1, Skips(kept.config))
    write = torch.save

    def fills_up(content: Any, file: Path) -> None:
        if "optim" in file.name:
            file.write_bytes(b"half")
            raise error
        write(content, file)

    monkeypatch.setattr(checkpoint_writer.torch, "save", fills_up)
    assert not kept.save(engine, 2, Skips(kept.config))
    assert names(tmp_path) == ["step-000001"]
    assert saved.is_whole(tmp_path / saved.FOLDER / "step-000001")
    (warning,) = kept.writer.record.warnings
    for words in ("step-000002 was not saved", "rank 0", "optim_states.pt", "step-000001 stands"):
        assert words in warning, warning
    monkeypatch.setattr(checkpoint_writer.torch, "save", write)
    assert kept.save(engine, 3, Skips(kept.config))
    assert names(tmp_path) == ["step-000001", "step-000003"]


def test_a_full_disk_at_the_last_moment_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = checkpoints(tmp_path)
    monkeypatch.setattr(checkpoint, "write_json", full)
    assert not kept.save(Engine(), 2, Skips(kept.config))
    assert names(tmp_path) == []
    assert "No space left on device; there is none yet" in kept.writer.record.warnings[0]


def test_another_method_or_optimizer_is_refused(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    assert kept.save(Engine(), 3, Skips(kept.config))
    for override, words in (("method=lora", "method=full"), ("optimizer=muon", "optimizer=adamw")):
        with pytest.raises(UserError, match=words):
            checkpoints(tmp_path / "other", override)._check(saved.find(tmp_path))
    muon = checkpoints(tmp_path / "muon", "optimizer=muon")
    assert muon.save(Engine(), 3, Skips(muon.config))
    stage3 = checkpoints(tmp_path / "other", "optimizer=muon", "zero=stage3", "zero.reduce_scatter=false")
    with pytest.raises(UserError, match="resume it with zero=stage2"):
        stage3._check(saved.find(tmp_path / "muon"))
    with pytest.raises(UserError, match=r"train\.stop_after"):
        checkpoints(tmp_path / "other", "train.stop_after=2")._check(saved.find(tmp_path))


def test_another_batch_is_said(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    assert kept.save(Engine(), 3, Skips(kept.config))
    state = json.loads((tmp_path / saved.FOLDER / "step-000003" / saved.STATE).read_text())
    (tmp_path / saved.FOLDER / "step-000003" / saved.STATE).write_text(json.dumps({**state, "batch.total": 8}))
    kept._check(saved.find(tmp_path))
    assert "batch.total was 8 samples and is 2" in kept.writer.record.warnings[0]


@pytest.mark.parametrize(("options", "device"), [({"fused": True}, "meta"), ({}, "cpu")], ids=str)
def test_torchs_adam_counts_where_its_kernel_looks(options: dict[str, bool], device: str) -> None:
    adam = torch.optim.AdamW([torch.zeros(1)], **options)
    count = checkpoint_restore._counter(3, adam, torch.device("meta"))
    assert isinstance(count, torch.Tensor)
    assert count.device.type == device


def test_a_state_that_lacks_a_figure_is_passed_over_and_a_million_steps_sort(tmp_path: Path, monkeypatch: Any) -> None:
    kept = checkpoints(tmp_path, "train.resume=auto", "checkpoint.keep=9")
    monkeypatch.setattr(checkpoint, "Contents", lambda found: SimpleNamespace(saved=found))
    kept.steps = 2_000_000
    for step in (999_999, 1_000_000, 1_000_001):
        assert kept.save(Engine(), step, Skips(kept.config))
    for step in (1_000_000, 1_000_001):
        path = tmp_path / saved.FOLDER / saved.tag(step) / saved.STATE
        state = json.loads(path.read_text())
        del state["method"]
        path.write_text(json.dumps(state))
    chosen = kept.choose()
    assert chosen is not None
    assert chosen.saved.step == 999_999
    assert ["step-1000001 is passed over" in line for line in kept.writer.record.warnings] == [True, False]
    kept.config.train.resume = str(tmp_path)
    with pytest.raises(UserError, match=r"state\.json lacks method\nuse another checkpoint"):
        kept.choose()
