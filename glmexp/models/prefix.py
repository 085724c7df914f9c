"""P-tuning v2: trained keys and values in front of every layer's own, the model itself frozen (Liu et al. 2021).

The encoder has the layout of ChatGLM2's official one, for any Hugging Face causal LM. Its keys and values are not rotated,
every token sees all of them, and the positions of the text start at 0. They join inside the attention function, behind the
key-value cache: activation checkpointing drops nothing, and generation works with whatever cache transformers uses.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from glmexp.config.errors import UserError
from glmexp.config.schema import MethodConfig
from glmexp.models.errors import ModelLoadError
from glmexp.models.weights import load_pickle

SUBMODULE = "prefix_encoder."
OFFICIAL = "transformer.prefix_encoder."
"""What its names begin with in a model here, and in an official checkpoint and an export."""
FILE = "prefix_encoder.safetensors"
SETTINGS = "prefix_config.json"
OFFICIAL_FILE = "pytorch_model.bin"

NEXT_MOVE = "\nuse method=lora, or a model of ordinary attention (Glm, Llama, Qwen, Mistral and most newer ones)"

States = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer the prefix's keys and values, each of shape (batch, kv heads, prefix length, head dim)."""


class PrefixEncoder(nn.Module):
    """The trained part.

    Without projection it is a table of ``size`` = layers x 2 x kv heads x head dim numbers a position. With projection two
    linear layers with a tanh between, ``size`` to ``hidden_size`` and back, follow that table.
    """

    def __init__(self, config: PreTrainedConfig, length: int, projection: bool, dropout: float) -> None:
        super().__init__()
        if not getattr(config, "num_attention_heads", None):
            raise UserError(f"method=ptuning_v2: {config.model_type} has no attention heads{NEXT_MOVE}")
        self.kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.length = length
        size = config.num_hidden_layers * 2 * self.kv_heads * self.head_dim
        self.embedding = nn.Embedding(length, size)
        self.trans: nn.Module = nn.Identity()
        if projection:
            self.trans = nn.Sequential(nn.Linear(size, config.hidden_size), nn.Tanh(), nn.Linear(config.hidden_size, size))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: int, device: torch.device) -> States:
        """The states for ``batch`` samples; dropout differs between samples."""
        table = self.trans(self.embedding(torch.arange(self.length, device=device)))
        # In the order of the official view: layer by layer its keys, then its values.
        split = table.view(self.length, -1, self.kv_heads, self.head_dim).permute(1, 2, 0, 3)
        states = self.dropout(split.unsqueeze(1).expand(-1, batch, -1, -1, -1)).unbind()
        return list(zip(states[0::2], states[1::2], strict=True))


def add_prefix(model: PreTrainedModel, method: MethodConfig) -> PreTrainedModel:
    """The model, frozen, with a new prefix in its dtype; drawn from torch's generator, so seed it alike on every rank.

    Raises:
        UserError: the architecture does not use transformers' attention interface.
    """
    assert method.prefix_length is not None
    config = model.config.get_text_config()
    encoder = PrefixEncoder(config, method.prefix_length, bool(method.prefix_projection), method.dropout or 0.0)
    model.requires_grad_(False)
    attach(model, encoder.to(model.device, model.dtype))
    return model


def load_prefix(model: PreTrainedModel, path: str | Path) -> PreTrainedModel:
    """Puts a trained prefix onto the loaded base model, in its dtype: a run's ``export/``, or an official checkpoint.

    An official checkpoint is a folder whose pytorch_model.bin holds the prefix alone, or that file. Nothing of it is run.

    Raises:
        ModelLoadError: no such file, no prefix in it, or one of another model.
    """
    file = _prefix_file(Path(path))
    content = _tensors(file)
    state = {name.removeprefix(OFFICIAL): tensor for name, tensor in content.items() if name.startswith(OFFICIAL)}
    if "embedding.weight" not in state:
        raise ModelLoadError(f"{file} holds no P-tuning prefix ({OFFICIAL}embedding.weight).\nGive a run's export/ folder.")
    length = state["embedding.weight"].shape[0]
    encoder = PrefixEncoder(model.config.get_text_config(), length, "trans.0.weight" in state, dropout=0.0)
    expected = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if found != expected:
        name = next(name for name in [*expected, *found] if found.get(name) != expected.get(name))
        raise ModelLoadError(
            f"{file}: {name} has shape {found.get(name)}, and this model needs {expected.get(name)}.\n"
            f"Load the model that the prefix was trained on; {SETTINGS} beside it names it."
        )
    encoder.load_state_dict(state)
    attach(model, encoder.to(model.device, model.dtype).train(model.training))
    return model


def check_prefix(model: PreTrainedModel, method: MethodConfig) -> None:
    """Raises UserError if ``model`` cannot carry a prefix. It is on the meta device, where a forward pass costs nothing."""
    add_prefix(model, method)
    tokens = torch.ones(1, 2, dtype=torch.long, device="meta")
    # What asks for a value, which the meta device does not have, is found out by the first real forward pass.
    with suppress(RuntimeError):
        model(input_ids=tokens, attention_mask=tokens, use_cache=False)


def attach(model: PreTrainedModel, encoder: PrefixEncoder) -> None:
    """Makes every attention of ``model`` see the states of ``encoder``, which becomes its submodule ``prefix_encoder``."""
    plain = model.config._attn_implementation
    name = f"prefix_{plain}"
    if plain not in ("sdpa", "eager"):
        raise UserError(f"method=ptuning_v2 works with kernels.attention=sdpa or eager, not with {plain}")
    AttentionInterface.register(name, partial(_attend, sdpa_attention_forward if plain == "sdpa" else None))
    AttentionMaskInterface.register(name, partial(_whole_mask, sdpa_mask if plain == "sdpa" else eager_mask))
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise UserError(
            f"method=ptuning_v2: {type(model).__name__} does not use transformers' attention interface, where the prefix joins"
            f"{NEXT_MOVE}"
        )
    model.add_module(SUBMODULE.rstrip("."), encoder)
    # Inside the forward pass of the whole model, where ZeRO stage 3 gathers what its submodules need in a fixed order.
    model.base_model.register_forward_pre_hook(partial(_hand_over, encoder), with_kwargs=True)


def _hand_over(encoder: PrefixEncoder, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Adds the states to the keyword arguments, which every layer passes on to its attention.

    As arguments they are also what activation checkpointing computes a layer again from.
    """
    tokens = named.get("input_ids")
    if tokens is None:
        tokens = named.get("inputs_embeds")
    if tokens is None:
        tokens = arguments[0]
    return arguments, {**named, "prefix_states": encoder(len(tokens), tokens.device)}


def _attend(
    attention: Callable[..., Any] | None,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    prefix_states: States | None = None,
    **options: Any,
) -> Any:
    """An attention function of transformers over the prefix and the text; None is the architecture's own eager one.

    ``key`` and ``value`` (batch, kv heads, tokens, head dim) include the cache, ``mask`` (batch, 1, queries, tokens) is True or
    0 where a token is seen.

    Raises:
        UserError: the architecture hands no arguments on to its attention, or its keys and values have a shape of their own.
    """
    if attention is None:
        attention = sys.modules[type(module).__module__].eager_attention_forward
    name = type(module).__name__
    if prefix_states is None:
        raise UserError(f"method=ptuning_v2: the layers around {name} hand no prefix on to it{NEXT_MOVE}")
    prefix_key, prefix_value = prefix_states[int(module.layer_idx)]  # type: ignore[arg-type]
    if key.shape[1::2] != prefix_key.shape[1::2] or value.shape[1::2] != prefix_value.shape[1::2]:
        raise UserError(f"method=ptuning_v2: the keys and values of {name} are not kv heads x head dim in shape{NEXT_MOVE}")
    key = torch.cat([prefix_key.to(key.dtype), key], dim=-2)
    value = torch.cat([prefix_value.to(value.dtype), value], dim=-2)
    seen = True if mask.dtype is torch.bool else 0.0
    mask = nn.functional.pad(mask, (prefix_key.shape[-2], 0), value=seen)
    return attention(module, query, key, value, mask, **options)


def _whole_mask(mask: Callable[..., torch.Tensor], **arguments: Any) -> torch.Tensor:
    """The mask of an attention function, also where sdpa could do without one: that shortcut knows no prefix."""
    return mask(**{**arguments, "allow_is_causal_skip": False})


def _prefix_file(path: Path) -> Path:
    candidates = [path / FILE, path / OFFICIAL_FILE] if path.is_dir() else [path]
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        raise ModelLoadError(f"{path} holds no trained prefix ({FILE} or {OFFICIAL_FILE}).\nGive a run's export/ folder.")
    return found


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if file.suffix != ".safetensors":
        return load_pickle(file)
    try:
        return dict(load_file(file))
    except SafetensorError as error:
        raise ModelLoadError(f"{file} cannot be read as weights: {error}.\nIt is cut short; export it again.") from error
