"""Model FLOPs against PyTorch's own counter, and against numbers reckoned by hand."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from glmexp.config import compose
from glmexp.models import build_model
from glmexp.models.description import describe
from glmexp.models.initialisation import from_config
from glmexp.models.method import apply
from glmexp.models.quantised import quantization
from glmexp.train.metrics.flops import ModelFlops, model_flops, visible_pairs

SAMPLES, LENGTH = 2, 24
TINY_QKV = 256 * (256 + 2 * 64)
"""Weights of the first layer's query, key and value projections in the tiny model."""


def tuned(*overrides: str) -> nn.Module:
    config = compose(["model=tiny", "model.init=random", *overrides]).config
    torch.manual_seed(0)
    packing = quantization(config.method, torch.float32)
    model = build_model(config.model, torch.float32, "eager", 0, torch.device("cpu"), packing)
    return apply(model, config.method)


def small(name: str, **fields: Any) -> PreTrainedModel:
    sizes = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **fields}, attn_implementation="eager")
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")  # type: ignore[no-any-return]


def counted(model: nn.Module) -> int:
    """What the counter sees of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(0, 100, (SAMPLES, LENGTH)), use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


def with_whole_square(flops: ModelFlops) -> int:
    """The same as ``of``, for the eager attention that computes what the mask hides, too."""
    pairs = SAMPLES * LENGTH * (LENGTH + flops.prefix)
    return flops.token * SAMPLES * LENGTH + sum(flops.pair.values()) * pairs + flops.forward_pass


@pytest.mark.parametrize(
    "choices",
    [
        ["method=full"],
        ["method=freeze", "method.last_layers=1"],
        ["method=freeze", "method.last_layers=null", "method.trainable=['lm_head.*']"],
        ["method=freeze", "method.last_layers=null", "method.trainable=['model.norm.weight']"],
        ["method=freeze", "method.last_layers=null", "method.trainable=['*.embed_tokens.*']"],
    ],
)
def test_full_and_freeze_agree_with_the_counter_to_the_last_operation(choices: list[str]) -> None:
    model = tuned(*choices)
    flops = model_flops(model)
    assert flops is not None
    assert with_whole_square(flops) == counted(model)


@pytest.mark.parametrize(
    "model",
    [
        lambda: small("Llama", num_key_value_heads=2, tie_word_embeddings=True),
        lambda: small("GPT2", n_embd=64, n_layer=2, n_head=4),
        lambda: small("Qwen3", num_key_value_heads=2, head_dim=32),
        lambda: small("Mistral", num_key_value_heads=2, sliding_window=8),
    ],
    ids=["tied", "conv1d", "wide heads", "window"],
)
def test_other_architectures_agree_with_the_counter(model: Any) -> None:
    made = model()
    flops = model_flops(made)
    assert flops is not None
    assert with_whole_square(flops) == counted(made)


def test_lora_spares_the_counter_what_leads_to_no_adapter() -> None:
    """The first layer's projections need no gradient of their input, nor do the adapters beside them; we count the layer."""
    model = tuned("method=lora", "method.rank=8")
    flops = model_flops(model)
    assert flops is not None
    adapters = 3 * 8 * 256  # lora_A of q, k and v
    assert with_whole_square(flops) - counted(model) == 2 * (TINY_QKV + adapters) * SAMPLES * LENGTH


@pytest.mark.parametrize("projection", ["false", "true"])
def test_a_prefix_is_seen_by_every_token_and_computed_once(projection: str) -> None:
    model = tuned("method=ptuning_v2", "optimizer.lr=1e-2", f"method.prefix_projection={projection}", "method.prefix_length=10")
    flops = model_flops(model)
    assert flops is not None
    assert flops.prefix == 10
    assert (flops.forward_pass > 0) is (projection == "true")
    unneeded = 2 * TINY_QKV * SAMPLES * LENGTH + 2 * 256 * SAMPLES * LENGTH * (LENGTH + 10)  # and that of the queries
    assert with_whole_square(flops) - counted(model) == unneeded


def chatglm2(*overrides: str) -> ModelFlops:
    config = compose(["model=chatglm2_6b", "model.init=random", *overrides]).config
    with torch.device("meta"):
        model = apply(from_config(describe(config.model).config, torch.bfloat16, "eager"), config.method)
    flops = model_flops(model)
    assert flops is not None
    return flops


LAYER = 4096 * (4096 + 2 * 256) + 4096 * 4096 + 4096 * 2 * 13696 + 13696 * 4096
CHATGLM2 = 28 * LAYER + 4096 * 65024
"""ChatGLM2-6B's linear layers: 5,976,883,200 of its 6,243,584,000 parameters."""


def test_chatglm2_by_hand() -> None:
    assert CHATGLM2 == 5_976_883_200
    pair = 28 * 4 * 32 * 128
    assert chatglm2() == ModelFlops(6 * CHATGLM2, {None: 3 * pair})
    adapters = 28 * 8 * ((4096 + 4096) + 2 * (4096 + 256))
    assert chatglm2("method=lora", "method.rank=8") == ModelFlops(4 * CHATGLM2 + 6 * adapters, {None: 3 * pair})
    last = chatglm2("method=freeze", "method.last_layers=2")
    # The forward pass, the last two layers in full, and the gradient that passes through the head.
    assert last == ModelFlops(2 * CHATGLM2 + 4 * 2 * LAYER + 2 * 4096 * 65024, {None: pair + 2 * 2 * 4 * 4096})
    per_token = chatglm2().of([1024]) / 1024
    assert per_token == pytest.approx(6 * CHATGLM2 + 12 * 28 * 4096 * 1025 / 2)  # PaLM's formula with half the square


def test_pairs() -> None:
    for length in (0, 1, 5, 9):
        for window in (None, 1, 3, 20):
            seen = [min(position + 1, window or length) for position in range(length)]
            assert visible_pairs(length, window) == sum(seen)


def test_samples_of_one_row_do_not_see_each_other() -> None:
    flops = ModelFlops(token=10, pair={None: 100, 2: 1000}, forward_pass=7, prefix=3)
    assert flops.of([2, 3]) == 10 * 5 + 100 * (3 + 6 + 3 * 5) + 1000 * (3 + 5 + 3 * 5) + 7


def test_weights_of_four_bits_count_as_what_they_stand_for() -> None:
    pytest.importorskip("bitsandbytes")
    assert model_flops(tuned("method=qlora", "method.rank=8")) == model_flops(tuned("method=lora", "method.rank=8"))


def test_partitioned_weights_count_whole() -> None:
    model = tuned()
    whole = model_flops(model)
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
        parameter.data = torch.empty(0)
    assert model_flops(model) == whole


@pytest.mark.parametrize(
    "model",
    [
        lambda: small("Mixtral", num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2),
        lambda: small("Qwen2Moe", num_experts=4, moe_intermediate_size=32, num_key_value_heads=2),
        lambda: small("Mamba"),
        lambda: nn.Linear(2, 2),
    ],
    ids=["mixtral", "qwen2_moe", "mamba", "no language model"],
)
def test_what_cannot_be_told_is_not_told(model: Any) -> None:
    assert model_flops(model()) is None
