"""What a model is before any weight is read: its folder, its original configuration if it has one, and transformers' own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GlmConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from glmexp.architecture import ChatGLMSpec, detect, from_glm_config, glm_config, preset, read_config
from glmexp.config.choices import Init
from glmexp.config.errors import UserError
from glmexp.config.schema import ModelConfig
from glmexp.models.errors import ModelLoadError
from glmexp.models.source import local_folder, located


@dataclass(frozen=True)
class Description:
    """One model, described."""

    config: PreTrainedConfig
    """transformers' configuration: ``vocab_size`` (padded), ``num_hidden_layers``, ``max_position_embeddings`` and so on."""
    folder: Path | None
    """None for a released model that is initialised at random: its shape is known without a download."""
    spec: ChatGLMSpec | None
    """The sizes of a ChatGLM or Glm; None for any other architecture."""
    original: bool
    """The weights have the original ChatGLM layout, not transformers'."""


def describe(model: ModelConfig) -> Description:
    """Describes the model that ``model`` names; a hub id is fetched unless its files are here or not needed.

    Raises ModelLoadError: no such folder or repository, no usable configuration, an architecture that is not supported.
    """
    released = preset(model.path) if local_folder(model.path) is None else None
    try:
        if released is not None and model.init is Init.random:
            return Description(GlmConfig(**glm_config(released, model.rope_style)), None, released, original=True)
        return describe_folder(located(model), model.rope_style)
    except ModelLoadError:
        raise
    except UserError as error:
        raise ModelLoadError(str(error)) from None


def describe_folder(folder: Path, rope_style: str | None = None) -> Description:
    """Describes the model in ``folder``. Raises UserError, see ``describe``."""
    config = read_config(folder)
    if config is None:
        raise ModelLoadError(_no_config(folder))
    spec = detect(folder)
    if spec is not None:
        return Description(GlmConfig(**glm_config(spec, rope_style, folder)), folder, spec, original=True)
    _refuse_unknown(folder, config)
    try:
        known = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        # Each architecture's configuration validates itself, with errors of its own.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelLoadError(
            f"{folder / 'config.json'} is not a usable configuration: {reason[:300]}\nFetch it again, or check model.path."
        ) from error
    native = from_glm_config(config) if config.get("model_type") == "glm" else None
    return Description(known, folder, native, original=False)


def _no_config(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return f"{folder} holds an adapter, not a model. Set model.path to the adapter's base model."
    return f"{folder} has no config.json, so it is not a model's folder. Check model.path."


def _refuse_unknown(folder: Path, config: dict[str, Any]) -> None:
    """Refuses what transformers cannot build itself: code that comes with a model is never run."""
    kind = config.get("model_type")
    where = folder / "config.json"
    if kind not in CONFIG_MAPPING_NAMES:
        code = _code_file(config)
        if code is not None:
            raise ModelLoadError(
                f"{where}: model_type={kind} needs {folder / code}, and glmexp never runs code that comes with a model.\n"
                "Set model.path to a model that transformers knows itself, or to ChatGLM2, ChatGLM3 or GLM-4."
            )
        raise ModelLoadError(
            f"{where}: model_type={kind} is not known to this transformers.\n"
            "Check model.path, or upgrade transformers if the model is newer."
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelLoadError(f"{where}: model_type={kind} is not a causal language model. Set model.path to one.")


def _code_file(config: dict[str, Any]) -> str | None:
    """The Python file that the folder's ``auto_map`` would run."""
    entries = config.get("auto_map")
    if not isinstance(entries, dict) or not entries:
        return None
    name = entries.get("AutoModelForCausalLM") or entries.get("AutoModel") or next(iter(entries.values()))
    name = name[0] if isinstance(name, list) and name else name
    return f"{str(name).rsplit('--', 1)[-1].split('.')[0]}.py"
