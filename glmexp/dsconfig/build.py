"""Config + machine -> the dict that DeepSpeed runs on.

Pure: no files, environment or clock, and no number that is not in the config. Every default of DeepSpeed 0.19 that changes
numbers, memory or speed is written out, no key that the chosen stage ignores is, and nothing is ever "auto".
"""

from typing import Any

from glmexp.config.batch import solve
from glmexp.config.choices import Dtype, OffloadDevice
from glmexp.config.engine_schema import OffloadConfig, ScalerConfig
from glmexp.config.schema import Config
from glmexp.config.zero import STAGES
from glmexp.dsconfig.machine import Machine
from glmexp.dsconfig.passthrough import merge


def build(config: Config, machine: Machine) -> dict[str, Any]:
    """The DeepSpeed dict, plain JSON types only.

    Raises UserError when the batch cannot be solved for ``machine.world_size``, or when ``deepspeed.KEY`` sets a key that is
    derived from another field to a different value.
    """
    batch = solve(config.batch, machine.world_size)
    dtype = config.precision.dtype
    ds: dict[str, Any] = {
        "train_batch_size": batch.total,
        "train_micro_batch_size_per_gpu": batch.micro,
        "gradient_accumulation_steps": batch.accumulation,
        # DeepSpeed 0.19 clips at 1.0 when the key is left out, so "off" is an explicit 0.0.
        "gradient_clipping": float(config.train.grad_clip or 0.0),
        "optimizer": optimizer(config, machine),
        "data_types": {"grad_accum_dtype": (config.precision.grad_accum_dtype or dtype).value},
        "communication_data_type": (config.comm.communication_data_type or dtype).value,
        "zero_optimization": zero(config),
    }
    if dtype is Dtype.bf16:
        ds["bf16"] = {"enabled": True}
        if config.zero.stage in (1, 2):
            ds["bf16"]["check_grad_overflow"] = True  # read at stages 1 and 2 alone; the others always check
    elif dtype is Dtype.fp16:
        ds["fp16"] = {"enabled": True, **scaler(config.scaler)}
    return merge(ds, config.deepspeed)


def optimizer(config: Config, machine: Machine) -> dict[str, Any]:
    """DeepSpeed's ``optimizer`` section.

    ``torch_adam`` asks for torch.optim.AdamW, which needs no compiler: DeepSpeed would otherwise build FusedAdam at the first
    start. On a GPU torch's own fused kernel updates all parameters in one pass. With offload neither is set, which selects
    DeepSpeedCPUAdam (engine.py, _configure_basic_optimizer).
    """
    wanted = config.optimizer
    params: dict[str, Any] = {
        "lr": wanted.lr,
        "betas": [float(beta) for beta in wanted.betas],
        "eps": wanted.eps,
        "weight_decay": wanted.weight_decay,
    }
    if config.offload.device is OffloadDevice.none:
        params["torch_adam"] = True
        if machine.device == "gpu":
            params["fused"] = True
    return {"type": wanted.type.value, "params": params}


def zero(config: Config) -> dict[str, Any]:
    """DeepSpeed's ``zero_optimization``: the keys that are set, all of which the stage reads."""
    section: dict[str, Any] = {"stage": config.zero.stage}
    for key in STAGES:
        value = getattr(config.zero, key)
        if value is not None:
            # Counts of elements are floats in the config so that 5e8 can be written; DeepSpeed's are ints.
            section[key] = int(value) if isinstance(value, float) else value
    offload = config.offload
    if offload.device is not OffloadDevice.none:
        section["offload_optimizer"] = offload_section(offload)
        if offload.ratio is not None:
            section["offload_optimizer"]["ratio"] = offload.ratio
        if offload.parameters:
            section["offload_param"] = offload_section(offload)
    return section


def offload_section(offload: OffloadConfig) -> dict[str, Any]:
    return {"device": offload.device.value, "pin_memory": bool(offload.pin_memory)}


def scaler(wanted: ScalerConfig) -> dict[str, Any]:
    """The loss scaler's keys of DeepSpeed's ``fp16`` section; a static scale has none but itself."""
    if wanted.loss_scale > 0:
        return {"loss_scale": wanted.loss_scale}
    keys = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    return {"loss_scale": 0, **{key: getattr(wanted, key) for key in keys if getattr(wanted, key) is not None}}
