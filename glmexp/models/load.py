"""Models from folders: the native Glm for original ChatGLM weights, transformers' own class for everything else.

No code of the folder is run, weights come from safetensors or from pickles under ``weights_only``, and a tensor that is
missing or unknown is an error. Original weights are mapped from disk and re-keyed as views, so loading needs no host memory
of its own; when a ``HfDeepSpeedConfig`` for ZeRO-3 is alive, transformers partitions the parameters as they are read.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GlmForCausalLM, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from glmexp.architecture.chatglm import ChatGLMSpec, refuse_dtype
from glmexp.architecture.checkpoint import Weights
from glmexp.architecture.keys import to_native
from glmexp.config.choices import Hub, Init
from glmexp.config.errors import UserError
from glmexp.config.schema import ModelConfig
from glmexp.models.description import Description, describe
from glmexp.models.errors import ModelLoadError
from glmexp.models.initialisation import random_model, restore_rotary_tables
from glmexp.models.quantised import quantise
from glmexp.models.weights import check_weights, load_pickle


def load_model(path: str | Path, dtype: str = "float32", rope_style: str | None = None) -> PreTrainedModel:
    """A Hugging Face causal LM, in evaluation mode on the CPU, from a native or an original ChatGLM folder or a hub id.

    ``dtype`` is a torch name such as ``bfloat16``; ``rope_style`` is the meaning of an original folder's ``rope_ratio``,
    ``linear`` or ``base``, else read from the folder. Raises ModelLoadError.
    """
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise ModelLoadError(f"dtype={dtype} is not a floating-point dtype of torch; float32, bfloat16 and float16 are.")
    model = ModelConfig(
        path=str(path),
        hub=Hub.huggingface,
        revision=None,
        init=Init.pretrained,
        template=None,
        rope_style=rope_style,
        recommended_precisions=[],
    )
    return load(describe(model), torch_dtype, attention="sdpa", device=torch.device("cpu"))


def build_model(
    model: ModelConfig,
    dtype: torch.dtype,
    attention: str,
    seed: int,
    device: torch.device,
    quantization: BitsAndBytesConfig | None = None,
) -> PreTrainedModel:
    """The model to train, in ``dtype`` on ``device``, with pretrained or seeded random weights; the key-value cache is off.

    With ZeRO-3 (a live ``HfDeepSpeedConfig``, and a process group) the parameters come partitioned and DeepSpeed places
    them. ``quantization`` makes the linear layers' weights 4 bits wide (``quantised``). Raises ModelLoadError.
    """
    description = describe(model)
    if model.init is Init.random:
        _refuse_dtype(description, dtype)
        built = random_model(description.config, dtype, attention, seed, device)
        built = built if quantization is None else quantise(built, quantization, device)
    else:
        built = load(description, dtype, attention, device, quantization)
    built.config.use_cache = False
    return built.train()


def load(
    description: Description,
    dtype: torch.dtype,
    attention: str,
    device: torch.device,
    quantization: BitsAndBytesConfig | None = None,
) -> PreTrainedModel:
    """The pretrained model that ``description`` tells of. Raises ModelLoadError."""
    _refuse_dtype(description, dtype)
    weights = check_weights(description)
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": attention,
        "config": description.config,
        "output_loading_info": True,
        # Told by us, below: transformers' own error is a table.
        "ignore_mismatched_sizes": True,
    }
    if quantization is not None:
        options["quantization_config"] = quantization
    # Straight to the device, tensor by tensor: no whole copy in host memory. ZeRO-3 places what it partitions itself.
    if device.type != "cpu" and not is_deepspeed_zero3_enabled():
        options["device_map"] = {"": device}
    if description.spec is not None:
        state = _native_state(weights, description.spec, description.original)
        loaded, report = GlmForCausalLM.from_pretrained(None, state_dict=state, **options)
    else:
        loaded, report = _from_folder(description, weights, options)
    _refuse_incomplete(description, report)
    if is_deepspeed_zero3_enabled():
        restore_rotary_tables(loaded)
    if description.folder is not None:
        loaded.config._name_or_path = str(description.folder)
    return loaded


def _from_folder(description: Description, weights: Weights, options: dict[str, Any]) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model of transformers' own architectures, and what transformers reports of its loading."""
    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            description.folder,
            trust_remote_code=False,
            local_files_only=True,
            weights_only=True,
            use_safetensors=not weights.pickled,
            **options,
        )
    except RuntimeError as error:
        # ZeRO-3 reports a wrong shape this way, on rank 0 only.
        if "size mismatch" not in str(error):
            raise
        reason = " ".join(str(error).split())
        raise ModelLoadError(f"{description.folder}: weights and config.json do not fit. {reason[:300]}") from error
    return loaded, report


def _refuse_dtype(description: Description, dtype: torch.dtype) -> None:
    if description.spec is None:
        return
    try:
        refuse_dtype(description.spec, str(dtype).removeprefix("torch."), str(description.folder))
    except UserError as error:
        raise ModelLoadError(str(error)) from None


def stored_state(description: Description) -> dict[str, torch.Tensor]:
    """The tensors in a described folder under the names that its model has, mapped from disk. Raises ModelLoadError."""
    return _native_state(check_weights(description), description.spec, description.original)


def _native_state(weights: Weights, spec: ChatGLMSpec | None, original: bool) -> dict[str, torch.Tensor]:
    """The tensors of the files under their native names; mapped from disk, so nothing is read yet."""
    state: dict[str, torch.Tensor] = {}
    for file in weights.files:
        if weights.pickled:
            tensors = load_pickle(file)
        else:
            with safe_open(file, framework="pt") as opened:
                names = opened.keys()
                tensors = {name: opened.get_tensor(name) for name in names}
        for name, tensor in tensors.items():
            if not original or spec is None:
                state[name] = tensor
            elif not name.startswith("transformer.prefix_encoder."):
                state |= to_native(name, tensor, spec)
    return state


def _refuse_incomplete(description: Description, report: dict[str, Any]) -> None:
    """Refuses what transformers only warns of: a missing tensor would have been random, a mismatched one too."""
    wrong = sorted(str(name) for name in report["missing_keys"])
    if wrong:
        raise ModelLoadError(
            f"{description.folder} lacks {_several(wrong)} that {type(description.config).__name__} needs.\n"
            "Fetch the model again, weights and config.json from the same place."
        )
    mismatched = [item[0] if isinstance(item, tuple) else str(item) for item in report["mismatched_keys"]]
    messages = [str(message) for message in report.get("error_msgs") or ()]
    if mismatched or messages:
        raise ModelLoadError(
            f"{description.folder}: {_several(mismatched) if mismatched else messages[0][:300]} "
            "does not fit config.json.\nFetch the model again, weights and config.json from the same place."
        )
    if description.spec is not None and report["unexpected_keys"]:
        raise ModelLoadError(f"{description.folder} holds {_several(sorted(report['unexpected_keys']))}, unknown to Glm.")


def _several(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more tensors" if len(names) > 1 else "")
