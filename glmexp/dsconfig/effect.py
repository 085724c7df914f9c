"""What of a valid DeepSpeed config changes nothing in this run, and what its buckets take.

The linter refuses what can never work. Here is what is right in general and idle on this machine: one rank has nothing to
reduce, a CPU has one stream. Read in DeepSpeed 0.19.8, and for one rank compared in runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glmexp.dsconfig.findings import Situation, View
from glmexp.dsconfig.machine import Machine
from glmexp.dsconfig.rules.asked import BYTES, Asked

Text = Mapping[str, str]
"""One sentence in each language: ``en`` and ``zh``."""

ZERO = "zero_optimization."
TESTED = ("adamw", "adam", "adagrad", "lion", "muon")
"""Optimizers that ZeRO takes without ``zero_allow_untested_optimizer`` (runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS)."""


@dataclass(frozen=True)
class Remark:
    """What is to be said of some keys where ``when`` holds."""

    keys: tuple[str, ...]
    when: Callable[[Asked], bool]
    text: Text


def idle(ds_config: Mapping[str, Any], machine: Machine) -> dict[str, Text]:
    """Key -> why it changes nothing in this run; the first reason that holds. What is false asks for nothing."""
    return _said(IDLE, _asked(ds_config, machine))


def unlike_its_name(ds_config: Mapping[str, Any], machine: Machine) -> dict[str, Text]:
    """Key -> how it takes effect in this run, where that is not what its name and value lead one to expect."""
    return _said(UNLIKE_ITS_NAME, _asked(ds_config, machine))


def _said(remarks: tuple[Remark, ...], asked: Asked) -> dict[str, Text]:
    found: dict[str, Text] = {}
    for remark in remarks:
        for key in remark.keys if remark.when(asked) else ():
            if asked.has(key) and asked.view.raw(key) is not False:
                found.setdefault(key, remark.text)
    return found


def _asked(ds_config: Mapping[str, Any], machine: Machine) -> Asked:
    return Asked(View(ds_config), Situation(world_size=machine.world_size, device=machine.device))


def one_rank(asked: Asked) -> bool:
    return asked.situation.world_size == 1


def offloads_weights(asked: Asked) -> bool:
    return asked.param_device in ("cpu", "nvme")


def nothing_to_reduce(asked: Asked) -> bool:
    """One rank, but for Muon at stage 3: it needs reduce_scatter off and keeps its momentum in the dtype of communication
    (stage3.py, _create_momentum_buffer)."""
    return one_rank(asked) and not (asked.stage == 3 and asked.optimizer_type == "muon")


def nothing_rounded(asked: Asked) -> bool:
    """The dtype of communication is no narrower than the gradients: else one rank rounds them to it all the same."""
    narrow = BYTES[asked.dtype_of("communication_data_type") or "fp32"] < BYTES[asked.dtype or "fp32"]
    return nothing_to_reduce(asked) and not narrow


def gathers_nothing(asked: Asked) -> bool:
    """One rank of stage 3 holds whole weights and gathers by pointing at them (partition_parameters.py, NoGatherHandle)."""
    return one_rank(asked) and not offloads_weights(asked) and not asked.on(f"{ZERO}zero_quantized_nontrainable_weights")


def nothing_to_overlap(asked: Asked) -> bool:
    """One rank without offload: neither a reduction nor a copy to the host."""
    return one_rank(asked) and not asked.offloads_optimizer and not offloads_weights(asked)


def second_bucket(asked: Asked) -> bool:
    return asked.stage in (1, 2) and asked.on(f"{ZERO}overlap_comm") is True


ONE_RANK: Text = {"en": "one rank: nothing to reduce", "zh": "只有一个 rank，没有需要归约的东西"}
ONE_STREAM: Text = {"en": "the CPU has one stream: nothing overlaps", "zh": "CPU 上没有多个流，谈不上重叠"}


def clips_muons_update(asked: Asked) -> bool:
    """Muon's orthogonal update takes the place of the gradient before the norm is taken (stage_1_and_2.py, get_flat_partition;
    stage3.py, _apply_distributed_muon_update)."""
    return asked.optimizer_type == "muon" and asked.stage in (1, 2, 3) and bool(asked.number("gradient_clipping"))


def two_dtypes_of_buckets(asked: Asked) -> bool:
    return asked.on("torch_autocast.enabled") is True and asked.stage in (1, 2, 3)


def but_a_second_bucket(why: Text) -> Text:
    return {"en": f"{why['en']}; it only takes a second bucket", "zh": f"{why['zh']}；只会多占一个通信桶"}


NEEDS_GPU: Text = {"en": "needs a CUDA GPU", "zh": "需要 CUDA GPU"}
ZENFLOW = ("topk_ratio", "select_strategy", "select_interval", "update_interval", "overlap_step", "full_warm_up_rounds")

IDLE = (
    Remark(
        (
            *(f"{ZERO}zero_quantized_{what}" for what in ("weights", "nontrainable_weights", "gradients")),
            *(f"{ZERO}offload_optimizer.{key}" for key in ("super_offload", "cpuadam_cores_perc")),
            "compile.deepcompile",
        ),
        lambda asked: asked.on_cpu,
        NEEDS_GPU,
    ),
    Remark(tuple(f"{ZERO}zenflow.{key}" for key in ZENFLOW), lambda asked: asked.on_cpu and asked.stage == 3, NEEDS_GPU),
    Remark(
        (f"{ZERO}zero_quantized_gradients",),
        lambda asked: (asked.situation.world_size or 1) <= (asked.count(f"{ZERO}zero_hpz_partition_size") or 1),
        {
            "en": "used between nodes alone, and these ranks are likely one",
            "zh": "只在节点之间起作用，而这些 rank 应该都在同一节点",
        },
    ),
    Remark(
        (
            *(f"{ZERO}{key}" for key in ("reduce_bucket_size", "overlap_comm", "contiguous_gradients", "reduce_scatter")),
            f"{ZERO}round_robin_gradients",
            f"{ZERO}use_multi_rank_bucket_allreduce",
            "bf16.check_grad_overflow",
        ),
        lambda asked: asked.bf16_optimizer,
        {
            "en": "bf16 at stage 1 with fp32 accumulation runs on BF16_Optimizer, which does not read it",
            "zh": "bf16、stage 1、fp32 累积时 DeepSpeed 改用 BF16_Optimizer，它不读这个键",
        },
    ),
    Remark(
        (
            *(f"{ZERO}{key}" for key in ("reduce_scatter", "use_multi_rank_bucket_allreduce", "round_robin_gradients")),
            "prescale_gradients",
            "gradient_predivide_factor",
        ),
        nothing_to_reduce,
        ONE_RANK,
    ),
    Remark(("communication_data_type",), nothing_rounded, ONE_RANK),
    Remark(
        (f"{ZERO}overlap_comm",),
        lambda asked: nothing_to_overlap(asked) and second_bucket(asked),
        but_a_second_bucket(ONE_RANK),
    ),
    Remark((f"{ZERO}overlap_comm",), nothing_to_overlap, ONE_RANK),
    Remark((f"{ZERO}overlap_comm",), lambda asked: asked.on_cpu and second_bucket(asked), but_a_second_bucket(ONE_STREAM)),
    Remark((f"{ZERO}overlap_comm",), lambda asked: asked.on_cpu, ONE_STREAM),
    Remark(
        (
            *(f"{ZERO}stage3_{key}" for key in ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance")),
            *(f"{ZERO}stage3_{key}_persistence_threshold" for key in ("param", "model")),
            *(f"{ZERO}stage3_{key}" for key in ("use_all_reduce_for_fetch_params", "allgather_sequential")),
            f"{ZERO}zero_quantized_weights",
        ),
        gathers_nothing,
        {"en": "one rank: it holds all weights and gathers nothing", "zh": "只有一个 rank，参数本来就是完整的，无需收集"},
    ),
    Remark(
        (f"{ZERO}offload_optimizer.pin_memory", f"{ZERO}offload_param.pin_memory"),
        lambda asked: asked.on_cpu,
        {
            "en": "on the CPU there is no GPU to copy to, and nothing is pinned",
            "zh": "在 CPU 上运行，没有与 GPU 的拷贝，不会锁页",
        },
    ),
    Remark(
        (f"{ZERO}stage3_gather_16bit_weights_on_model_save",),
        lambda asked: True,
        {"en": "glmexp gathers and writes the weights itself", "zh": "glmexp 自己收集并写出权重"},
    ),
    Remark(
        ("zero_allow_untested_optimizer",),
        lambda asked: asked.stage == 0 or asked.optimizer_type in TESTED,
        {"en": "only asked for an optimizer that ZeRO does not know", "zh": "只对 ZeRO 名单之外的优化器才有意义"},
    ),
    Remark(
        ("zero_force_ds_cpu_optimizer",),
        lambda asked: True,
        {"en": "DeepSpeed makes the optimizer itself here", "zh": "这里的优化器由 DeepSpeed 自己创建"},
    ),
    Remark(
        ("steps_per_print", "dump_state"),
        lambda asked: (asked.word("log_level") or "warning").lower() not in ("info", "debug"),
        {
            "en": "printed at log_level info alone: add +deepspeed.log_level=info",
            "zh": "log_level 为 info 才会输出，请加 +deepspeed.log_level=info",
        },
    ),
)
"""In order: the first that holds is said."""

UNLIKE_ITS_NAME = (
    Remark(
        ("gradient_clipping",),
        lambda asked: clips_muons_update(asked) and not asked.bf16_optimizer,
        {
            "en": "with Muon it clips Muon's update, not the gradient",
            "zh": "用 Muon 时，裁剪的是 Muon 的更新量，不是梯度",
        },
    ),
    Remark(
        (f"{ZERO}reduce_bucket_size",),
        two_dtypes_of_buckets,
        {
            "en": "autocast takes two buckets, for gradients reduced in fp32 and in torch_autocast.dtype; at stages 1 and 2 "
            "both are of fp32",
            "zh": "autocast 下有两个通信桶，分别放按 fp32 和按 torch_autocast.dtype 归约的梯度；stage 1/2 下两个都按 fp32 分配",
        },
    ),
)


def bucket_bytes(ds_config: Mapping[str, Any]) -> int:
    """Bytes that the gradient buckets take on each rank: at stages 1 and 2 during a backward pass, at stage 3 all the time.

    One bucket a dtype of reduction, so two under autocast (linear layers, the rest). Stages 1 and 2 allocate it in the compute
    dtype, twice to overlap (stage_1_and_2.py, setup_buckets); stage 3 in the dtype of reduction (stage3.py,
    _setup_for_real_optimizer).
    """
    asked = Asked(View(ds_config), Situation())
    if asked.stage not in (1, 2, 3) or asked.bf16_optimizer:
        return 0
    compute = asked.dtype or "fp32"
    elements = int(asked.number(f"{ZERO}reduce_bucket_size", 5e8) or 0)
    contiguous = asked.on(f"{ZERO}contiguous_gradients", True) is True
    autocast = asked.dtype_of("torch_autocast.dtype") if asked.on("torch_autocast.enabled") else None
    if asked.stage == 3:
        dtypes = [compute, autocast] if autocast else [asked.bucket_dtype or compute]
        return elements * sum(BYTES[dtype] for dtype in dtypes) if contiguous else 0
    buffers = (contiguous or asked.offloads_optimizer) + second_bucket(asked)
    return elements * BYTES[asked.bucket_dtype or compute] * buffers * (2 if autocast else 1)


def one_rank_note(ds_config: Mapping[str, Any], machine: Machine) -> Text | None:
    """What a user of one rank should know of ZeRO without offload; None where it does not apply."""
    asked = _asked(ds_config, machine)
    if not nothing_to_overlap(asked) or asked.stage == 0:
        return None
    size = bucket_bytes(ds_config)
    memory = "内存" if asked.on_cpu else "显存"
    english = f"one rank has nothing to shard: zero=stage{asked.stage} saves no memory without offload"
    chinese = f"只有一个 rank，没有可分片的内容；不开卸载时，zero=stage{asked.stage} 不省{memory}"
    if size:
        english += f", and its gradient bucket takes {mebibytes(size)} (zero.reduce_bucket_size)"
        chinese += f"，通信桶反而要占 {mebibytes(size)}（zero.reduce_bucket_size）"
    return {"en": english, "zh": chinese}


def mebibytes(size: int) -> str:
    return f"{size / 1024**2:,.1f} MiB"
