"""The two meanings of ``rope_ratio``, which ``config.json`` alone does not tell apart."""

import re
from pathlib import Path
from typing import Any

from glmexp.architecture.chatglm import ChatGLMSpec
from glmexp.config.choices import ROPE_STYLES
from glmexp.config.errors import UserError


def rope_style(spec: ChatGLMSpec, chosen: str | None = None, folder: Path | None = None) -> str | None:
    """What ``rope_ratio`` means: ``linear`` divides positions (ChatGLM2-32k), ``base`` multiplies the rotary base
    (ChatGLM3-32k, GLM-4), None is no ratio at all.

    ``chosen`` (the user's ``model.rope_style``) wins; then the text of ``modeling_chatglm.py`` in ``folder``, which is
    read and never run; then the model's name. Raises UserError if these do not tell: the wrong one moves logits by
    about 10 and nothing would show it.
    """
    if chosen is not None and chosen not in ROPE_STYLES:
        raise UserError(f"model.rope_style={chosen} is unknown; it is linear, base or null.")
    if spec.rope_ratio in (None, 0, 1):
        return None
    if chosen is not None:
        return chosen
    found = (folder and _rope_style_of_code(folder)) or _rope_style_of_name(spec)
    if found is None:
        raise UserError(
            f"model.path={folder or spec.name} has rope_ratio={spec.rope_ratio}, and whether it divides positions or "
            "multiplies the rotary base is not in the folder.\n"
            "Set model.rope_style=linear (ChatGLM2-6B-32k and its derivatives) or model.rope_style=base (ChatGLM3, GLM-4)."
        )
    return found


def _rope_style_of_code(folder: Path) -> str | None:
    try:
        text = (folder / "modeling_chatglm.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    linear = re.search(r"/\s*self\.(rope_)?ratio", text) is not None
    base = re.search(r"base\s*=\s*(base|10000)\s*\*\s*self\.(rope_)?ratio", text) is not None
    if linear == base:
        return None
    return "linear" if linear else "base"


def _rope_style_of_name(spec: ChatGLMSpec) -> str | None:
    if spec.is_glm4 or "chatglm3" in spec.release:
        return "base"
    return "linear" if "chatglm2" in spec.release else None


def rope_parameters(spec: ChatGLMSpec, style: str | None) -> dict[str, Any]:
    """The native model's ``rope_parameters``: half of each head is rotated, in interleaved pairs."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    if style == "linear":
        parameters |= {"rope_type": "linear", "factor": float(spec.rope_ratio or 1.0)}
    elif style == "base":
        parameters["rope_theta"] = 10000.0 * float(spec.rope_ratio or 1.0)
    return parameters
