"""The typed configuration: one dataclass a config group.

Values live in ``conf/*.yaml``, types and ranges here; a required field is ``MISSING`` so that no default is written twice.
``None`` means that the quantity is absent or derived. Field names in ``zero``, ``offload``, ``precision``, ``scaler`` and
``comm`` (``engine_schema``) are DeepSpeed's own keys wherever DeepSpeed has one.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from annotated_types import Ge, Gt, Le, Lt
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
    Metric,
    Objective,
    Order,
    QuantType,
    Retry,
    Schedule,
    Search,
    Task,
    TrackerMode,
    TrackerName,
)
from glmexp.config.data_schema import DataConfig
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
class MethodConfig:
    name: Method = MISSING
    rank: MaybeCount = MISSING
    """LoRA r: columns of the low-rank update."""
    alpha: Annotated[Optional[float], Gt(0)] = MISSING
    """LoRA scale: the update is multiplied by alpha / rank."""
    dropout: Annotated[Optional[float], Ge(0.0), Lt(1.0)] = MISSING
    """Of what goes into an adapter, or of the prefix: the share that each step leaves out."""
    target_modules: Optional[list[str]] = MISSING
    """Linear layers that get an adapter; null takes the model's attention projections."""
    dora: Optional[bool] = None
    """LoRA and QLoRA: DoRA, which learns the length of each column apart from its direction; slower."""
    rslora: Optional[bool] = None
    """LoRA and QLoRA: rank-stabilised LoRA, the update multiplied by alpha / sqrt(rank)."""
    quant_type: Optional[QuantType] = None
    """QLoRA: the 4-bit data type of the frozen weights."""
    double_quant: Optional[bool] = None
    """QLoRA: the quantisation constants are quantised too, which saves about 0.4 bits a parameter."""
    last_layers: SmallCount = None
    """Freeze: how many of the model's last layers are trained."""
    trainable: Optional[list[str]] = None
    """Freeze: shell patterns of the parameters that are trained besides, as in ``['*.embed_tokens.*', 'lm_head.*']``."""
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
    """A run that takes longer is ended with state ``timeout``, after a checkpoint if it saves any; null has no limit."""
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
    resume: Optional[str] = MISSING
    """A checkpoint's folder, or a run's for its newest: continues from there in a new run. ``auto`` continues, in place, the
    newest run of the same ``config_hash`` that is not finished; where there is none, the run starts afresh."""
    stop_after: MaybeCount = MISSING
    """Save a checkpoint and end after this optimizer step, though the schedule goes on to the last; null does not."""


@dataclass
class CheckpointConfig:
    """Training state in ``checkpoints/``: weights, optimizer, schedule, loss scale and place in the data."""

    every: MaybeCount = MISSING
    """Optimizer steps between checkpoints; null saves none, but on a signal under ``train.resume=auto``."""
    keep: Count = MISSING
    """Checkpoints kept, the newest ones; the best one is kept besides."""
    best: Optional[str] = MISSING
    """The score of the evaluations by which the best checkpoint is kept and exported: loss, perplexity, or one of
    ``eval.metrics`` such as rouge-l; null keeps none for its score and exports the last weights."""


@dataclass
class EvalConfig:
    """Evaluation on ``data.eval_path`` or ``data.eval_share``, during a run and by the verb ``evaluate``."""

    every: MaybeCount = MISSING
    """Optimizer steps between evaluations; null evaluates once, at the end of the run."""
    micro: MaybeCount = MISSING
    """Samples a forward pass and rank; null is batch.micro."""
    generate: bool = MISSING
    """During a run: let the model answer and score the answers, besides the loss. ``evaluate`` always does."""
    metrics: Metric = MISSING
    """How answers are scored: ``chatglm2_char`` (ROUGE of jieba's words, BLEU of characters, as ChatGLM2's P-tuning script) or
    ``chatglm3_jieba`` (both of jieba's words, as ChatGLM3's fine-tuning demo)."""
    max_new_tokens: Count = MISSING
    """Longest answer that is generated, in tokens."""
    temperature: Annotated[float, Ge(0)] = MISSING
    """0 takes the likeliest token each time; above, answers are sampled."""
    top_p: Annotated[float, Gt(0), Le(1)] = MISSING
    """Sampling: the likeliest tokens that together have this probability."""
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = MISSING
    """Of the sampling."""
    patience: MaybeCount = MISSING
    """End the run after so many evaluations in a row that did not better ``checkpoint.best``; null does not."""


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
    """States that ``sweep.resume`` runs again; the earlier try is kept in ``attempt<N>/``, or with ``train.resume=auto`` goes
    on from its checkpoint."""
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
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Raw DeepSpeed keys added to the emitted config."""
    lint: LintConfig = field(default_factory=LintConfig)
