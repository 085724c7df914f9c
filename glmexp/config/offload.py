"""Rules of offloading: host memory, NVMe, SuperOffload and ZenFlow, in the user's override words.

Each rule was run, or read where its comment says; file names are DeepSpeed's.
"""

from collections.abc import Iterator
from dataclasses import fields

from glmexp.config.choices import Dtype, OffloadDevice, OptimizerType, SelectStrategy
from glmexp.config.engine_schema import OffloadConfig, ZenFlowConfig
from glmexp.config.schema import Config

NVME_FIELDS = ("nvme_path", "pipeline_read", "pipeline_write", "fast_init", "max_in_cpu", "buffer_size", "buffer_count")
NVME_PARAMETER_FIELDS = ("max_in_cpu", "buffer_size", "buffer_count")
ZENFLOW_FIELDS = tuple(field.name for field in fields(ZenFlowConfig))


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    yield from _offload(config)
    yield from _zenflow(config)
    yield from _super_offload(config)


def uses_zenflow(offload: OffloadConfig) -> bool:
    return any(getattr(offload.zenflow, field) is not None for field in ZENFLOW_FIELDS)


def offload_option(offload: OffloadConfig) -> str:
    """The option of the group ``offload`` that these values amount to."""
    if offload.device is OffloadDevice.none:
        return "none"
    if offload.device is OffloadDevice.nvme:
        return "nvme"
    if uses_zenflow(offload):
        return "zenflow"
    if offload.super_offload:
        return "super_offload"
    return "cpu_all" if offload.parameters else "cpu"


def _owned(offload: OffloadConfig) -> Iterator[tuple[str, str]]:
    """Each field that is set with the options it belongs to."""
    for field in NVME_FIELDS:
        if getattr(offload, field) is not None:
            yield field, "nvme"
    for field in (field.name for field in fields(offload.aio)):
        if getattr(offload.aio, field) is not None:
            yield f"aio.{field}", "nvme"
    for field in ZENFLOW_FIELDS:
        if getattr(offload.zenflow, field) is not None:
            yield f"zenflow.{field}", "zenflow"
    if offload.super_offload:
        yield "super_offload", "super_offload"
    if offload.cpuadam_cores_perc is not None:
        yield "cpuadam_cores_perc", "super_offload"


def _offload(config: Config) -> Iterator[str]:
    offload, stage = config.offload, config.zero.stage
    option = offload_option(offload)
    for field, owner in _owned(offload):
        if (
            option == "none"
            or (owner == "nvme" and option != "nvme")
            or (owner == "super_offload" and not offload.super_offload)
        ):
            yield f"offload.{field} has no effect with offload={option}; add offload={owner}"
    if option == "none":
        for field in ("pin_memory", "ratio"):
            if getattr(offload, field) is not None:
                yield f"offload.{field} has no effect with offload=none; choose offload=cpu or offload=cpu_all"
        if offload.parameters:
            yield "offload.parameters=true needs offload=cpu_all, got offload=none"
        return
    if option == "nvme" and stage != 3:
        yield f"offload=nvme needs zero=stage3, got stage{stage}: below it DeepSpeed keeps the states in host memory instead"
    elif offload.parameters and stage != 3:
        yield f"offload={option} needs zero=stage3, got stage{stage}: only stage 3 shards parameters"
    elif stage == 0:
        yield f"offload={option} needs zero=stage1, stage2 or stage3, got stage0: stage 0 has no sharded optimizer to offload"
    if offload.ratio is not None and stage != 3:
        yield f"offload.ratio has no effect at stage {stage}: it needs zero=stage3"
    if option == "nvme":
        yield from _nvme(offload)


def _nvme(offload: OffloadConfig) -> Iterator[str]:
    if not (offload.nvme_path or "").strip():
        yield "offload.nvme_path must be set with offload=nvme: a folder on the NVMe device"
    for field in () if offload.parameters else NVME_PARAMETER_FIELDS:
        if getattr(offload, field) is not None:
            yield f"offload.{field} has no effect with offload.parameters=false; set it to null"


def _zenflow(config: Config) -> Iterator[str]:
    offload, zenflow = config.offload, config.offload.zenflow
    if not uses_zenflow(offload) or offload.device is OffloadDevice.none:
        return
    missing = [field for field in ZENFLOW_FIELDS if getattr(zenflow, field) is None]
    if missing:
        yield f"offload.zenflow.{missing[0]} must be set with offload=zenflow"
        return
    if config.zero.stage == 3:
        # The layers run on weights that were never gathered (DeepSpeed's issue 7686 is of the same kind).
        yield "offload=zenflow needs zero=stage1 or stage2, got stage3, where DeepSpeed 0.19.8 does not gather the weights"
    if offload.device is OffloadDevice.nvme or offload.super_offload:
        yield "offload=zenflow goes with neither offload=nvme nor offload.super_offload=true: leave those out"
    if config.optimizer.type is not OptimizerType.AdamW:
        yield f"offload=zenflow needs optimizer=adamw, got {config.optimizer.type.value}: it splits the step of AdamW alone"
    if config.precision.dtype is Dtype.fp16:
        yield "offload=zenflow needs precision=bf16 or precision=fp32: it never takes the loss scale off the chosen columns"
    if config.precision.autocast_dtype is not None:
        yield "offload=zenflow needs precision=bf16 or precision=fp32, got precision=autocast"
    assert zenflow.select_interval is not None
    assert zenflow.update_interval is not None
    if zenflow.select_strategy is SelectStrategy.epoch:
        # runtime/zenflow/engine.py counts the epochs of a data loader of its own, and glmexp feeds the batches.
        yield "offload.zenflow.select_strategy=epoch would choose the columns once and never again; use step"
    if zenflow.select_interval % zenflow.update_interval:
        yield (
            f"offload.zenflow.select_interval={zenflow.select_interval} must be a multiple of "
            f"offload.zenflow.update_interval={zenflow.update_interval}: each choice of columns ends the accumulation"
        )
    if zenflow.full_warm_up_rounds and zenflow.update_interval > 1:
        yield (
            f"offload.zenflow.full_warm_up_rounds={zenflow.full_warm_up_rounds} updates after every micro batch while the "
            "accumulation is more than 1; set it to 0"
        )


def _super_offload(config: Config) -> Iterator[str]:
    offload = config.offload
    if not offload.super_offload or offload.device is OffloadDevice.none:
        return
    if config.zero.stage != 3:
        yield f"offload=super_offload needs zero=stage3, got stage{config.zero.stage}, where DeepSpeed ignores it"
    if offload.device is OffloadDevice.nvme:
        yield "offload.super_offload=true needs offload.device=cpu, got nvme: its step runs on host memory"
    if config.optimizer.type is not OptimizerType.AdamW:
        yield f"offload=super_offload needs optimizer=adamw, got {config.optimizer.type.value}: its step is AdamW's"
    if config.precision.dtype is Dtype.fp16 and not config.train.grad_clip:
        # superoffload_stage3.py, partition_grads: the early step takes the gradients as they come out of the backward pass.
        yield "offload=super_offload with precision=fp16 steps on gradients that still hold the loss scale; use precision=bf16"
    if config.precision.bf16_master_weights_and_grads:
        yield "offload=super_offload needs fp32 master weights: use precision=bf16"
