"""P-tuning v2 under DeepSpeed: the numbers of plain PyTorch at every stage, an export that gives the trained model again."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from worker_trials import MOVING, Plain, RunTrial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.models import build_model, load_prefix

PTUNING = [
    *MOVING, "method=ptuning_v2", "method.prefix_length=8", "method.dropout=0", "optimizer.lr=5e-2", "optimizer.eps=1e-6",
    "batch.micro=4", "batch.total=8",
]  # fmt: skip
KINDS = ("上衣", "裙", "裤", "鞋", "帽", "包", "伞", "表")
PROJECTED = ["method.prefix_projection=true", "optimizer.lr=1e-3"]
PARTITIONED = ["zero=stage3", "zero.stage3_param_persistence_threshold=0"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Plain]:
    """Projection -> the run in plain PyTorch, eager and without activation checkpoints."""
    folder = tmp_path_factory.mktemp("ptuning")
    return {
        projection: train_plainly(write_trial(folder / str(projection), [*PTUNING, *(PROJECTED if projection else [])]))
        for projection in (False, True)
    }


@pytest.mark.parametrize(
    ("stage", "ranks", "activation", "projection"),
    [
        (0, 1, "none", False),
        (1, 2, "checkpoint", False),
        (2, 1, "checkpoint", True),
        (2, 2, "none", False),
        (3, 2, "checkpoint", True),
    ],
)
def test_every_stage_equals_plain_pytorch(
    run_trial: RunTrial, plain: dict[bool, Plain], stage: int, ranks: int, activation: str, projection: bool
) -> None:
    overrides = [*PTUNING, *(PROJECTED if projection else []), f"zero=stage{stage}", f"activation={activation}"]
    overrides += PARTITIONED if stage == 3 else []
    overrides.append("batch.micro=2")  # accumulates
    trial = run_trial("trial", *overrides, ranks=ranks).ok()
    expected = plain[projection]
    assert expected.losses[0] - expected.losses[-1] > 0.02
    assert trial.losses == pytest.approx(expected.losses, abs=5e-4)
    assert trial.norms == pytest.approx(expected.norms, rel=2e-3)


def test_the_export_gives_the_trained_model_again(run_trial: RunTrial, plain: dict[bool, Plain]) -> None:
    trial = run_trial("trial", *PTUNING, *PARTITIONED, "train.save_weights=true", "batch.micro=2", ranks=2).ok()
    assert trial.losses == pytest.approx(plain[False].losses, abs=5e-4)
    export = trial.folder / "export"
    assert re.search("trainable parameters: 2,048 of", trial.log), trial.log
    state = load_file(export / "prefix_encoder.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "transformer.prefix_encoder.embedding.weight": (8, 256)
    }
    settings = json.loads((export / "prefix_config.json").read_text())
    assert settings == {"base_model_name_or_path": "tiny", "prefix_length": 8, "prefix_projection": False}
    assert (export / "tokenizer_config.json").is_file()
    base = build_model(trial.config.model, torch.float32, "sdpa", trial.config.train.seed, torch.device("cpu")).eval()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = plain[False].model.eval()(ids).logits
        before = base(ids).logits
        after = load_prefix(base, export)(ids).logits
    assert (before - expected).abs().max() > 0.1
    torch.testing.assert_close(after, expected, atol=2e-3, rtol=1e-3)


def write_rows(path: Path, numbers: str) -> Path:
    rows = [{"content": kind, "summary": f"这款{kind}有{n}种颜色，穿着很舒服。"} for n in numbers for kind in KINDS]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_prefix_learns_eight_samples_by_heart(run_trial: RunTrial, tmp_path: Path) -> None:
    """On a model that knows how such answers are written but for one number; a random one, frozen, could write none."""
    options = ["batch.micro=8", "batch.total=8", "scheduler=constant", "scheduler.warmup_steps=10"]
    taught = [f"data.path={write_rows(tmp_path / 'all.jsonl', '二三四五六')}", "train.max_steps=60", "optimizer.lr=2e-3"]
    base = run_trial("base", *MOVING, *options, *taught, "train.save_weights=true").ok()
    known = ["model=auto", f"model.path={base.folder / 'export'}", f"data.path={write_rows(tmp_path / 'eight.jsonl', '四')}"]
    wanted = ["method.prefix_length=16", "optimizer.lr=0.3", "optimizer.eps=1e-8", "train.max_steps=80"]
    trial = run_trial("trial", *PTUNING, *options, *known, *wanted).ok()
    assert base.losses[-1] > 0.08
    assert trial.losses[-1] < 0.03


def test_an_architecture_without_a_place_for_a_prefix_is_refused_before_any_weights(
    run_trial: RunTrial, tmp_path: Path
) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    folder = tmp_path / "bloom"
    BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=64)).save_pretrained(folder)
    own = ["model=auto", f"model.path={folder}", "data.source=synthetic", "data.path=null"]
    trial = run_trial("trial", *PTUNING, *own)
    record = trial.record()
    assert (trial.codes, record.outcome.value, record.phase.value) == ([1], "invalid", "starting")
    assert "BloomForCausalLM" in record.error


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_an_offloaded_optimizer_equals_plain_pytorch(run_trial: RunTrial, plain: dict[bool, Plain], stage: int) -> None:
    overrides = [*PTUNING, f"zero=stage{stage}", "offload=cpu", "offload.pin_memory=false"]
    trial = run_trial("trial", *overrides).ok()
    assert trial.losses == pytest.approx(plain[False].losses, abs=5e-4)
