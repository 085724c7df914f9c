"""Config + machine -> the dict that DeepSpeed runs on.

Pure: no files, environment or clock, and no number that is not in the config. Every default of DeepSpeed 0.19 that changes
numbers, memory or speed is written out, no key that the chosen stage ignores is, and nothing is ever "auto".
"""

from enum import Enum
from typing import Any

from glmexp.config.batch import solve
from glmexp.config.choices import Dtype, OffloadDevice, OptimizerType
from glmexp.config.engine_schema import AioConfig, OffloadConfig, PrecisionConfig, ScalerConfig, ZenFlowConfig, ZeroConfig
from glmexp.config.machinery import check_ranks
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.config.zero import STAGES
from glmexp.dsconfig.machine import Machine
from glmexp.dsconfig.passthrough import merge

TORCH_NAMES = {Dtype.bf16: "bfloat16", Dtype.fp16: "float16", Dtype.fp32: "float32"}
AIO = ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")
ZENFLOW = ("topk_ratio", "select_strategy", "select_interval", "update_interval", "overlap_step", "full_warm_up_rounds")
SHARES = ("ratio", "cpuadam_cores_perc", "topk_ratio")
"""Keys that are no counts: the only floats that stay floats."""


def build(config: Config, machine: Machine) -> dict[str, Any]:
    """The DeepSpeed dict, plain JSON types only.

    Raises UserError as ``derive`` does, and when ``deepspeed.KEY`` sets a key that is derived from another field to a different
    value.
    """
    return merge(derive(config, machine), config.deepspeed)


def derive(config: Config, machine: Machine) -> dict[str, Any]:
    """The DeepSpeed dict without the raw keys of ``deepspeed``.

    Raises UserError when the batch cannot be solved for ``machine.world_size``, or when another field does not fit that number.
    """
    sharing = sequence_parallel_size(config)
    batch = solve(config.batch, machine.world_size, sharing)
    check_ranks(config, batch, machine.world_size)
    dtype = config.precision.dtype
    ds: dict[str, Any] = {
        "train_batch_size": batch.total,
        "train_micro_batch_size_per_gpu": batch.micro,
        "gradient_accumulation_steps": batch.accumulation,
        # DeepSpeed 0.19 clips at 1.0 when the key is left out, so "off" is an explicit 0.0.
        "gradient_clipping": float(config.train.grad_clip or 0.0),
        "optimizer": optimizer(config, machine),
        "data_types": {"grad_accum_dtype": (config.precision.grad_accum_dtype or dtype).value},
        **reduction_dtype(config, sharing),
        "zero_optimization": zero(config),
    }
    if sharing > 1:
        ds["sequence_parallel_size"] = sharing
    if dtype is Dtype.bf16:
        ds["bf16"] = bf16(config.precision, config.zero.stage)
    elif dtype is Dtype.fp16:
        ds["fp16"] = {"enabled": True, **scaler(config.scaler)}
    if config.precision.autocast_dtype is not None:
        ds["torch_autocast"] = {"enabled": True, "dtype": TORCH_NAMES[config.precision.autocast_dtype]}
    if config.offload.device is OffloadDevice.nvme:
        ds["aio"] = present(config.offload.aio, *AIO)
    if config.kernels.deepcompile:
        ds["compile"] = {"deepcompile": True}
    return ds


def reduction_dtype(config: Config, sharing: int) -> dict[str, Any]:
    """The dtype that gradients are reduced in, under the key that is read; ``sharing`` is the sequence parallel size."""
    if config.precision.autocast_dtype is not None and config.zero.stage > 0:
        return {}  # ZeRO then reduces each gradient in the dtype of its layer (runtime/torch_autocast.py)
    # Ranks that share samples reduce in a key of their own (engine.py, _configure_distributed_model).
    key = "seq_parallel_communication_data_type" if sharing > 1 else "communication_data_type"
    return {key: (config.comm.communication_data_type or config.precision.dtype).value}


def optimizer(config: Config, machine: Machine) -> dict[str, Any]:
    """DeepSpeed's ``optimizer`` section.

    ``torch_adam`` asks for torch.optim.AdamW, which needs no compiler: DeepSpeed would otherwise build FusedAdam at the first
    start. On a GPU torch's own fused kernel updates all parameters in one pass. With offload neither is set, which selects
    DeepSpeedCPUAdam (engine.py, _configure_basic_optimizer). Muon hands them to the AdamW of its second half, which takes
    ``torch_adam`` and drops ``fused`` (engine.py, _muon_param_groups).
    """
    wanted = config.optimizer
    params: dict[str, Any] = {
        "lr": wanted.lr,
        "betas": [float(beta) for beta in wanted.betas],
        "eps": wanted.eps,
        "weight_decay": wanted.weight_decay,
    }
    muon = wanted.type is OptimizerType.Muon
    if muon:
        params |= {"momentum": wanted.momentum, "adam_lr": wanted.lr if wanted.adam_lr is None else wanted.adam_lr}
    if config.offload.device is OffloadDevice.none:
        params["torch_adam"] = True
        if machine.device == "gpu" and not muon:
            params["fused"] = True
    return {"type": wanted.type.value, "params": params}


def zero(config: Config) -> dict[str, Any]:
    """DeepSpeed's ``zero_optimization``: the keys that are set, all of which the stage reads."""
    offload = config.offload
    section: dict[str, Any] = {"stage": config.zero.stage, **present(config.zero, *STAGES)}
    if offload.device is OffloadDevice.none:
        return section
    where = present(offload, "device", "pin_memory", "nvme_path")
    section["offload_optimizer"] = where | present(
        offload, "ratio", "pipeline_read", "pipeline_write", "fast_init", "super_offload", "cpuadam_cores_perc"
    )
    if offload.parameters:
        section["offload_param"] = where | present(offload, "max_in_cpu", "buffer_size", "buffer_count")
    if zenflow := present(offload.zenflow, *ZENFLOW):
        section["zenflow"] = zenflow
    return section


def present(section: ZeroConfig | OffloadConfig | AioConfig | ZenFlowConfig | PrecisionConfig, *keys: str) -> dict[str, Any]:
    """The keys of a group that are set, as plain JSON values.

    Counts of elements are floats in the config so that 5e8 can be written; DeepSpeed's are ints.
    """
    found: dict[str, Any] = {}
    for key in keys:
        value = getattr(section, key)
        if isinstance(value, Enum):
            found[key] = value.value
        elif isinstance(value, float) and key not in SHARES:
            found[key] = int(value)
        elif value is not None:
            found[key] = value
    return found


def bf16(wanted: PrecisionConfig, stage: int) -> dict[str, Any]:
    """DeepSpeed's ``bf16`` section."""
    section: dict[str, Any] = {"enabled": True}
    if stage in (1, 2):
        section["check_grad_overflow"] = True  # read at stages 1 and 2 alone; the others always check
    return section | present(wanted, "bf16_master_weights_and_grads", "bf16_optimizer_states")


def scaler(wanted: ScalerConfig) -> dict[str, Any]:
    """The loss scaler's keys of DeepSpeed's ``fp16`` section; a static scale has none but itself."""
    if wanted.loss_scale > 0:
        return {"loss_scale": wanted.loss_scale}
    keys = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    return {"loss_scale": 0, **{key: getattr(wanted, key) for key in keys if getattr(wanted, key) is not None}}
