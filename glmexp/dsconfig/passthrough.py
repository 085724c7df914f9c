"""Raw DeepSpeed keys (``+deepspeed.KEY=value``) beside the derived ones."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from glmexp.config.errors import UserError

PLACES = {
    "train_batch_size": "batch.total",
    "train_micro_batch_size_per_gpu": "batch.micro",
    "gradient_accumulation_steps": "batch.accumulation",
    "gradient_clipping": "train.grad_clip",
    "optimizer": "optimizer",
    "optimizer.params": "optimizer",
    "optimizer.params.torch_adam": "offload.device",
    "optimizer.params.fused": "launch.device",
    "data_types.grad_accum_dtype": "precision.grad_accum_dtype",
    "communication_data_type": "comm.communication_data_type",
    "sequence_parallel_size": "comm.sequence_parallel_size",
    "seq_parallel_communication_data_type": "comm.communication_data_type",
    "zero_optimization": "zero",
    "zero_optimization.offload_optimizer": "offload",
    "zero_optimization.offload_param": "offload",
    "zero_optimization.offload_param.device": "offload.parameters",
    "zero_optimization.zenflow": "offload.zenflow",
    "aio": "offload.aio",
    "bf16": "precision",
    "bf16.enabled": "precision.dtype",
    "bf16.check_grad_overflow": "zero.stage",
    "fp16": "scaler",
    "fp16.enabled": "precision.dtype",
    "torch_autocast": "precision.autocast_dtype",
    "torch_autocast.enabled": "precision.autocast_dtype",
    "torch_autocast.dtype": "precision.autocast_dtype",
    "compile": "kernels",
}
"""DeepSpeed key -> the field or group of the config that it is derived from; the longest match counts.

Below a group the rest of the key is a field of the same name.
"""


def merge(derived: dict[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """``derived`` with the raw keys added; equal values pass, a different one raises UserError naming both places."""
    merged = deepcopy(derived)
    _add(merged, raw, "")
    return merged


def _add(target: dict[str, Any], raw: Mapping[str, Any], prefix: str) -> None:
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if name not in target:
            target[name] = deepcopy(value)
        elif isinstance(target[name], dict) and isinstance(value, Mapping):
            _add(target[name], value, f"{key}.")
        elif target[name] != value or isinstance(target[name], bool) is not isinstance(value, bool):
            raise UserError(
                f"deepspeed.{key}={value} and {place(key)} set one quantity: the latter gives {key}={target[name]}\n"
                f"set {place(key)} alone and leave deepspeed.{key} out"
            )


def place(key: str) -> str:
    """The field of the config that a DeepSpeed key is derived from, or its group; the key itself if nothing derives it."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        found = PLACES.get(".".join(parts[:length]))
        if found:
            rest = ".".join(parts[length:])
            return f"{found}.{rest}" if rest else found
    return key
