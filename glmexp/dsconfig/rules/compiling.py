"""``compile`` (runtime/engine.py compile and get_deepcompile_backend, compile/init_z3.py) and unmanaged accumulation."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, asks, error

DEEPCOMPILE = "compile.deepcompile"
ON_UNLESS_SET = ("double_buffer", "offload_activation_pin_memory", "keep_int_input_tensors")
"""Details of a pass, true unless set."""
QUANTIZED = ("weights", "nontrainable_weights", "gradients")


def findings(asked: Asked) -> Iterator[Finding]:
    yield from _passes(asked)
    yield from _unmanaged(asked)
    if not asked.on(DEEPCOMPILE):
        return
    if asked.stage == 0:
        yield error(DEEPCOMPILE, Kind.no_effect, "has no effect at stage 0, where torch.compile takes over; use stage 1 to 3")
    if asked.stage == 3 and asked.on("compile.offload_opt_states") and asked.offloads_optimizer:
        message = "does not go with zero_optimization.offload_optimizer; leave one of them out"
        yield error("compile.offload_opt_states", Kind.contradiction, message)
    wanted = [f"compile.offload_{name}" for name in ("activation", "opt_states", "parameters")]
    wanted = [key for key in wanted if asked.on(key)]
    for key in wanted[1:]:
        yield error(key, Kind.contradiction, f"does not go with {wanted[0]}; keep one")
    if asked.stage == 3:
        yield from _compiled_collectives(asked)
    if asked.on("compile.autoep_non_moe"):
        yield error("compile.autoep_non_moe", Kind.contradiction, "does not go with deepcompile; keep one")


def _compiled_collectives(asked: Asked) -> Iterator[Finding]:
    """DeepCompile gathers the plain shards and reduces by operators of its own (csrc/compile/z3.cpp), which know no ZeRO++ and
    no shard on NVMe."""
    zero = "zero_optimization"
    ranks = asked.count(f"{zero}.zero_hpz_partition_size") or 1
    idle = [f"{zero}.zero_quantized_{name}" for name in QUANTIZED if asked.on(f"{zero}.zero_quantized_{name}")]
    for key in [*([f"{zero}.zero_hpz_partition_size"] if ranks > 1 else []), *idle]:
        yield error(key, Kind.no_effect, "DeepCompile gathers and reduces by itself, without ZeRO++; leave one of them out")
    if asked.param_device == "nvme":
        message = "DeepCompile takes the shards from memory and reads none from NVMe; use cpu, or leave compile out"
        yield error(f"{zero}.offload_param.device", Kind.contradiction, message)


def _passes(asked: Asked) -> Iterator[Finding]:
    if asked.on(DEEPCOMPILE) is not False:
        return
    for name, value in asked.section("compile").items():
        if name not in ("deepcompile", "autoep_non_moe", *ON_UNLESS_SET) and asks(value):
            yield error(f"compile.{name}", Kind.no_effect, "is read with compile.deepcompile true alone; leave it out")


def _unmanaged(asked: Asked) -> Iterator[Finding]:
    """``managed_gradient_accumulation: false`` (runtime/engine.py, _do_sanity_check)."""
    key = "managed_gradient_accumulation"
    if asked.on(key, default=True) is not False:
        return
    if asked.stage in (0, 1) and asked.on("zero_optimization.overlap_comm"):
        yield error(key, Kind.contradiction, f"false does not go with overlap_comm at stage {asked.stage}; turn that off")
    if asked.on(DEEPCOMPILE):
        yield error(key, Kind.contradiction, "false does not go with DeepCompile; keep one")
