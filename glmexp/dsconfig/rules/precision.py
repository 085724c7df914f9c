"""fp16, bf16, torch_autocast and the dtypes of master weights, states and accumulated gradients."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import BYTES, Asked, error, warning

ACCUMULATION = "data_types.grad_accum_dtype"


def findings(asked: Asked) -> Iterator[Finding]:
    if asked.on("fp16.enabled") and asked.on(f"{asked.bf16_section}.enabled"):
        yield error("fp16.enabled", Kind.contradiction, "is on together with bf16.enabled, which DeepSpeed refuses; keep one")
    if asked.on("fp16.enabled") and asked.stage == 0:
        # FP16_Optimizer divides gradients by a scale that the loss was never multiplied by (runtime/engine.py, _scale_loss).
        message = "trains wrongly at stage 0: gradients are divided by a loss scale that is never applied; use stage 1"
        yield error("fp16.enabled", Kind.value, message)
    yield from _bf16(asked)
    yield from _master_weights(asked)
    yield from _accumulation(asked)
    yield from _autocast(asked)
    wanted = asked.dtype_of("data_types.param_dtype")
    if wanted and asked.dtype and wanted != asked.dtype:
        message = f"{wanted} is refused: it must be the {asked.dtype} that the fp16 and bf16 sections give; leave it out"
        yield error("data_types.param_dtype", Kind.contradiction, message)


def _bf16(asked: Asked) -> Iterator[Finding]:
    section = asked.bf16_section
    if asked.dtype != "bf16" or asked.stage is None:
        return
    if asked.on(f"{section}.check_grad_overflow", default=True) is False:
        key = f"{section}.check_grad_overflow"
        if asked.stage in (0, 3) or asked.bf16_optimizer:
            where = "with this optimizer" if asked.stage == 1 else f"at stage {asked.stage}, which always checks"
            yield error(key, Kind.no_effect, f"false has no effect {where}; leave it out")
        else:
            yield warning(key, Kind.value, "false lets one infinite gradient turn all weights into NaN; use true")
    if asked.on(f"{section}.immediate_grad_update") and not asked.bf16_optimizer:
        message = "is read at stage 1 with gradients summed in fp32 alone; leave it out"
        yield error(f"{section}.immediate_grad_update", Kind.no_effect, message)


def _master_weights(asked: Asked) -> Iterator[Finding]:
    """Low-precision master weights (runtime/config.py _do_error_check, base_optimizer.py _configure_master_weights)."""
    bf16 = f"{asked.bf16_section}.bf16_master_weights_and_grads"
    fp16 = "fp16.fp16_master_weights_and_grads"
    states = f"{asked.bf16_section}.bf16_optimizer_states"
    masters = {key: asked.on(key) for key in (bf16, fp16)}
    if masters[bf16] and masters[fp16]:
        yield error(fp16, Kind.contradiction, "does not go with bf16_master_weights_and_grads; keep one")
    if asked.on(states) and masters[bf16] is False:
        yield error(states, Kind.contradiction, "needs bf16_master_weights_and_grads true as well")
    for key, dtype in ((bf16, "bf16"), (states, "bf16"), (fp16, "fp16")):
        if not asked.on(key):
            continue
        if asked.stage == 0:
            yield error(key, Kind.contradiction, "is refused at stage 0; it needs stage 1, 2 or 3")
        elif asked.dtype is not None and asked.dtype != dtype:
            yield error(key, Kind.contradiction, f"needs {dtype}.enabled true, and the model is in {asked.dtype}")
    for key in (bf16, fp16):
        # Without bf16 states the optimizer must be the CPU Adam; with them it must be as soon as there is offloading.
        bound = key == fp16 or asked.on(states) is False or asked.offloads_optimizer
        if masters[key] and asked.stage in (1, 2, 3) and bound:
            yield from _on_the_host(asked, key)


def _on_the_host(asked: Asked, key: str) -> Iterator[Finding]:
    if asked.optimizer_device == "none":
        states = ", or bf16_optimizer_states true" if "bf16_master" in key else ""
        yield error(key, Kind.contradiction, f"needs the optimizer offloaded to the CPU (offload_optimizer){states}")
    elif asked.on("optimizer.params.torch_adam") or asked.optimizer_type not in (None, "adam", "adamw"):
        yield error(key, Kind.contradiction, "needs DeepSpeed's CPU Adam: optimizer type AdamW without torch_adam")


def _accumulation(asked: Asked) -> Iterator[Finding]:
    dtype = asked.dtype_of(ACCUMULATION)
    if dtype is None or asked.dtype is None or dtype == asked.dtype:
        return
    if asked.stage == 0:
        message = f"{dtype} keeps DeepSpeed from starting at stage 0, where it must be the model's {asked.dtype}; use stage 2"
        yield error(ACCUMULATION, Kind.contradiction, message)
    elif asked.bf16_optimizer:
        message = (
            "fp32 at stage 1 takes BF16_Optimizer: an unsharded buffer of 4 bytes a parameter on every rank, and bucket "
            "sizes, overlap_comm and reduce_scatter have no effect; use stage 2"
        )
        yield warning(ACCUMULATION, Kind.value, message)
    elif BYTES[dtype] < BYTES[asked.dtype] or dtype == "fp16":
        message = f"{dtype} sums gradients of {asked.dtype} less exactly; use {asked.dtype} or fp32"
        yield warning(ACCUMULATION, Kind.value, message)


def _autocast(asked: Asked) -> Iterator[Finding]:
    if not asked.on("torch_autocast.enabled"):
        return
    wanted = asked.dtype_of("torch_autocast.dtype")
    if asked.dtype in ("bf16", "fp16") and wanted and wanted != asked.dtype:
        message = f"{wanted} and a model in {asked.dtype}: products are computed in {wanted}; turn one of them off"
        yield warning("torch_autocast.dtype", Kind.contradiction, message)
    elif wanted == "fp32":
        yield error("torch_autocast.dtype", Kind.no_effect, "autocasts nothing; use bfloat16, or leave torch_autocast out")
