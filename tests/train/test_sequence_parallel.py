"""Ulysses sequence parallelism: ranks that share each sample train as one rank does, and each token counts once."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    FalconConfig,
    GlmConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)
from worker_trials import MOVING, Plain, RunTrial, Trial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.config.errors import UserError
from glmexp.data import Samples, batches, collate
from glmexp.data.order import Order
from glmexp.train.loss import loss_sum, shifted
from glmexp.train.metrics.flops import model_flops
from glmexp.train.sequence_parallel import check_model, part_of
from glmexp.trial.record import DS_CONFIG, Phase, State

# Adam's default eps divides gradients that are all rounding by themselves, which makes a whole step of noise.
SHORT = [*MOVING, "optimizer.eps=1e-4", "train.max_steps=3"]
ULYSSES = ["comm=ulysses", "zero=stage3", "zero.stage3_param_persistence_threshold=0"]
SHARED = [*SHORT, *ULYSSES]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """The same training in plain PyTorch, where nothing is shared: a global batch of 8, fp32, eager attention."""
    return train_plainly(write_trial(tmp_path_factory.mktemp("plain") / "plain", SHORT))


def random_rows(lengths: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples of these lengths; four labels of ten are not learnt."""
    generator = np.random.default_rng(sum(lengths))
    rows = [generator.integers(1, 50, length) for length in lengths]
    return [(ids, np.where(generator.random(len(ids)) < 0.4, -100, ids)) for ids in rows]


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 13), min_size=1, max_size=3), size=st.integers(1, 5))
def test_the_parts_make_up_the_whole(lengths: list[int], size: int) -> None:
    batch = collate(random_rows(lengths), pad_id=0)
    parts = [part_of(batch, size, place) for place in range(size)]
    length = max(lengths)
    assert torch.cat([part.input_ids for part in parts], 1)[:, :length].equal(batch.input_ids)
    targets = torch.cat([part.targets for part in parts], 1)
    assert targets[:, :length].equal(shifted(batch.labels))
    assert (targets[:, length:] == -100).all(), "padding is never learnt"
    assert sum(part.tokens for part in parts) == batch.tokens == sum(lengths)
    assert len({part.input_ids.shape for part in parts}) == 1
    if size > 1:
        places = torch.cat([part.position_ids for part in parts], 1)  # type: ignore[misc]
        assert places.tolist() == [list(range(places.shape[1]))] * len(lengths)
    logits = torch.randn(len(lengths), targets.shape[1], 50)
    summed = sum(loss_sum(some, part.targets) for some, part in zip(logits.chunk(size, 1), parts, strict=True))
    assert float(summed) == pytest.approx(float(loss_sum(logits[:, :length], shifted(batch.labels))), rel=1e-5)


def test_a_rank_predicts_the_first_token_of_the_next() -> None:
    ids = np.array([5, 6, 7, 8])
    first, second = (part_of(collate([(ids, ids)], pad_id=0), 2, place) for place in range(2))
    assert (first.targets.tolist(), second.targets.tolist()) == ([[6, 7]], [[8, -100]])


def same(trial: Trial, losses: list[float], norms: list[float]) -> None:
    assert max(losses) - min(losses) > 0.02
    assert trial.losses == pytest.approx(losses, abs=5e-4)
    assert trial.norms == pytest.approx(norms, rel=2e-3)


@pytest.mark.parametrize(
    ("ranks", "overrides"),
    [
        (2, ["batch.micro=4", "batch.total=8", "activation=checkpoint"]),
        (4, ["batch.micro=4"]),
        pytest.param(4, ["batch.micro=8", "comm.sequence_parallel_size=4"], marks=pytest.mark.slow),
        pytest.param(2, ["batch.micro=8", "offload=cpu_all"], marks=pytest.mark.slow),
    ],
    ids=["one group, accumulation", "two groups", "more ranks than heads of keys and values", "offload"],
)
def test_shared_samples_train_as_in_plain_pytorch(run_trial: RunTrial, plain: Plain, ranks: int, overrides: list[str]) -> None:
    trial = run_trial("trial", *SHARED, "train.save_weights=true", *overrides, ranks=ranks).ok()
    same(trial, plain.losses, plain.norms)
    assert json.loads((trial.folder / DS_CONFIG).read_text())["train_batch_size"] == 8
    assert "that share a sample = 8 samples a step" in trial.log
    samples = Samples.open(trial.folder)
    order = list(batches(samples, Order(len(samples), 42), micro=8, accumulation=1, rank=0, world=1, pad_id=0, steps=3))
    assert [line["tokens"] for line in trial.metrics] == [batch.tokens for (batch,) in order]
    flops = model_flops(plain.model)
    assert flops is not None
    told = [line["tflops_per_second"] * line["step_seconds"] * ranks for line in trial.metrics]
    assert told == pytest.approx([flops.of(batch.lengths) / 1e12 for (batch,) in order])
    exported = load_file(trial.folder / "export" / "model.safetensors")
    for name, parameter in plain.model.named_parameters():
        assert torch.allclose(exported[name], parameter, atol=1e-4), name


def test_lora(run_trial: RunTrial, tmp_path: Path) -> None:
    adapters = [*SHORT, "method=lora", "method.dropout=0", "optimizer.lr=1e-2"]
    plain = train_plainly(write_trial(tmp_path / "plain", adapters))
    same(run_trial("trial", *adapters, *ULYSSES, "batch.micro=8", ranks=2).ok(), plain.losses, plain.norms)


def llama(folder: Path) -> Path:
    """A folder with a small Llama, whose four heads of keys and values serve eight of queries."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_another_architecture(run_trial: RunTrial, tmp_path: Path) -> None:
    model = [*SHORT, "model=auto", f"model.path={llama(tmp_path / 'llama')}", "data.source=synthetic", "data.max_length=31"]
    alone = run_trial("alone", *model, "zero=stage0", "batch.micro=4", "optimizer.lr=1e-2").ok()
    shared = run_trial("shared", *model, *ULYSSES, "batch.micro=4", "optimizer.lr=1e-2", ranks=2).ok()
    same(shared, alone.losses, alone.norms)
    assert [line["tokens"] for line in shared.metrics] == [4 * 31] * 3


def test_heads_that_cannot_be_dealt_out_are_refused_before_any_weights(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *SHARED, "comm.sequence_parallel_size=3", ranks=3)
    assert trial.codes == [1, 1, 1]
    assert (trial.record().outcome, trial.record().phase) == (State.invalid, Phase.starting)
    assert "comm.sequence_parallel_size to 2 or 4 or 8" in trial.record().error


@pytest.mark.parametrize(
    ("config", "size", "words"),
    [
        (GlmConfig(num_attention_heads=32, num_key_value_heads=2), 3, ["32 attention heads", "2 or 4 or 8 or 16 or 32"]),
        (
            LlamaConfig(hidden_size=96, num_attention_heads=12, num_key_value_heads=3),
            2,
            ["12 attention heads (3", "to 3 or 6 or 12"],
        ),
        (MistralConfig(sliding_window=64), 2, ["mistral", "a part of the sequence"]),
        (Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=1), 2, ["a part of the sequence"]),
        (GPT2Config(), 2, ["gpt2", "activation=checkpoint"]),
        (FalconConfig(), 2, ["falcon"]),
        (MambaConfig(), 2, ["mamba"]),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_models_that_cannot_be_shared(config: PreTrainedConfig, size: int, words: list[str]) -> None:
    with pytest.raises(UserError) as told:
        check_model(config, size)
    for word in [f"comm.sequence_parallel_size={size}", *words]:
        assert word in str(told.value)


@pytest.mark.parametrize("size", [2, 4])
def test_models_that_can(size: int) -> None:
    for config in (GlmConfig(), LlamaConfig(), Qwen2Config(), MistralConfig(sliding_window=None)):
        check_model(config, size)
