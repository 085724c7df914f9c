"""Rules of the newer machinery: what DeepSpeed 0.19.8 would ignore, get wrong or break on, in the user's override words.

Each rule was run, or read where its comment says; file names are DeepSpeed's. What the device lacks is judged in
``trial.lacking``, and what the number of ranks decides in ``check_ranks``, which ``dsconfig.build`` calls.
"""

from collections.abc import Iterator

from glmexp.config.batch import Batch
from glmexp.config.choices import Dtype, Method, OffloadDevice, OptimizerType
from glmexp.config.errors import UserError
from glmexp.config.offload import offload_option, uses_zenflow
from glmexp.config.schema import Config

ZEROPP_FLAGS = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    yield from _low_precision_states(config)
    yield from _autocast(config)
    yield from _zeropp(config)
    yield from _muon(config)
    yield from _deepcompile(config)


def warnings(config: Config) -> Iterator[str]:
    """What takes effect, and costs something that the option's name does not tell."""
    clip = config.train.grad_clip
    if config.optimizer.type is OptimizerType.Muon and clip and config.zero.stage > 0 and not _bf16_optimizer(config):
        # runtime/zero/stage_1_and_2.py, get_flat_partition and step; stage3.py, _apply_distributed_muon_update.
        yield (
            "optimizer=muon: from zero=stage1 on DeepSpeed clips Muon's orthogonal update, whose norm is in the tens, and not "
            f"the gradient: train.grad_clip={clip:g} shortens every step; use train.grad_clip=null"
        )
    if config.offload.super_offload and clip:
        # runtime/superoffload/superoffload_stage3.py, partition_grads: only without clipping does a step start early.
        yield (
            f"offload=super_offload: nothing overlaps with the backward pass while train.grad_clip={clip:g} waits for all "
            "gradients; use train.grad_clip=null"
        )
    if config.offload.device is OffloadDevice.nvme and config.offload.parameters and config.zero.stage3_prefetch_bucket_size:
        # runtime/zero/partitioned_param_coordinator.py, __prefetch_nvme_param_partitions: a weight due twice is read twice.
        yield (
            f"offload=nvme: with more parameters on a rank than offload.max_in_cpu={config.offload.max_in_cpu or 0:g}, "
            'prefetching ends the run ("already assigned swap buffer"); use zero.stage3_prefetch_bucket_size=0'
        )
    if uses_zenflow(config.offload):
        # runtime/zenflow/zenflow_stage_1_and_2.py, _process_selected_fp32_groups_grad and sync_fp32_param_from_gpu.
        fp32 = "" if config.precision.dtype is Dtype.fp32 else ", and without fp32 master weights"
        yield (
            "offload=zenflow: the chosen columns are updated after each micro batch without train.grad_clip, without "
            f"a check for infinities{fp32}"
        )


def _bf16_optimizer(config: Config) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer, which is no ZeRO optimizer (engine.py, _do_optimizer_sanity_check)."""
    precision, on_gpu = config.precision, config.offload.device is OffloadDevice.none
    return config.zero.stage == 1 and precision.dtype is Dtype.bf16 and precision.grad_accum_dtype is Dtype.fp32 and on_gpu


def _low_precision_states(config: Config) -> Iterator[str]:
    precision, stage = config.precision, config.zero.stage
    master, states = precision.bf16_master_weights_and_grads, precision.bf16_optimizer_states
    for field, value in (("bf16_master_weights_and_grads", master), ("bf16_optimizer_states", states)):
        if value is not None and precision.dtype is not Dtype.bf16:
            yield f"precision.{field} has no effect with precision={precision.dtype.value}; add precision=bf16_states"
    if precision.dtype is not Dtype.bf16 or not (master or states):
        return
    offloaded = config.offload.device is not OffloadDevice.none
    if states and not master:
        yield "precision.bf16_optimizer_states=true needs precision.bf16_master_weights_and_grads=true"
    elif not states and not offloaded:
        yield "precision.bf16_master_weights_and_grads=true needs precision.bf16_optimizer_states=true, or offload=cpu"
    if stage == 0:
        yield "precision=bf16_states needs zero=stage1, stage2 or stage3, got stage0"
    if _bf16_optimizer(config):
        yield "precision=bf16_states with precision.grad_accum_dtype=fp32 needs zero=stage2 or stage3: stage 1 keeps fp32"
    if config.offload.device is OffloadDevice.nvme:
        yield "precision=bf16_states does not go with offload=nvme, whose buffers are fp32; use precision=bf16"
    elif offloaded and config.optimizer.type is not OptimizerType.AdamW:
        yield f"precision=bf16_states with offload={offload_option(config.offload)} needs optimizer=adamw"
    if uses_zenflow(config.offload):
        yield "precision=bf16_states does not go with offload=zenflow, which needs fp32 master weights; use precision=bf16"


def _autocast(config: Config) -> Iterator[str]:
    autocast = config.precision.autocast_dtype
    if autocast is None:
        return
    if config.precision.dtype is not Dtype.fp32:
        yield f"precision.autocast_dtype has no effect with precision={config.precision.dtype.value}; use precision=autocast"
    if autocast is Dtype.fp16:
        # stage_1_and_2.py and stage3.py clip in step(), and only GradScaler.step() behind it takes the scale (2^16) off.
        yield (
            "precision.autocast_dtype=fp16 is trained wrongly by DeepSpeed 0.19.8, which clips gradients that still hold the "
            "loss scale; use precision.autocast_dtype=bf16, or precision=fp16"
        )
    elif autocast is Dtype.fp32:
        yield "precision.autocast_dtype=fp32 would cast nothing; use precision=fp32"
    if config.comm.communication_data_type is not None and config.zero.stage > 0:
        # torch_autocast.py, init_autocast_params: the weights of linear layers carry a dtype of their own.
        yield "comm.communication_data_type has no effect with precision=autocast, which reduces in the dtype of each layer"
    if config.zero.zero_quantized_weights:
        yield "zero.zero_quantized_weights=true does not go with precision=autocast; use precision=bf16"


def _zeropp(config: Config) -> Iterator[str]:
    if config.zero.zero_quantized_nontrainable_weights and config.method.name is Method.full:
        yield "zero.zero_quantized_nontrainable_weights=true has no effect with method=full, which trains all; add method=lora"


def _muon(config: Config) -> Iterator[str]:
    optimizer, zero = config.optimizer, config.zero
    if optimizer.type is not OptimizerType.Muon:
        for field in ("momentum", "adam_lr"):
            if getattr(optimizer, field) is not None:
                yield f"optimizer.{field} has no effect with optimizer={optimizer.type.value.lower()}; add optimizer=muon"
        return
    if optimizer.momentum is None:
        yield "optimizer.momentum must be set with optimizer=muon"
    if config.method.name is Method.ptuning_v2 and not config.method.prefix_projection:
        yield "optimizer=muon has no effect with method=ptuning_v2: a prefix is an embedding; set method.prefix_projection=true"
    if config.offload.device is OffloadDevice.nvme:
        yield "optimizer=muon does not go with offload=nvme: its first step runs out of swap buffers; use offload=cpu"
    if config.offload.ratio not in (None, 1.0):
        yield f"offload.ratio={config.offload.ratio:g} needs optimizer=adamw: DeepSpeed splits the step of its CPU Adam alone"
    if zero.stage == 3 and zero.reduce_scatter is not False:
        yield "optimizer=muon at zero=stage3 needs zero.reduce_scatter=false: it orthogonalises whole gradients"
    if zero.stage == 3 and zero.zero_quantized_gradients:
        yield "optimizer=muon does not go with zero.zero_quantized_gradients=true: it orthogonalises whole gradients"


def _deepcompile(config: Config) -> Iterator[str]:
    if not config.kernels.deepcompile:
        return
    stage, offload = config.zero.stage, config.offload
    if stage == 0:
        yield "kernels=deepcompile needs zero=stage1, stage2 or stage3, got stage0, where DeepSpeed compiles the model alone"
    # compile/init_z1_and_2.py and init_z3.py remove the gradient hooks, and with them all that works in these.
    elif offload.super_offload or uses_zenflow(offload) or (offload.device is not OffloadDevice.none and stage < 3):
        where = "" if stage == 3 else f" at zero=stage{stage}"
        yield f"kernels=deepcompile does not go with offload={offload_option(offload)}{where}: no gradient would reach the host"
    elif offload.device is OffloadDevice.nvme:
        yield "kernels=deepcompile does not go with offload=nvme: its own gathering reads no weights from there"
    if any(getattr(config.zero, field) for field in ZEROPP_FLAGS) or (config.zero.zero_hpz_partition_size or 1) > 1:
        yield "kernels=deepcompile does not go with ZeRO++ (zero=stage3_zeropp): its own collectives know nothing of it"
    if config.optimizer.type is OptimizerType.Muon:
        yield "kernels=deepcompile needs optimizer=adamw: Muon's update is made in the gradient hooks that DeepCompile removes"
    if _bf16_optimizer(config):
        yield "kernels=deepcompile with precision.grad_accum_dtype=fp32 needs zero=stage2 or stage3, got stage1"


def check_ranks(config: Config, batch: Batch, world_size: int) -> None:
    """Rules that the number of ranks or the solved batch decides. Raises UserError."""
    zero, zenflow = config.zero, config.offload.zenflow
    part = zero.zero_hpz_partition_size
    if part is not None and (part > world_size or world_size % part):
        # DeepSpeed clamps a larger one to the world without a word (utils/groups.py).
        raise UserError(
            f"zero.zero_hpz_partition_size={part} must divide the {world_size} rank(s) (launch.ranks x launch.nodes)\n"
            "set it to the GPUs of a node, or to 1 for no copy inside the node"
        )
    if zenflow.update_interval is not None and zenflow.update_interval != batch.accumulation:
        raise UserError(
            f"offload.zenflow.update_interval={zenflow.update_interval} must equal the accumulation, which is "
            f"batch.accumulation={batch.accumulation}: DeepSpeed overwrites the one with the other\n"
            f"set batch.accumulation={zenflow.update_interval}, or offload.zenflow.update_interval={batch.accumulation}"
        )
