"""Ulysses sequence parallelism (``comm=ulysses``): how many ranks share a sample, and what that asks of the other groups."""

from collections.abc import Iterator

from glmexp.config.choices import Attention, Method
from glmexp.config.schema import Config


def sequence_parallel_size(config: Config) -> int:
    """Ranks that share each sample; 1 where every rank has samples of its own."""
    return config.comm.sequence_parallel_size or 1


def sequence_parallel(config: Config) -> Iterator[str]:
    """Rules across fields. Which world sizes fit is ``config.batch``'s, which models do is the worker's.

    At stage 3 DeepSpeed divides gradients by all ranks when it reduces and scatters them, and by the groups of ranks alone
    (world size / sequence_parallel_size) in its other ways: below stage 3, and with reduce_scatter=false for all parameters
    but those larger than a bucket (runtime/zero/stage3.py, __avg_scatter_contiguous_grads; stage_1_and_2.py, average_tensor).
    """
    size = sequence_parallel_size(config)
    if size == 1:
        return
    asked = f"comm=ulysses (comm.sequence_parallel_size={size})"
    zero = config.zero
    if zero.stage != 3:
        yield f"{asked} needs zero=stage3, got stage{zero.stage}: below it DeepSpeed makes the gradients {size} times too large"
    elif zero.reduce_scatter is False:
        yield f"{asked} needs zero.reduce_scatter=true: without it DeepSpeed divides the gradients by two different numbers"
    if zero.zero_quantized_gradients:
        yield f"{asked} needs zero.zero_quantized_gradients=false: nobody has shown that the two agree"
    if config.kernels.attention is Attention.eager:
        yield f"{asked} needs kernels.attention=sdpa, got eager: DeepSpeed wraps fused attention alone"
    if config.kernels.deepcompile:
        yield f"{asked} does not go with kernels=deepcompile, which traces one rank's attention; choose one of them"
    if config.method.name is Method.ptuning_v2:
        yield f"{asked} does not go with method=ptuning_v2, whose prefix is no part of the shared sequence; use lora or full"
