"""QLoRA's frozen weights: linear layers of 4 bits, by bitsandbytes (Dettmers et al. 2023).

Pretrained weights are quantised tensor by tensor as transformers reads them, so that the whole model is never on the GPU in
16 bits; random ones once they are drawn.
"""

from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from glmexp.config.choices import Method
from glmexp.config.errors import missing_package
from glmexp.config.schema import MethodConfig


def quantization(method: MethodConfig, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """How the base model of ``method`` is quantised, for transformers; None if it is not.

    Args:
        compute: the dtype of the matrix products, for which the weights are unpacked.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if method.name is not Method.qlora:
        return None
    assert method.quant_type is not None
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise missing_package("method=qlora", "bitsandbytes", "'glmexp[qlora]'", "choose method=lora") from error
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=method.quant_type.value,
        bnb_4bit_use_double_quant=bool(method.double_quant),
        bnb_4bit_compute_dtype=compute,
    )


def quantise(model: PreTrainedModel, settings: BitsAndBytesConfig, device: torch.device) -> PreTrainedModel:
    """The model with its linear layers but the output head quantised on ``device``, one after the other, in place."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    head = model.get_output_embeddings()
    for name, layer in list(model.named_modules()):
        if type(layer) not in (nn.Linear, Conv1D) or layer is head:
            continue
        weight = layer.weight.data.T.contiguous() if isinstance(layer, Conv1D) else layer.weight.data
        kind = {"quant_type": settings.bnb_4bit_quant_type, "compress_statistics": settings.bnb_4bit_use_double_quant}
        outputs, inputs = weight.shape
        compute = settings.bnb_4bit_compute_dtype
        packed: Any = Linear4bit(inputs, outputs, layer.bias is not None, compute, **kind, device="meta")
        packed.weight = Params4bit(weight, module=packed, **kind).to(device)
        packed.bias = layer.bias
        model.set_submodule(name, packed)
    # What transformers notes on a model that it has quantised itself, and peft asks for.
    model.is_loaded_in_4bit = True  # type: ignore[assignment]
    return model
