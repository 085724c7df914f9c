"""Packed rows train as samples apart: the same loss and the same gradients, and a model for which that is not so is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    FalconConfig,
    GlmConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen3NextConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from worker_trials import RunTrial, Trial, sample_file  # type: ignore[import-not-found]

from glmexp.config import UserError, compose
from glmexp.data import Batch, Samples, collate
from glmexp.data.collate import collate_packed, order_of
from glmexp.models import build_model, load_tokenizer
from glmexp.models.method import apply
from glmexp.train.loss import loss_sum, target_count
from glmexp.train.packing import check_packing
from glmexp.train.sequence_parallel import part_of
from glmexp.trial.record import Phase, State

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
MODELS = [
    GlmConfig(**SIZES, head_dim=16),
    LlamaConfig(**SIZES),
    MistralConfig(**SIZES, sliding_window=5),
]


def build(config: PreTrainedConfig, attention: str = "sdpa") -> Any:
    """A small random model, the same each time."""
    torch.manual_seed(0)
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config, attn_implementation=attention)


def random_pairs(*lengths: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples of which some tokens are not learnt."""
    generator = np.random.default_rng(0)
    pairs = []
    for length in lengths:
        ids = generator.integers(1, 300, length)
        pairs.append((ids, np.where(generator.random(length) < 0.3, -100, ids)))
    return pairs


def mean_loss(model: Any, batch: Batch) -> tuple[float, dict[str, torch.Tensor], int]:
    """(loss a target token, its gradients, target tokens), as the loop reckons them."""
    part = part_of(batch, 1, 0)
    model.zero_grad()
    targets = target_count(part.targets)
    loss = loss_sum(model(**part.inputs(), use_cache=False).logits, part.targets) / targets
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, targets


@pytest.mark.parametrize("method", ["full", "lora", "ptuning_v2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", MODELS, ids=lambda config: config.model_type)
def test_packed_rows_equal_their_samples(config: PreTrainedConfig, attention: str, method: str) -> None:
    more = {"full": [], "lora": ["method.dropout=0"], "ptuning_v2": ["method.dropout=0", "method.prefix_length=6"]}[method]
    model = build(config, attention)
    for parameter in model.parameters():
        parameter.data.mul_(3)  # so that what is seen matters
    model = apply(model, compose([f"method={method}", *more]).config.method)
    if method == "lora":
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    pairs = random_pairs(7, 1, 12, 3, 9, 2)
    apart, gradients, targets = mean_loss(model, collate(pairs, 0))
    packed, packed_gradients, packed_targets = mean_loss(model, collate_packed([pairs[:3], pairs[3:]], 0))
    assert targets == packed_targets
    assert packed == pytest.approx(apart, abs=1e-5)
    assert gradients.keys() == packed_gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(packed_gradients[name], gradient, atol=1e-5), name
    # Without positions that begin anew the samples of a row see each other, and the loss is another.
    assert abs(mean_loss(model, collate([joined(pairs[:3]), joined(pairs[3:])], 0))[0] - apart) > 1e-3


def joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """One row of several samples, as if it were one sample."""
    ids = np.concatenate([ids for ids, _ in pairs])
    return ids, np.concatenate([np.concatenate([[-100], labels[1:]]) for _, labels in pairs])


@pytest.mark.parametrize("method", ["full", "ptuning_v2"])
def test_activation_checkpointing_computes_packed_rows_again_alike(method: str) -> None:
    more = ["method.dropout=0", "method.prefix_length=6"] if method == "ptuning_v2" else []
    model = apply(build(MODELS[0]), compose([f"method={method}", *more]).config.method)
    model.train()
    pairs = random_pairs(7, 12, 3)
    plain, gradients, _ = mean_loss(model, collate_packed([pairs], 0))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again, recomputed, _ = mean_loss(model, collate_packed([pairs], 0))
    assert again == plain
    for name, gradient in gradients.items():
        assert torch.allclose(recomputed[name], gradient, atol=1e-6), name


class PlainEngine:
    """What ``check_packing`` asks of an engine."""

    def __init__(self, model: Any) -> None:
        self.module = model
        self.device = torch.device("cpu")
        self.eval, self.train = model.eval, model.train

    def __call__(self, **arguments: Any) -> Any:
        return self.module(**arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        *MODELS,
        GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4),
        FalconConfig(vocab_size=320, hidden_size=64, num_hidden_layers=2, num_attention_heads=4),
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_keep_samples_apart(config: PreTrainedConfig, dtype: torch.dtype) -> None:
    engine = PlainEngine(build(config).to(dtype))
    check_packing(engine)  # type: ignore[arg-type]
    assert engine.module.training


@pytest.mark.parametrize(
    "config",
    [
        OPTConfig(
            vocab_size=320, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64
        ),
        GptOssConfig(**{**SIZES, "head_dim": 16}, num_local_experts=4),
        BloomConfig(vocab_size=320, hidden_size=64, n_layer=2, n_head=4),
        Qwen3NextConfig(
            **SIZES,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            layer_types=["linear_attention", "full_attention"],
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_would_mix_samples_are_refused(config: PreTrainedConfig) -> None:
    config._experts_implementation = "eager"
    with pytest.raises(UserError) as told:
        check_packing(PlainEngine(build(config, "eager")))  # type: ignore[arg-type]
    for words in ("data.packing=true", config.model_type, "data.group_by_length=true"):
        assert words in str(told.value)


PACKED = [
    *("model=tiny", "precision=fp32", "data.packing=true", "data.max_length=96", "optimizer.lr=1e-3"),
    *("scheduler.warmup_steps=0", "train.save_weights=false", "train.grad_clip=null"),
]


def first_step(trial: Trial) -> tuple[float, float]:
    """Loss and gradient norm of a run's first step, from its samples one by one."""
    config, samples = trial.config, Samples.open(trial.folder)
    model = build_model(config.model, torch.float32, "sdpa", config.train.seed, torch.device("cpu"))
    torch.manual_seed(config.train.seed)
    model = apply(model, config.method)
    order = order_of(samples, config.data, config.train.seed, 2)
    read = [index for row in order.step(0, 2, 1, 0, 1)[0] for index in order.row(row)]
    loss, gradients, _ = mean_loss(model, collate([samples.sample(index) for index in read], 0))
    return loss, float(torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients.values()])))


def test_an_epoch_reads_every_sample_once(run_trial: RunTrial) -> None:
    prefix = ["method=ptuning_v2", "method.dropout=0", "method.prefix_length=4"]
    trial = run_trial("trial", *PACKED, *prefix, "zero=stage2", "batch.micro=2", "train.epochs=1").ok()
    samples = Samples.open(trial.folder)
    rows = len(order_of(samples, trial.config.data, 42, 2))
    assert rows % 2 == 0
    assert len(trial.metrics) == rows // 2
    assert rows < len(samples)
    assert sum(line["tokens"] for line in trial.metrics) == samples.lengths.sum()
    assert f"{len(samples)} samples packed into {rows} rows of 96 tokens" in " ".join(trial.record().notes)
    metrics = trial.record().metrics
    assert metrics["samples_per_second"] == pytest.approx(2 * len(samples) / rows / metrics["step_seconds"])
    assert "= 2 rows a step" in trial.log
    loss, norm = first_step(trial)
    assert trial.losses[0] == pytest.approx(loss, abs=1e-5)
    assert trial.norms[0] == pytest.approx(norm, rel=1e-4)


def test_partitioned_weights_and_recomputed_activations_on_two_ranks(run_trial: RunTrial) -> None:
    stage3 = ["zero=stage3", "zero.stage3_param_persistence_threshold=0", "activation=checkpoint", "batch.micro=1"]
    trial = run_trial("trial", *PACKED, *stage3, "train.max_steps=1", ranks=2).ok()
    loss, norm = first_step(trial)
    assert trial.losses[0] == pytest.approx(loss, abs=1e-5)
    assert trial.norms[0] == pytest.approx(norm, rel=1e-4)


def test_measuring_the_longest_takes_the_fullest_rows(run_trial: RunTrial, tmp_path: Path) -> None:
    measure = ["task=measure", "measure.samples=longest", "measure.warmup_steps=1", "measure.steps=2", "batch.micro=2"]
    trial = run_trial("trial", *PACKED, *measure, f"data.path={sample_file(tmp_path / 'some.jsonl')}").ok()
    samples = Samples.open(trial.folder)
    order = order_of(samples, trial.config.data, None, 2)
    filled = [int(samples.lengths[order.row(number)].sum()) for number in range(len(order))]
    assert samples.counts.kept == 24
    assert [line["tokens"] for line in trial.metrics] == [sum(filled[:2]), sum(filled[2:4])]
    assert filled == sorted(filled, reverse=True)


def test_a_model_that_mixes_samples_ends_the_run_before_its_first_step(run_trial: RunTrial, tmp_path: Path) -> None:
    tokenizer = load_tokenizer("tiny", "plain")
    sizes = {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 64}
    build(OPTConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "opt")
    tokenizer.save_pretrained(tmp_path / "opt")
    opt = ["model=auto", f"model.path={tmp_path / 'opt'}", "model.template=plain", "train.max_steps=1"]
    trial = run_trial("trial", *PACKED[1:], *opt)
    assert (trial.record().outcome, trial.codes) == (State.invalid, [1])
    assert "data.packing=true" in trial.record().error
    assert trial.record().phase is Phase.building
