"""The typed configuration: one dataclass a config group.

Values live in ``conf/*.yaml``, types and ranges here; a required field is ``MISSING`` so that no default is written twice.
``None`` means that the quantity is absent or derived. Field names in ``zero``, ``offload``, ``precision``, ``scaler`` and
``comm`` (``engine_schema``) are DeepSpeed's own keys wherever DeepSpeed has one.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from annotated_types import Ge, Gt, Le
from omegaconf import MISSING

from glmexp.config.choices import (
    Attention,
    Backend,
    Device,
    Dtype,
    Hub,
    Init,
    Language,
    MeasureSamples,
    Method,
    Objective,
    OnBad,
    Order,
    OverLength,
    Retry,
    Schedule,
    Search,
    Source,
    Task,
    TrackerMode,
    TrackerName,
)
from glmexp.config.engine_schema import (
    BatchConfig,
    CommConfig,
    OffloadConfig,
    OptimizerConfig,
    PrecisionConfig,
    ScalerConfig,
    ZeroConfig,
)
from glmexp.config.ranges import Count, MaybeCount, Share, SmallCount


@dataclass
class ModelConfig:
    path: str = MISSING
    """Folder or hub id; ``tiny`` is the model that ships with glmexp."""
    hub: Hub = MISSING
    """Where a hub id is fetched from. HF_ENDPOINT names a mirror of the Hugging Face hub."""
    revision: Optional[str] = MISSING
    """Branch, tag or commit on the hub; null is the default branch."""
    init: Optional[Init] = MISSING
    """``random`` reads no weights: for measuring speed and memory. null is pretrained, and for ``measure`` random unless the
    model is a folder here."""
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
    hang_minutes: Annotated[Optional[float], Gt(0)] = MISSING
    """A run of which no rank has told any progress for so long is ended with state ``timeout``; null waits for ever."""
    collective_timeout_minutes: Annotated[float, Ge(0.001), Le(1e6)] = MISSING
    """How long one collective may wait for the slowest rank."""


@dataclass
class TrackerConfig:
    name: TrackerName = MISSING
    mode: Optional[TrackerMode] = MISSING
    """``auto`` goes online with a key and offline without one."""
    project: Optional[str] = MISSING
    entity: Optional[str] = MISSING
    """User or team (W&B), workspace (SwanLab) that owns the project; null is the key's own."""
    group: Optional[str] = MISSING
    """Runs that belong together; null is the sweep's name."""
    run_name: Optional[str] = MISSING
    """null is the name of the trial or of the run folder; in a sweep it stands before the trial's name."""
    tags: list[str] = MISSING
    workspace: Optional[bool] = MISSING
    """W&B: at the end of a sweep a workspace with plots over what was swept is saved on the server."""


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
class MeasureConfig:
    """``measure``: a short run for speed and memory."""

    warmup_steps: Annotated[int, Ge(0)] = MISSING
    """Optimizer steps before the clock starts and the memory peak is reset."""
    steps: Count = MISSING
    """Optimizer steps that are measured."""
    samples: MeasureSamples = MISSING
    """``synthetic``: random tokens, every sample ``data.max_length`` long. ``longest``: the real samples, the longest first,
    so that running out of memory shows at once; after the warm-up the longest come again, so that the peak is theirs."""


@dataclass
class SweepConfig:
    """``--multirun``: many trials in one folder."""

    name: Optional[str] = MISSING
    """Name of the folder below ``multirun/``; null is the time of the start."""
    resume: bool = MISSING
    """Go on with a sweep folder that holds trials: what is finished does not run again."""
    retry: list[Retry] = MISSING
    """States that ``sweep.resume`` runs again; the earlier try is kept in ``attempt<N>/``."""
    slots: Count = MISSING
    """Trials at once, on disjoint GPUs."""
    warm_start: bool = MISSING
    """Fork the ranks from a process that has imported torch and deepspeed already: saves 5 to 16 s a trial."""
    order: Order = MISSING
    """``cheap_first``: the trials that need least memory first, and what must run out of memory is skipped."""
    search: Search = MISSING
    """``grid`` runs every trial; ``max_batch`` finds the largest batch.micro that fits at a constant batch.total;
    ``optuna`` samples the grid."""
    trials: MaybeCount = MISSING
    """``optuna``: trials to run; null runs up to the whole grid."""
    time_budget_minutes: Annotated[Optional[float], Gt(0)] = MISSING
    """No trial is started after so long; null has no limit."""
    objective: Objective = MISSING
    """What is recommended: the highest tokens/s within ``gpu_memory_gib``, or the lowest GPU memory."""
    gpu_memory_gib: Annotated[Optional[float], Gt(0)] = MISSING
    """Memory of the card that the recommendation must fit; null is that of ``hardware``, else the card at hand."""


@dataclass
class LintConfig:
    allow: list[str] = MISSING
    """DeepSpeed keys that glmexp does not know and that shall reach DeepSpeed all the same, as in ``lint.allow=[new_key]``."""


@dataclass
class Config:
    task: Task = MISSING
    lang: Language = MISSING
    """Language of ``explain`` and of a sweep's report."""
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
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Raw DeepSpeed keys added to the emitted config."""
    lint: LintConfig = field(default_factory=LintConfig)
