"""What a model is, from its folder's ``config.json`` and file headers alone (no torch)."""

from glmexp.architecture.chatglm import ChatGLMSpec, detect, read_config
from glmexp.architecture.glm import from_glm_config, glm_config
from glmexp.architecture.keys import parameter_count, shapes
from glmexp.architecture.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "ChatGLMSpec",
    "detect",
    "from_glm_config",
    "glm_config",
    "parameter_count",
    "preset",
    "read_config",
    "shapes",
]
