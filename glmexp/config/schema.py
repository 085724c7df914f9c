"""The typed configuration: one dataclass a config group.

Values live in ``conf/*.yaml``, types and ranges here; a required field is ``MISSING`` so that no default is written twice.
``None`` means that the quantity is absent or derived. Field names in ``zero``, ``offload``, ``precision``, ``scaler`` and
``comm`` are DeepSpeed's own keys wherever DeepSpeed has one.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from annotated_types import Ge, Gt, Le, MultipleOf
from omegaconf import MISSING

from glmexp.config.choices import (
    Attention,
    Backend,
    Device,
    Dtype,
    Hub,
    Init,
    Language,
    Method,
    OffloadDevice,
    OnBad,
    OptimizerType,
    OverLength,
    Schedule,
    SelectStrategy,
    Source,
    Task,
    TrackerMode,
    TrackerName,
)

# OmegaConf reads these annotations itself and does not know ``X | None`` inside ``Annotated``, hence ``Optional``.
Count = Annotated[int, Ge(1), Le(2**31 - 1)]
MaybeCount = Annotated[Optional[int], Ge(1), Le(2**31 - 1)]
SmallCount = Annotated[Optional[int], Ge(1), Le(1_000_000)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
# A float so that 5e8 can be written for 500000000; emitted as an int.
SomeElements = Annotated[Optional[float], Ge(1), Le(2**62), MultipleOf(1)]
MaybeElements = Annotated[Optional[float], Ge(0), Le(2**62), MultipleOf(1)]
MaybeShare = Annotated[Optional[float], Ge(0.0), Le(1.0)]


@dataclass
class ModelConfig:
    path: str = MISSING
    """Folder or hub id; ``tiny`` is the model that ships with glmexp."""
    hub: Hub = MISSING
    """Where a hub id is fetched from. HF_ENDPOINT names a mirror of the Hugging Face hub."""
    revision: Optional[str] = MISSING
    """Branch, tag or commit on the hub; null is the default branch."""
    init: Init = MISSING
    """``random`` reads no weights: for measuring speed and memory."""
    template: Optional[str] = MISSING
    """Prompt format: chatglm2, chatglm3, glm4, chat (the tokenizer's own chat template) or plain (a base model: prompt,
    newline, answer); null reads it from the folder."""
    rope_style: Optional[str] = MISSING
    """Meaning of ``rope_ratio`` in an original folder: linear or base; null reads it from the folder."""
    recommended_precisions: list[Dtype] = MISSING
    """Precisions that the released weights are known to train in; another one gives a warning."""
    recommended_lr: Annotated[float, Gt(0)] = MISSING
    """Peak learning rate that ``optimizer.lr`` takes when it is not set."""


@dataclass
class ColumnsConfig:
    """Names of the columns in the data file; null recognises the usual ones."""

    prompt: Optional[str] = MISSING
    input: Optional[str] = MISSING
    """Appended to the prompt on a new line, as alpaca's ``input``."""
    response: Optional[str] = MISSING
    history: Optional[str] = MISSING
    messages: Optional[str] = MISSING
    system: Optional[str] = MISSING


@dataclass
class DataConfig:
    source: Source = MISSING
    """``synthetic``: random tokens, every sample ``max_length`` long, for measuring."""
    path: Optional[str] = MISSING
    """JSONL or JSON file; null is the instruction set that ships with glmexp."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    max_length: Annotated[int, Ge(2)] = MISSING
    """Tokens of one sample, prompt and answer together. Activation memory grows with it."""
    max_source_length: MaybeCount = MISSING
    """Tokens kept of the prompt (its head), as ChatGLM2's official P-tuning script; null has no limit of its own."""
    max_target_length: MaybeCount = MISSING
    """Tokens kept of the answer; null has no limit of its own."""
    over_length: OverLength = MISSING
    """What happens to a sample longer than ``max_length``: its end is cut, or it is dropped. Both are counted."""
    on_bad: OnBad = MISSING
    """A line that cannot be read stops the run, or is counted and skipped."""
    limit: MaybeCount = MISSING
    """Samples read from the head of the file; null reads all."""


@dataclass
class MethodConfig:
    name: Method = MISSING
    rank: MaybeCount = MISSING
    """LoRA r: columns of the low-rank update."""
    alpha: Annotated[Optional[float], Gt(0)] = MISSING
    """LoRA scale: the update is multiplied by alpha / rank."""
    dropout: Annotated[Optional[float], Ge(0.0), Le(1.0)] = MISSING
    target_modules: Optional[list[str]] = MISSING
    """Linear layers that get an adapter; null takes the model's attention projections."""
    prefix_length: SmallCount = None
    """P-tuning v2: trained positions before the first token of every layer (the official scripts' PRE_SEQ_LEN)."""
    prefix_projection: Optional[bool] = None
    """P-tuning v2: a two-layer network computes the prefix from a small embedding; it is larger and needs a smaller lr."""


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
    sub_group_size: SomeElements = MISSING
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
    """Steps between two host updates. DeepSpeed overwrites the accumulation with it, so it must equal ``batch.accumulation``."""
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
    """total = micro x accumulation x ranks; what is null is derived from the rest."""

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
class SchedulerConfig:
    """Stepped once an applied optimizer step; step k of the warm-up runs at lr * k / warmup_steps."""

    name: Schedule = MISSING
    warmup_steps: Annotated[int, Ge(0)] = MISSING
    min_lr_ratio: Share = MISSING
    """The last step's lr as a share of ``optimizer.lr``."""


@dataclass
class ActivationConfig:
    checkpoint: bool = MISSING
    """Recompute each layer's activations in the backward pass: a third more compute, a fraction of the memory."""


@dataclass
class CommConfig:
    communication_data_type: Optional[Dtype] = MISSING
    """Dtype of gradient reduction; null is the compute dtype."""
    sequence_parallel_size: SmallCount = None
    """Ulysses: ranks that share each sample, every one with a part of its tokens (stage 3)."""


@dataclass
class KernelsConfig:
    attention: Attention = MISSING
    """``sdpa`` is PyTorch's fused attention, ``eager`` the plain matrix products."""
    deepcompile: bool = False
    """DeepCompile: the layers are compiled and ZeRO's collectives are scheduled inside the compiled graph."""


@dataclass
class HardwareConfig:
    name: str = MISSING
    gpu_memory_gib: Annotated[Optional[float], Gt(0)] = MISSING
    emulate: bool = MISSING
    """Cap each process to ``gpu_memory_gib`` on a larger card."""


@dataclass
class LaunchConfig:
    backend: Backend = MISSING
    device: Device = MISSING
    ranks: MaybeCount = MISSING
    """Processes a node; null is one a visible GPU, or one on the CPU."""
    nodes: Count = MISSING
    timeout_minutes: Annotated[Optional[float], Gt(0)] = MISSING
    """A run that takes longer is ended with state ``timeout``; null has no limit."""
    collective_timeout_minutes: Annotated[float, Ge(0.001), Le(1e6)] = MISSING
    """How long one collective may wait for the slowest rank."""


@dataclass
class TrackerConfig:
    name: TrackerName = MISSING
    mode: Optional[TrackerMode] = MISSING
    """``auto`` goes online with a key and offline without one."""
    project: Optional[str] = MISSING
    entity: Optional[str] = MISSING
    group: Optional[str] = MISSING
    run_name: Optional[str] = MISSING
    tags: list[str] = MISSING


@dataclass
class TrainConfig:
    max_steps: MaybeCount = MISSING
    """Optimizer steps; null follows from ``epochs``."""
    epochs: Annotated[float, Gt(0), Le(1e6)] = MISSING
    """Passes over the data when ``max_steps`` is null."""
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = MISSING
    grad_clip: Annotated[Optional[float], Ge(0)] = MISSING
    """Largest gradient norm; null or 0 does not clip."""
    save_weights: bool = MISSING
    """Write the trained weights to ``export/`` at the end of the run."""


@dataclass
class LintConfig:
    allow: list[str] = MISSING
    """DeepSpeed keys that glmexp does not know and that shall reach DeepSpeed all the same, as in ``lint.allow=[new_key]``."""


@dataclass
class Config:
    task: Task = MISSING
    lang: Language = MISSING
    """Language of ``explain``."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    scaler: ScalerConfig = field(default_factory=ScalerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    activation: ActivationConfig = field(default_factory=ActivationConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    kernels: KernelsConfig = field(default_factory=KernelsConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Raw DeepSpeed keys added to the emitted config."""
    lint: LintConfig = field(default_factory=LintConfig)
