"""An original ChatGLM as transformers' native Glm, and a native Glm folder's sizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmexp.architecture.chatglm import GLM4_VOCABULARY, ChatGLMSpec
from glmexp.architecture.rope import rope_parameters, rope_style


def glm_config(spec: ChatGLMSpec, chosen_rope_style: str | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Keyword arguments of transformers' ``GlmConfig`` for the same function. Raises UserError, see ``rope_style``.

    The vocabulary is ``padded_vocab_size``, never the tokenizer's size. There is no padding token: with one, transformers
    would hold the gradient of row 0 (``<unk>``) at zero, which the original does not.
    """
    eos = spec.eos_token_id
    return {
        "vocab_size": spec.padded_vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.key_value_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "attention_dropout": spec.attention_dropout if spec.is_glm4 else 0.0,
        "max_position_embeddings": spec.seq_length,
        "rms_norm_eps": spec.layernorm_epsilon,
        "tie_word_embeddings": spec.tied_embeddings,
        "rope_parameters": rope_parameters(spec, rope_style(spec, chosen_rope_style, folder)),
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
        "attention_bias": spec.qkv_bias,
    }


def from_glm_config(config: Mapping[str, Any]) -> ChatGLMSpec:
    """The sizes of a native Glm folder (``model_type`` glm), for its shapes. Defaults are ``GlmConfig``'s."""
    heads = config.get("num_attention_heads", 32)
    return ChatGLMSpec(
        num_layers=config.get("num_hidden_layers", 40),
        padded_vocab_size=config.get("vocab_size", GLM4_VOCABULARY),
        hidden_size=config.get("hidden_size", 4096),
        ffn_hidden_size=config.get("intermediate_size", 13696),
        kv_channels=config.get("head_dim", 128),
        num_attention_heads=heads,
        seq_length=config.get("max_position_embeddings", 131072),
        attention_dropout=config.get("attention_dropout") or 0.0,
        layernorm_epsilon=config.get("rms_norm_eps", 1.5625e-07),
        add_qkv_bias=config.get("attention_bias", True),
        multi_query_attention=True,
        multi_query_group_num=config.get("num_key_value_heads", 2) or heads,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
