"""What of a model is trained: everything, a part of it as it is (``freeze``), low-rank adapters beside its linear layers (LoRA,
Hu et al. 2021; QLoRA on weights of 4 bits, in ``quantised``), or a prefix in front of every layer (P-tuning v2, ``prefix``)."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

from glmexp.config.choices import Method
from glmexp.config.errors import UserError, nearest
from glmexp.config.schema import MethodConfig, ModelConfig
from glmexp.models.description import describe
from glmexp.models.freeze import freeze
from glmexp.models.initialisation import from_config
from glmexp.models.prefix import add_prefix, check_prefix

FUSED = {
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "dense": ("o_proj",),
    "dense_h_to_4h": ("gate_up_proj",),
    "dense_4h_to_h": ("down_proj",),
}
"""Layer names of the original ChatGLM code -> those of the native model."""

OUTPUT_PROJECTIONS = {"o_proj", "out_proj", "dense", "c_proj", "wo", "proj", "out_lin"}
ALL_LINEAR = "all-linear"


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Full name -> layer, for each linear layer except the output head."""
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D) and layer is not head}


def _leaves(names: Iterable[str]) -> list[str]:
    return sorted({name.rsplit(".", 1)[-1] for name in names})


def default_targets(model: PreTrainedModel) -> list[str]:
    """Layers that get an adapter when ``method.target_modules`` is null: the attention's input projections.

    For the ChatGLM family these are q_proj, k_proj and v_proj, which its original code fuses into query_key_value.
    """
    layers = linear_layers(model)
    attention = [name for name in layers if any("attn" in part or "attention" in part for part in name.split("."))]
    inputs = [name for name in attention if name.rsplit(".", 1)[-1] not in OUTPUT_PROJECTIONS]
    return _leaves(inputs or attention or layers)


def targets(model: PreTrainedModel, method: MethodConfig) -> list[str]:
    """The layer names that LoRA adapts; the model may be on the meta device.

    Raises:
        UserError: a name in ``method.target_modules`` fits no linear layer; the message lists those there are.
    """
    wanted = method.target_modules
    if wanted is None:
        return default_targets(model)
    layers = linear_layers(model)
    known = _leaves(layers)
    chosen: list[str] = []
    for name in wanted:
        if name == ALL_LINEAR:
            chosen += known
        elif any(layer == name or layer.endswith(f".{name}") for layer in layers):
            chosen.append(name)
        elif name in FUSED and all(part in known for part in FUSED[name]):
            chosen += FUSED[name]
        else:
            close = nearest(name, known)
            hint = f"; did you mean {close}?" if close else ""
            raise UserError(
                f"method.target_modules: {name} is not a linear layer below this model's head{hint}\n"
                f"its linear layers are {', '.join(known)}"
            )
    if not chosen:
        raise UserError("method.target_modules is empty; null takes the attention projections")
    return list(dict.fromkeys(chosen))


def check_targets(model: ModelConfig, method: MethodConfig) -> None:
    """Refuses what ``method`` does not fit, from the model's configuration alone and before any weights are read: a wrong
    ``method.target_modules``, ``method.trainable`` or ``method.last_layers``, or an architecture that takes no prefix.

    Raises UserError.
    """
    if method.name is Method.full:
        return
    with torch.device("meta"), no_init_weights():
        shape = from_config(describe(model).config, torch.bfloat16, "eager")
        if method.name is Method.ptuning_v2:
            check_prefix(shape, method)
        elif method.name is Method.freeze:
            freeze(shape, method)
        else:
            targets(shape, method)


def apply(model: PreTrainedModel, method: MethodConfig) -> PreTrainedModel:
    """The model with its trainable parameters chosen; for QLoRA its weights are quantised already, or are left as they are.

    LoRA and P-tuning draw from torch's generator: seed it alike on every rank, since at ZeRO stage 3 each rank keeps its
    part of its own draw. What they add is whole, in the base layers' dtype; ``deepspeed.initialize`` partitions it.

    Raises:
        UserError: a name fits nothing in the model, or the architecture takes no prefix.
    """
    if method.name is Method.full:
        model.requires_grad_(True)
        return model
    if method.name is Method.freeze:
        return freeze(model, method)
    if method.name is Method.ptuning_v2:
        return add_prefix(model, method)
    return _add_adapters(model, method)


def _add_adapters(model: PreTrainedModel, method: MethodConfig) -> PreTrainedModel:
    from peft import LoraConfig, get_peft_model

    rank = method.rank or 8
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=method.alpha if method.alpha is not None else 2 * rank,
        lora_dropout=method.dropout or 0.0,
        target_modules=targets(model, method),
        bias="none",
        use_dora=bool(method.dora),
        use_rslora=bool(method.rslora),
    )
    # In fp32 the adapters would be a second dtype, which DeepSpeed's flat buffers do not take.
    return get_peft_model(model, lora, autocast_adapter_dtype=False)  # type: ignore[return-value]


def trainable_parameters(model: nn.Module) -> tuple[int, int]:
    """(trainable, all) parameters, whole even where ZeRO stage 3 keeps a part only or 4 bits are packed in a byte."""
    trainable = total = 0
    for parameter in model.parameters():
        packed = getattr(parameter, "quant_state", None)
        count = getattr(parameter, "ds_numel", parameter.numel()) if packed is None else math.prod(packed.shape)
        total += count
        trainable += count if parameter.requires_grad else 0
    return trainable, total


def describe_trainable(model: nn.Module) -> str:
    """``trainable parameters: 24,576 of 1,234,567 (1.99 %)``; UserError if there are none."""
    trainable, total = trainable_parameters(model)
    if trainable == 0:
        raise UserError("no parameter would be trained; choose another method, or see method.trainable")
    return f"trainable parameters: {trainable:,} of {total:,} ({100 * trainable / total:.2f} %)"
