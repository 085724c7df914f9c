"""Model FLOPs: the floating-point operations that training needs by the model's shape, whatever the hardware does besides.

A matrix product of a token with a weight takes 2 FLOPs a parameter in the forward pass, 2 for the gradient of its input and 2
for the gradient of the weight. So full fine-tuning of N parameters takes 6N a token, and LoRA about 4N: frozen weights need no
gradient, but gradients pass through them (PaLM, arXiv 2204.02311, appendix B). N counts linear layers, the head among them,
and no embedding, which is looked up. An attention layer takes 2 x 2 x heads x head dim for each pair of a token and one that it
sees, half the square of the length in a causal model, and twice that in the backward pass (Megatron-LM, arXiv 2104.04473,
appendix). Activations that are computed again under checkpointing do not count, nor do norms, activations, the optimizer and
the extra work of 4-bit weights or DoRA.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from glmexp.models.prefix import SUBMODULE

BEFORE = -1
"""Place of what comes before the first layer: the embeddings."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
LATENT = "kv_lora_rank"
"""Multi-head latent attention, whose products have other shapes."""
NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of one rank's forward and backward passes, exact but for the first trained layer, which counts as a whole."""

    token: int
    """A token's products with the weights."""
    pair: dict[int | None, int]
    """Attention window in tokens, or None for all that came before -> FLOPs of a pair, over all layers of that window."""
    forward_pass: int = 0
    """What does not depend on the batch: the network that computes a P-tuning prefix."""
    prefix: int = 0
    """Positions of a P-tuning prefix, which every token sees."""

    def of(self, lengths: Sequence[int]) -> int:
        """FLOPs of one micro batch of samples with so many tokens each; none of them sees another's tokens."""
        attention = sum(
            flops * (visible_pairs(length, window) + self.prefix * length)
            for window, flops in self.pair.items()
            for length in lengths
        )
        return self.token * sum(lengths) + attention + self.forward_pass


def visible_pairs(length: int, window: int | None = None) -> int:
    """Pairs of a token and one that it sees: itself and those before it, in all at most ``window``."""
    near = length if window is None else min(length, window)
    return near * (near + 1) // 2 + (length - near) * near


def model_flops(model: nn.Module) -> ModelFlops | None:
    """The FLOPs of a model with its tuning method applied; partitioned parameters are known by their whole shape.

    Returns:
        None where the products cannot be told from its modules: experts, of which a token sees a few, attention other than
        softmax over all tokens or a window, and matrices that belong to no linear layer.
    """
    attention = attention_of(model)
    linear = linear_layers(model)
    places = {layer.name: place(layer.name) for layer in linear}
    if attention is None or not knows_all_of(model):
        return None
    windows, width = attention
    after, head = len(windows), len(windows) + 1
    if {number for number in places.values() if number is not None} != set(range(after)):
        return None
    first = first_trained(model, after, head)
    encoder: Any = getattr(model, SUBMODULE.rstrip("."), None)
    prefix = 0 if encoder is None else int(encoder.length)
    token = forward_pass = 0
    for layer in linear:
        if layer.name.startswith(SUBMODULE):
            forward_pass += 6 * layer.size * prefix
            continue
        number = places[layer.name]
        where = number if number is not None else head if layer.is_head else after
        passed_on = first < where or first == where < after
        token += 2 * layer.size * (1 + layer.trained + passed_on)
    pair: dict[int | None, int] = {}
    for number, window in enumerate(windows):
        pair[window] = pair.get(window, 0) + 4 * width * (3 if first <= number else 1)
    return ModelFlops(token, pair, forward_pass, prefix)


@dataclass(frozen=True)
class Linear:
    name: str
    size: int
    """Parameters of the weight, as the product sees it: also where 4-bit weights are packed."""
    trained: bool
    is_head: bool


def linear_layers(model: nn.Module) -> list[Linear]:
    """Every linear layer, the head and adapters included, also where its weight is tied to another."""
    head = output_layer(model)
    found = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            size = layer.in_features * layer.out_features
        elif isinstance(layer, Conv1D):
            size = layer.nx * layer.nf
        else:
            continue
        found.append(Linear(name, size, bool(layer.weight.requires_grad), layer is head))
    return found


def output_layer(model: nn.Module) -> nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    return find() if callable(find) else None


def attention_of(model: nn.Module) -> tuple[list[int | None], int] | None:
    """Each layer's attention window in tokens, None for one that sees all, and heads x head dim; None for another kind."""
    config = getattr(model, "config", None)
    text: Any = config.get_text_config() if isinstance(config, PreTrainedConfig) else None
    layers, heads = getattr(text, "num_hidden_layers", None), getattr(text, "num_attention_heads", None)
    if not (isinstance(layers, int) and isinstance(heads, int)) or getattr(text, LATENT, None):
        return None
    if any((getattr(text, name, None) or 0) > 1 for name in EXPERTS):
        return None
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        return None
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return [window if kind == "sliding_attention" else None for kind in kinds], heads * head_dim


def place(name: str) -> int | None:
    """The number of the layer that a module or parameter belongs to; None outside of the layers."""
    found = None if name.startswith(SUBMODULE) else NUMBER.search(name)
    return int(found[1]) if found else None


def first_trained(model: nn.Module, after: int, head: int) -> int:
    """The place of the first layer that holds a trained parameter; gradients go down to it and no further.

    Args:
        after: place of what follows the layers, such as the last norm.
        head: place of the output layer.
    """
    head_layer = output_layer(model)
    embeddings = {id(p) for layer in model.modules() if isinstance(layer, nn.Embedding) for p in layer.parameters()}
    heads = {id(p) for p in head_layer.parameters()} if head_layer is not None else set()

    def where(name: str, parameter: nn.Parameter) -> int:
        if name.startswith(SUBMODULE):  # joins in the attention of the first layer
            return 0
        number = place(name)
        if number is not None:
            return number
        return BEFORE if id(parameter) in embeddings else head if id(parameter) in heads else after

    trained = (where(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    return min(trained, default=head + 1)


def knows_all_of(model: nn.Module) -> bool:
    """Whether every matrix of the model is in a linear layer or an embedding, so that its products are known."""
    return not any(
        is_matrix(parameter)
        for layer in model.modules()
        if not isinstance(layer, nn.Linear | Conv1D | nn.Embedding)
        for parameter in layer.parameters(recurse=False)
    )


def is_matrix(parameter: nn.Parameter) -> bool:
    """By its whole shape, also where ZeRO stage 3 keeps a part of it."""
    return len(getattr(parameter, "ds_shape", parameter.shape)) > 1
