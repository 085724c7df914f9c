"""The words that a field with a fixed set of values takes on the command line."""

from enum import Enum


class Task(str, Enum):
    train = "train"
    measure = "measure"
    check = "check"


class Hub(str, Enum):
    huggingface = "huggingface"
    modelscope = "modelscope"


class Init(str, Enum):
    pretrained = "pretrained"
    random = "random"


class Method(str, Enum):
    full = "full"
    freeze = "freeze"
    lora = "lora"
    qlora = "qlora"
    ptuning_v2 = "ptuning_v2"


class QuantType(str, Enum):
    nf4 = "nf4"
    fp4 = "fp4"


class Dtype(str, Enum):
    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


class OffloadDevice(str, Enum):
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OptimizerType(str, Enum):
    AdamW = "AdamW"
    Muon = "Muon"


class SelectStrategy(str, Enum):
    step = "step"
    epoch = "epoch"


class Schedule(str, Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class Attention(str, Enum):
    sdpa = "sdpa"
    eager = "eager"


class Device(str, Enum):
    auto = "auto"
    gpu = "gpu"
    cpu = "cpu"


class Backend(str, Enum):
    spawn = "spawn"
    torchrun = "torchrun"
    deepspeed = "deepspeed"


class TrackerName(str, Enum):
    none = "none"
    wandb = "wandb"
    tensorboard = "tensorboard"
    swanlab = "swanlab"


class TrackerMode(str, Enum):
    auto = "auto"
    online = "online"
    offline = "offline"


class Language(str, Enum):
    en = "en"
    zh = "zh"


class OverLength(str, Enum):
    cut = "cut"
    drop = "drop"


class OnBad(str, Enum):
    error = "error"
    skip = "skip"


class Turns(str, Enum):
    all = "all"
    last = "last"


class Metric(str, Enum):
    chatglm2_char = "chatglm2_char"
    chatglm3_jieba = "chatglm3_jieba"


class Source(str, Enum):
    file = "file"
    hub = "hub"
    synthetic = "synthetic"


class MeasureSamples(str, Enum):
    synthetic = "synthetic"
    longest = "longest"


class Order(str, Enum):
    grid = "grid"
    cheap_first = "cheap_first"


class Search(str, Enum):
    grid = "grid"
    max_batch = "max_batch"
    optuna = "optuna"


class Objective(str, Enum):
    throughput = "throughput"
    memory = "memory"


class Retry(str, Enum):
    """States of a trial that may be tried again: how it ended does not follow from its configuration alone."""

    oom = "oom"
    oom_host = "oom_host"
    diverged = "diverged"
    timeout = "timeout"
    interrupted = "interrupted"
    killed = "killed"
    failed = "failed"


TEMPLATES = ("chatglm2", "chatglm3", "glm4", "chat", "plain")
"""Prompt formats: values of ``model.template``."""
ROPE_STYLES = ("linear", "base")
"""Meanings of ``rope_ratio``: values of ``model.rope_style``."""
