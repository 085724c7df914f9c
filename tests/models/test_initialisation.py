from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, PreTrainedModel

from glmexp.config.choices import Hub, Init
from glmexp.config.schema import ModelConfig
from glmexp.models import build_model
from glmexp.models.initialisation import random_model

GOLDEN = Path(__file__).parents[1] / "golden" / "chatglm2"


def build(seed: int = 3, dtype: torch.dtype = torch.float32, path: str = str(GOLDEN)) -> PreTrainedModel:
    values = {"revision": None, "template": None, "rope_style": None, "recommended_precisions": []}
    model = ModelConfig(path=path, hub=Hub.huggingface, init=Init.random, **values)
    return build_model(model, dtype, "sdpa", seed, torch.device("cpu"))


def test_same_seed_same_weights_whatever_was_drawn_before():
    torch.manual_seed(1)
    first = build()
    torch.randn(5)
    second = build()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = build(seed=4)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_global_random_numbers_go_on_undisturbed():
    torch.manual_seed(5)
    expected = torch.randn(4)
    torch.manual_seed(5)
    build()
    assert torch.equal(torch.randn(4), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_rounded_fp32_model(dtype):
    whole, half = build(), build(dtype=dtype)
    for name, parameter in half.named_parameters():
        assert parameter.dtype is dtype
        assert torch.equal(parameter, whole.get_parameter(name).to(dtype)), name
    assert half.model.rotary_emb.inv_freq.dtype is torch.float32
    assert torch.equal(half.model.rotary_emb.inv_freq, whole.model.rotary_emb.inv_freq)


def test_weights_are_distributed_as_the_architecture_says():
    model = build()
    assert model.model.norm.weight.eq(1).all()
    assert model.model.layers[0].self_attn.q_proj.bias.eq(0).all()
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight, model.model.layers[1].mlp.gate_up_proj.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(model.model.layers[0].mlp.down_proj.weight, model.model.layers[1].mlp.down_proj.weight)


def test_a_ready_made_model_trains():
    model = build()
    ids = torch.arange(12).reshape(2, 6)
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert abs(loss.item() - torch.log(torch.tensor(120.0)).item()) < 0.3
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_packaged_model_is_small():
    model = build(path="tiny")
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 5e6


def test_other_architectures_follow_their_own_rule():
    """GPT-2 ties its head to its embedding and scales the residual projections by its depth."""
    config = GPT2Config(vocab_size=64, n_embd=64, n_layer=8, n_head=2, n_positions=16)
    model = random_model(config, torch.float32, "sdpa", 0, torch.device("cpu"))
    assert model.lm_head.weight is model.transformer.wte.weight
    block = model.transformer.h[0]
    assert block.mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.c_proj.weight.std().item() == pytest.approx(0.02 / (2 * 8) ** 0.5, rel=0.05)
