"""The released models by hub id, so that their shape is known without a download.

Values are those of the releases' ``config.json``, in the original fields; what is left out has the originals' default.
"""

from dataclasses import replace
from typing import Any

from glmexp.architecture.chatglm import ChatGLMSpec, parse

_CHATGLM: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "num_layers": 28,
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "padded_vocab_size": 65024,
    "add_qkv_bias": True,
    "layernorm_epsilon": 1e-05,
    "eos_token_id": 2,
    "torch_dtype": "float16",
}

PRESETS: dict[str, dict[str, Any]] = {
    "chatglm2_6b": _CHATGLM | {"_name_or_path": "THUDM/chatglm2-6b", "seq_length": 32768},
    "chatglm2_6b_32k": _CHATGLM | {"_name_or_path": "THUDM/chatglm2-6b-32k", "seq_length": 32768, "rope_ratio": 16},
    "chatglm3_6b": _CHATGLM | {"_name_or_path": "THUDM/chatglm3-6b", "seq_length": 8192},
    "glm4_9b": _CHATGLM
    | {
        "_name_or_path": "THUDM/glm-4-9b-chat",
        "num_layers": 40,
        "padded_vocab_size": 151552,
        "seq_length": 131072,
        "layernorm_epsilon": 1.5625e-07,
        "rope_ratio": 500,
        "eos_token_id": [151329, 151336, 151338],
        "torch_dtype": "bfloat16",
    },
}
"""Option name of the ``model`` group to the original configuration."""

# The same repositories under the organisation's old and new name, and on ModelScope.
_OWNERS = ("thudm", "zai-org", "zhipuai")
_REPOSITORIES = {
    "chatglm2-6b": "chatglm2_6b",
    "chatglm2-6b-32k": "chatglm2_6b_32k",
    "chatglm3-6b": "chatglm3_6b",
    "glm-4-9b-chat": "glm4_9b",
}


def preset(path: str) -> ChatGLMSpec | None:
    """The released model whose hub id ``path`` is, or None; ``THUDM/``, ``zai-org/`` and ``ZhipuAI/`` all count."""
    owner, _, repository = path.lower().partition("/")
    if owner not in _OWNERS or repository not in _REPOSITORIES:
        return None
    spec = parse(PRESETS[_REPOSITORIES[repository]], path)
    return replace(spec, name=path)
