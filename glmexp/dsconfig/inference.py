"""Config -> the dict for ZeRO-3 inference: parameters partitioned over the ranks, and neither optimizer nor gradients."""

from typing import Any

from glmexp.config.choices import Dtype
from glmexp.config.schema import Config
from glmexp.dsconfig.build import AIO, TORCH_NAMES, present, zero
from glmexp.dsconfig.machine import Machine

OF_PARAMETERS = (
    "stage",
    "overlap_comm",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "offload_param",
)
"""Keys of ``zero_optimization`` that a forward pass reads."""


def inference(config: Config, micro: int, machine: Machine) -> dict[str, Any]:
    """The DeepSpeed dict of a run's config at stage 3; empty at stages 0 to 2, where each rank has the whole model to itself.

    Args:
        micro: samples of one forward pass on one rank; DeepSpeed asks for it and makes no use of it here.
    """
    if config.zero.stage != 3:
        return {}
    section = {key: value for key, value in zero(config).items() if key in OF_PARAMETERS}
    ds: dict[str, Any] = {
        "train_batch_size": micro * machine.world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": 1,
        "zero_optimization": section,
    }
    if config.precision.dtype in (Dtype.bf16, Dtype.fp16):
        ds[config.precision.dtype.value] = {"enabled": True}
    if config.precision.autocast_dtype is not None:
        ds["torch_autocast"] = {"enabled": True, "dtype": TORCH_NAMES[config.precision.autocast_dtype]}
    if "offload_param" in section and section["offload_param"]["device"] == "nvme":
        ds["aio"] = present(config.offload.aio, *AIO)
    return ds
