"""The groups that become DeepSpeed's config; ``schema`` holds the others and says how to read them."""

from dataclasses import dataclass, field
from typing import Annotated, Optional

from annotated_types import Ge, Gt, Le
from omegaconf import MISSING

from glmexp.config.choices import Dtype, OffloadDevice, OptimizerType, SelectStrategy
from glmexp.config.ranges import MaybeCount, MaybeElements, MaybeShare, SmallCount, SomeElements


@dataclass
class ZeroConfig:
    """DeepSpeed's ``zero_optimization``. A key that the chosen stage does not read must be null."""

    stage: Annotated[int, Ge(0), Le(3)] = MISSING
    reduce_bucket_size: SomeElements = MISSING
    """Elements reduced at once; a buffer of 2 bytes each in bf16 (twice with overlap_comm at stages 1 and 2)."""
    overlap_comm: Optional[bool] = MISSING
    contiguous_gradients: Optional[bool] = MISSING
    reduce_scatter: Optional[bool] = MISSING
    allgather_partitions: Optional[bool] = MISSING
    allgather_bucket_size: SomeElements = MISSING
    round_robin_gradients: Optional[bool] = MISSING
    sub_group_size: MaybeElements = MISSING
    """Elements of one optimizer step at stage 3; the step needs 6 bytes each on top of the state."""
    stage3_prefetch_bucket_size: MaybeElements = MISSING
    stage3_param_persistence_threshold: MaybeElements = MISSING
    """Parameters smaller than this stay whole on every rank."""
    stage3_max_live_parameters: MaybeElements = MISSING
    stage3_max_reuse_distance: MaybeElements = MISSING
    stage3_gather_16bit_weights_on_model_save: Optional[bool] = MISSING
    zero_hpz_partition_size: SmallCount = None
    """ZeRO++: ranks of one node that keep a second copy of the parameters between them, so that gathering stays inside."""
    zero_quantized_weights: Optional[bool] = None
    """ZeRO++: parameters are gathered in int8."""
    zero_quantized_nontrainable_weights: Optional[bool] = None
    """ZeRO++: frozen parameters are kept in int8 (for LoRA)."""
    zero_quantized_gradients: Optional[bool] = None
    """ZeRO++: gradients are reduced in int4 between nodes."""


@dataclass
class ZenFlowConfig:
    """ZenFlow: the most important gradients are applied on the GPU at each step, the rest by the host now and then."""

    topk_ratio: Annotated[Optional[float], Gt(0), Le(0.99)] = None
    """Share of the gradient columns that are updated at each step."""
    select_strategy: Optional[SelectStrategy] = None
    select_interval: SmallCount = None
    """Steps or epochs between two choices of the important columns."""
    update_interval: SmallCount = None
    """Steps between two host updates. DeepSpeed overwrites the accumulation with it, so it equals ``batch.accumulation``."""
    overlap_step: Optional[bool] = None
    full_warm_up_rounds: Annotated[Optional[int], Ge(0), Le(1_000_000)] = None


@dataclass
class AioConfig:
    """DeepSpeed's ``aio``: asynchronous reads and writes of the NVMe device."""

    block_size: MaybeCount = None
    """Bytes of one request."""
    queue_depth: SmallCount = None
    intra_op_parallelism: SmallCount = None
    single_submit: Optional[bool] = None
    overlap_events: Optional[bool] = None


@dataclass
class OffloadConfig:
    """Host memory or NVMe for the optimizer (``device``) and for the parameters too (``parameters``, stage 3)."""

    device: OffloadDevice = MISSING
    parameters: bool = MISSING
    pin_memory: Optional[bool] = MISSING
    """Page-locked host memory: faster copies, cannot be swapped out."""
    ratio: Annotated[Optional[float], Ge(0.0), Le(1.0)] = MISSING
    """Share of the optimizer step done on the host (stage 3); null means all."""
    super_offload: Optional[bool] = None
    """SuperOffload: host steps overlap with the backward pass (stage 3, made for GPUs with a fast link to the host)."""
    cpuadam_cores_perc: MaybeShare = None
    """Share of the cores that SuperOffload's Adam uses."""
    nvme_path: Optional[str] = None
    """Folder on the NVMe device; each rank writes its own files there."""
    pipeline_read: Optional[bool] = None
    pipeline_write: Optional[bool] = None
    fast_init: Optional[bool] = None
    max_in_cpu: MaybeElements = None
    """Parameter elements that stay in host memory with parameters on NVMe."""
    buffer_size: SomeElements = None
    """Elements of one host buffer for parameters on NVMe: at least the largest weight's share of a rank."""
    buffer_count: SmallCount = None
    """Buffers of ``buffer_size`` for parameters on NVMe."""
    aio: AioConfig = field(default_factory=AioConfig)
    zenflow: ZenFlowConfig = field(default_factory=ZenFlowConfig)


@dataclass
class PrecisionConfig:
    dtype: Dtype = MISSING
    """Compute dtype. bf16 and fp16 keep fp32 master weights."""
    grad_accum_dtype: Optional[Dtype] = MISSING
    """Dtype that micro-batch gradients are summed in; null is ``dtype``. fp32 costs 4 bytes a parameter."""
    bf16_master_weights_and_grads: Optional[bool] = None
    """Master weights in bf16 instead of fp32."""
    bf16_optimizer_states: Optional[bool] = None
    """Adam's two moments in bf16 instead of fp32."""
    autocast_dtype: Optional[Dtype] = None
    """torch.autocast's dtype: weights and states stay in fp32, the products are computed in this one."""


@dataclass
class ScalerConfig:
    """The fp16 loss scaler. ``loss_scale`` 0 is dynamic; a static scaler leaves the other keys null."""

    loss_scale: Annotated[float, Ge(0)] = MISSING
    initial_scale_power: Annotated[Optional[int], Ge(0), Le(31)] = MISSING
    loss_scale_window: MaybeCount = MISSING
    hysteresis: MaybeCount = MISSING
    min_loss_scale: MaybeCount = MISSING


@dataclass
class BatchConfig:
    """total = micro x accumulation x ranks, where ranks that share a sample count as one; what is null is derived."""

    micro: SmallCount = MISSING
    """Samples of one forward pass on one rank."""
    accumulation: SmallCount = MISSING
    """Forward passes to one optimizer step."""
    total: SmallCount = MISSING
    """Global batch: samples of one optimizer step."""


@dataclass
class OptimizerConfig:
    type: OptimizerType = MISSING
    lr: Annotated[float, Gt(0), Le(1e30)] = MISSING
    betas: list[float] = MISSING
    eps: Annotated[float, Gt(0)] = MISSING
    weight_decay: Annotated[float, Ge(0)] = MISSING
    momentum: Annotated[Optional[float], Ge(0), Le(1)] = None
    """Muon: momentum of the matrices' update."""
    adam_lr: Annotated[Optional[float], Gt(0), Le(1e30)] = None
    """Muon: lr of the parameters that are no matrices (norms, biases, embeddings), which AdamW updates; null takes ``lr``."""


@dataclass
class CommConfig:
    communication_data_type: Optional[Dtype] = MISSING
    """Dtype of gradient reduction; null is the compute dtype."""
    sequence_parallel_size: SmallCount = None
    """Ulysses: ranks that share each sample, every one with a part of its tokens (stage 3); null or 1 shares none."""
