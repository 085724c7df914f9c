"""The original ChatGLM2, ChatGLM3 and GLM-4 checkpoints, from their ``config.json`` alone.

Field names are the originals' (``configuration_chatglm.py``). Nothing here imports torch or runs a file of the folder.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from glmexp.config.errors import UserError

GLM4_VOCABULARY = 151552
"""``padded_vocab_size`` of GLM-4-9B; the ChatGLM2 and ChatGLM3 releases have 65024."""

V1_VOCABULARIES = (130528, 150528)
"""``vocab_size`` of the ChatGLM-6B releases."""


@dataclass(frozen=True)
class ChatGLMSpec:
    """What an original checkpoint is. Defaults are those of ``configuration_chatglm.py``; sizes are in elements."""

    num_layers: int = 28
    padded_vocab_size: int = 65024
    hidden_size: int = 4096
    ffn_hidden_size: int = 13696
    """Width after the gate; ``dense_h_to_4h`` has twice as many rows."""
    kv_channels: int | None = 128
    """Channels of one attention head; null divides ``hidden_size`` by the heads."""
    num_attention_heads: int = 32
    seq_length: int = 2048
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    layernorm_epsilon: float = 1e-5
    rmsnorm: bool = True
    apply_residual_connection_post_layernorm: bool = False
    post_layer_norm: bool = True
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    multi_query_attention: bool = False
    multi_query_group_num: int = 1
    fp32_residual_connection: bool = False
    rope_ratio: float | None = 1.0
    pre_seq_len: int | None = None
    eos_token_id: int | tuple[int, ...] | None = 2
    torch_dtype: str | None = None
    name: str = ""
    """``_name_or_path``: where the folder says it comes from."""
    tied_embeddings: bool = False
    """The output layer is the embedding. Never so in an original checkpoint; a native Glm folder may say it."""

    @property
    def head_dim(self) -> int:
        """Channels of one attention head. Heads times this need not equal ``hidden_size``."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        return self.multi_query_group_num if self.multi_query_attention else self.num_attention_heads

    @property
    def qkv_bias(self) -> bool:
        return self.add_qkv_bias or self.add_bias_linear

    @property
    def is_glm4(self) -> bool:
        """GLM-4 applies ``attention_dropout`` and multiplies the rotary base; ChatGLM2 and ChatGLM3 ignore the former."""
        return self.padded_vocab_size == GLM4_VOCABULARY or bool(re.search(r"glm-?4", self.release))

    @property
    def release(self) -> str:
        """The last part of ``name`` in lower case, such as ``chatglm2-6b-32k``."""
        return self.name.rstrip("/").rsplit("/", 1)[-1].lower()


def read_config(folder: Path) -> dict[str, Any] | None:
    """The folder's ``config.json``, or None if there is none. UserError if it is not a JSON object."""
    path = folder / "config.json"
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file. Set model.path to a model's folder.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}). Fetch it again, or set model.path.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a model configuration (no JSON object). Set model.path to a model's folder.")
    return content


def detect(folder: str | Path) -> ChatGLMSpec | None:
    """The original ChatGLM2, ChatGLM3 or GLM-4 checkpoint in ``folder``; None if it is anything else.

    Raises UserError for a relative of theirs that has another architecture, for a variant that is not supported, and for
    quantised weights of any architecture.
    """
    config = read_config(Path(folder))
    if config is None:
        return None
    where = str(Path(folder) / "config.json")
    _refuse_relatives(config, where)
    _refuse_quantised(config, where)
    if not _is_original(config):
        return None
    return parse(config, where)


def parse(config: Mapping[str, Any], where: str) -> ChatGLMSpec:
    """The fields of an original ``config.json``; missing ones take the originals' defaults. Raises UserError, see
    ``refuse_unsupported``. ``where`` names the file in messages."""
    known = {field.name for field in fields(ChatGLMSpec)} - {"name", "tied_embeddings"}
    values = {key: value for key, value in config.items() if key in known}
    eos = values.get("eos_token_id")
    if isinstance(eos, list):
        values["eos_token_id"] = tuple(eos)
    try:
        spec = ChatGLMSpec(**values, name=str(config.get("_name_or_path") or ""))
        _check_sizes(spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is not a usable ChatGLM configuration: {error}.\nFetch the file again.") from None
    refuse_unsupported(spec, where)
    return spec


def _is_original(config: Mapping[str, Any]) -> bool:
    # The first ChatGLM2 release has no model_type, so the architecture's name counts as well.
    named = config.get("model_type") == "chatglm" or any(
        str(name).startswith("ChatGLM") for name in config.get("architectures") or ()
    )
    return named and {"num_layers", "padded_vocab_size", "multi_query_attention"} <= config.keys()


def _refuse_relatives(config: Mapping[str, Any], where: str) -> None:
    """Refuses what shares ChatGLM's ``model_type`` or name but not its architecture."""
    if config.get("model_type") not in ("chatglm", None) and "position_encoding_2d" not in config:
        return
    first_release = (
        "position_encoding_2d" in config
        or "inner_hidden_size" in config
        or (config.get("model_type") == "chatglm" and config.get("vocab_size") in V1_VOCABULARIES)
    )
    if first_release:
        raise UserError(
            f"{where} is ChatGLM-6B (the first release, a prefix language model), which glmexp does not train.\n"
            "Set model.path to ChatGLM2-6B, ChatGLM3-6B or GLM-4."
        )
    if config.get("model_type") == "chatglm" and "vision_config" in config:
        raise UserError(f"{where} is GLM-4V, which reads images; glmexp trains text models. Set model.path to GLM-4.")


def _refuse_quantised(config: Mapping[str, Any], where: str) -> None:
    """Refuses packed weights: the originals' own ``quantization_bit``, and what transformers itself stores (GPTQ, AWQ …)."""
    bits, quantised = config.get("quantization_bit"), config.get("quantization_config")
    if bits:
        said = f"{where} says quantization_bit={bits}"
    elif quantised:
        method = quantised.get("quant_method", "quantised") if isinstance(quantised, dict) else "quantised"
        said = f"{where} says that the weights are {method}"
    else:
        return
    name = re.sub(r"-int\d$", "", str(config.get("_name_or_path") or ""))
    such_as = f", such as {name or 'THUDM/chatglm2-6b'}" if bits else ""
    raise UserError(
        f"{said}: packed integer weights have no gradient.\n"
        f"Set model.path to the unquantised model{such_as}; glmexp trains no quantised one, by any method or ZeRO stage."
    )


def _check_sizes(spec: ChatGLMSpec) -> None:
    sizes = ("num_layers", "padded_vocab_size", "hidden_size", "ffn_hidden_size", "num_attention_heads", "seq_length")
    for key in (*sizes, "multi_query_group_num"):
        value = getattr(spec, key)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{key} is {value!r}, a positive whole number is needed")
    if spec.num_attention_heads % spec.key_value_heads:
        raise ValueError(
            f"num_attention_heads {spec.num_attention_heads} is not a multiple of "
            f"multi_query_group_num {spec.multi_query_group_num}"
        )


def refuse_unsupported(spec: ChatGLMSpec, where: str) -> None:
    """Raises UserError for a variant whose function transformers' Glm does not compute, or that cannot be trained."""
    wrong = {
        "add_bias_linear": spec.add_bias_linear,
        "rmsnorm": not spec.rmsnorm,
        "post_layer_norm": not spec.post_layer_norm,
        "apply_residual_connection_post_layernorm": spec.apply_residual_connection_post_layernorm,
        "hidden_dropout": spec.hidden_dropout > 0,
    }
    for key, unsupported in wrong.items():
        if unsupported:
            raise UserError(
                f"{where} says {key}={getattr(spec, key)}, which no released ChatGLM has and the native model lacks.\n"
                "Set model.path to a released ChatGLM2, ChatGLM3 or GLM-4 checkpoint."
            )


def refuse_dtype(spec: ChatGLMSpec, dtype: str, where: str) -> None:
    """Raises UserError if ``dtype`` (a torch name such as ``bfloat16``) changes what the original would compute."""
    if spec.fp32_residual_connection and dtype not in ("float32", "float64"):
        raise UserError(
            f"{where} says fp32_residual_connection=True, which the native model has only in fp32, not {dtype}.\n"
            "Set precision=fp32."
        )
