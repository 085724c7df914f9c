"""What does not run, or has no effect, on a machine without a GPU. Silent unless the device is known to be the CPU."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error


def findings(asked: Asked) -> Iterator[Finding]:
    if not asked.on_cpu:
        return
    if asked.on("fp16.enabled"):
        yield error("fp16.enabled", Kind.value, "is refused on a CPU; use bf16")
    zero = "zero_optimization"
    if asked.stage == 3:
        for name in ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"):
            if asked.on(f"{zero}.{name}"):
                yield error(
                    f"{zero}.{name}",
                    Kind.no_effect,
                    "needs a CUDA GPU, and keeps DeepSpeed from starting on a CPU; leave it out",
                )
        if asked.on(f"{zero}.offload_optimizer.super_offload"):
            key = f"{zero}.offload_optimizer.super_offload"
            yield error(key, Kind.no_effect, "needs a CUDA GPU, and keeps DeepSpeed from starting on a CPU; leave it out")
        if asked.section(f"{zero}.zenflow"):
            yield error(f"{zero}.zenflow", Kind.no_effect, "needs a GPU at stage 3; on a CPU use stage 1 or 2")
    if asked.on("compile.deepcompile") and asked.stage:
        yield error("compile.deepcompile", Kind.no_effect, "needs a CUDA GPU; leave it out")
