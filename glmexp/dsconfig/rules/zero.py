"""Keys of ``zero_optimization`` that bind each other, and buffers that cost more than is likely meant."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import BYTES, STAGE3_ALIASES, Asked, error, warning

GIB = 2**30

REPLACED = {
    "cpu_offload": ("offload_optimizer",),
    "cpu_offload_param": ("offload_param",),
    "stage3_gather_fp16_weights_on_model_save": (
        "gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
    ),
}
"""Deprecated key -> the names of what it stands for (runtime/zero/config.py)."""


def findings(asked: Asked) -> Iterator[Finding]:
    yield from _names(asked)
    yield from _gradient_norm(asked)
    yield from _flags(asked)
    yield from _fetching(asked)
    yield from _buffers(asked)
    yield from _zeropp(asked)


def _names(asked: Asked) -> Iterator[Finding]:
    """Two names of one quantity: DeepSpeed refuses both together, whatever they hold (runtime/config_utils.py)."""
    section = asked.section("zero_optimization")
    for alias in STAGE3_ALIASES:
        if alias in section and f"stage3_{alias}" in section:
            message = f"is the same key as stage3_{alias}, and DeepSpeed refuses both together; keep stage3_{alias}"
            yield error(f"zero_optimization.{alias}", Kind.contradiction, message)
    for old, names in REPLACED.items():
        for name in names:
            if old in section and name in section:
                message = f"is the old name of {name}, and DeepSpeed refuses both together; keep {name}"
                yield error(f"zero_optimization.{old}", Kind.contradiction, message)


def _gradient_norm(asked: Asked) -> Iterator[Finding]:
    """``compute_grad_norm: false`` (runtime/zero/config.py, stage_1_and_2.py, engine.py _do_optimizer_sanity_check)."""
    key = "zero_optimization.compute_grad_norm"
    if asked.on(key, default=True) is not False:
        return
    clipping = asked.number("gradient_clipping", 1.0)
    if asked.stage in (0, 3):
        yield error(key, Kind.contradiction, f"false is refused at stage {asked.stage}; it needs stage 1 or 2")
    elif clipping is not None and clipping > 0:
        message = f"false needs gradient_clipping 0, and it is {clipping:g}"
        message += "" if asked.has("gradient_clipping") else ", DeepSpeed's default where it is left out"
        yield error(key, Kind.contradiction, message)
    elif asked.offloads_optimizer:
        yield error(key, Kind.contradiction, "false does not go with offload_optimizer; leave one of them out")
    elif asked.bf16_optimizer:
        message = "false does not go with bf16 summed in fp32 at stage 1; use stage 2, or leave data_types.grad_accum_dtype out"
        yield error(key, Kind.contradiction, message)


def _flags(asked: Asked) -> Iterator[Finding]:
    zero = "zero_optimization"
    offloaded = asked.stage in (1, 2) and asked.offloads_optimizer
    if asked.on(f"{zero}.legacy_stage1"):
        yield error(
            f"{zero}.legacy_stage1",
            Kind.removed,
            "was removed in DeepSpeed 0.5.9 and keeps DeepSpeed from starting; leave it out",
        )
    if asked.on(f"{zero}.pipeline_loading_checkpoint") and asked.stage in (0, 1, 2):
        message = f"stops the loading of a checkpoint at stage {asked.stage}; it needs stage 3"
        yield error(f"{zero}.pipeline_loading_checkpoint", Kind.contradiction, message)
    unused = f"{zero}.ignore_unused_parameters"
    if asked.on(unused, default=True) is False and asked.stage is not None and asked.optimizer_device and not offloaded:
        message = "false is checked at stages 1 and 2 with offload_optimizer alone; unused parameters go unnoticed here"
        yield error(unused, Kind.no_effect, message)
    contiguous = f"{zero}.contiguous_gradients"
    if asked.on(contiguous, default=True) is False and offloaded:
        yield error(contiguous, Kind.no_effect, "false is overruled by offload_optimizer, which needs contiguous gradients")
    bucket = asked.number(f"{zero}.allgather_bucket_size")
    if bucket is not None and bucket % 2 and asked.stage in (1, 2) and not asked.bf16_optimizer:
        yield error(f"{zero}.allgather_bucket_size", Kind.value, f"{bucket:.0f} keeps DeepSpeed from starting: it must be even")
    momentum = f"{zero}.save_muon_momentum_buffer_in_memory"
    swapped = asked.optimizer_device in ("nvme", None)
    if asked.on(momentum) and asked.stage == 3 and (asked.optimizer_type != "muon" or not swapped):
        yield error(momentum, Kind.no_effect, "matters to the Muon optimizer with its states on nvme alone; leave it out")


def _fetching(asked: Asked) -> Iterator[Finding]:
    """``allgather_sequential`` sets the prefetch bucket to 1 (runtime/engine.py, _configure_zero_optimizer)."""
    if asked.stage != 3 or not any(asked.on(key) for key in asked.written("allgather_sequential")):
        return
    for key in asked.written("prefetch_bucket_size"):
        if asked.number(key) not in (None, 1):
            yield error(key, Kind.no_effect, "is overruled by allgather_sequential, which fetches one at a time; leave one out")


def _buffers(asked: Asked) -> Iterator[Finding]:
    """Buffers of more than a GiB, in the dtype they are made in (stage_1_and_2.py setup_buckets, stage3.py)."""
    if asked.stage in (1, 2, 3) and not asked.bf16_optimizer and asked.on("zero_optimization.contiguous_gradients", True):
        overlapped = "; twice that with overlap_comm" if asked.stage in (1, 2) and _overlaps(asked) else ""
        yield from _buffer(asked, "zero_optimization.reduce_bucket_size", BYTES.get(asked.bucket_dtype or "", 2), overlapped)
    if asked.stage == 3:
        for key in asked.written("prefetch_bucket_size"):
            yield from _buffer(asked, key, BYTES.get(asked.dtype or "", 2), "")


def _buffer(asked: Asked, key: str, size: int, more: str) -> Iterator[Finding]:
    elements = asked.number(key)
    if elements is not None and elements * size > GIB:
        message = f"{elements:.3g} elements of {size} bytes are a buffer of {elements * size / GIB:.1f} GiB a rank{more}"
        yield warning(key, Kind.value, f"{message}; 5e7 is enough for most models")


def _overlaps(asked: Asked) -> bool:
    return asked.on("zero_optimization.overlap_comm") is True


def _zeropp(asked: Asked) -> Iterator[Finding]:
    """ZeRO++ (runtime/engine.py, runtime/zero/stage3.py, utils/groups.py)."""
    if asked.stage != 3:
        return
    hpz, weights, gradients = (
        f"zero_optimization.zero_{name}" for name in ("hpz_partition_size", "quantized_weights", "quantized_gradients")
    )
    world, ranks = asked.situation.world_size, asked.count(hpz)
    if world and ranks and ranks > max(world, 1):
        message = f"{ranks} ranks are more than the {world} there are, and DeepSpeed takes {world} in silence"
        yield error(hpz, Kind.contradiction, f"{message}; use the number of GPUs of a node")
    elif world and ranks and world % ranks:
        yield error(hpz, Kind.contradiction, f"{ranks} does not divide the {world} ranks; use the number of GPUs of a node")
    if asked.on(gradients):
        if asked.on("zero_optimization.reduce_scatter", default=True) is False:
            yield error(gradients, Kind.contradiction, "needs zero_optimization.reduce_scatter true, which is false")
        if asked.optimizer_type == "muon":
            yield error(gradients, Kind.contradiction, "does not go with the Muon optimizer")
        if world == 1:
            yield error(gradients, Kind.no_effect, "is used between nodes, and one rank reduces nothing; leave it out")
        elif world and ranks and world <= ranks:
            message = (
                f"is used between nodes alone, and {world} ranks are likely one node; gradients are reduced unquantized there"
            )
            yield warning(gradients, Kind.no_effect, message)
    if asked.on(weights) and asked.on("torch_autocast.enabled"):
        yield error(weights, Kind.contradiction, "does not go with torch_autocast; leave one of them out")
