"""Settings that need less GPU memory than those at hand."""

from collections.abc import Iterator
from enum import Enum

from glmexp.config.choices import Dtype, Method, OffloadDevice
from glmexp.config.schema import Config


class Holds(Enum):
    """What fills the GPU where a run has no room left."""

    weights = "weights"
    """They are being loaded."""
    states = "states"
    """Master weights, gradients and optimizer states on top of the weights."""
    activations = "activations"
    """Those of a micro batch, on top of all others."""
    answers = "answers"
    """An evaluation: a micro batch without gradients, and the keys and values of the answers that are generated."""


def less_gpu_memory(config: Config, world_size: int, holds: Holds = Holds.activations) -> list[str]:
    """Settings that would help and are not in use, in the order in which to try them; they can be mixed.

    What changes only where numbers are kept comes first, then what costs speed, last what trains less of the model.
    """
    moves = [*_elsewhere(config, world_size, holds), *_smaller_batch(config, holds), *_smaller_numbers(config, holds)]
    if not moves:
        return ["more launch.ranks, or a GPU with more memory" if config.zero.stage == 3 else "a GPU with more memory"]
    return moves


def _elsewhere(config: Config, world_size: int, holds: Holds) -> Iterator[str]:
    """A higher ZeRO stage, which shares over the ranks, and offload.

    Both change the weights' place at stage 3 alone; the states of an adapter or a prefix are not worth moving.
    """
    stage, offload, method = config.zero.stage, config.offload, config.method
    states = holds in (Holds.states, Holds.activations) and method.name in (Method.full, Method.freeze)
    at_stage3 = method.name is not Method.qlora and not method.dora
    if world_size > 1 and stage < 3:  # one rank has nobody to share with
        if states:
            yield f"zero=stage{max(stage + 1, 2)}"
        elif at_stage3:
            yield "zero=stage3"
    if offload.device is OffloadDevice.none and states:
        yield "offload=cpu" if stage > 0 else "zero=stage2 offload=cpu"
    elif not offload.parameters and at_stage3:
        yield "offload=cpu_all" if stage == 3 else "zero=stage3 offload=cpu_all"


def _smaller_batch(config: Config, holds: Holds) -> Iterator[str]:
    if holds is Holds.answers:
        micro = config.eval.micro or config.batch.micro or 1
        if micro > 1:
            yield f"eval.micro={micro // 2}"
        yield f"a smaller eval.max_new_tokens (now {config.eval.max_new_tokens})"
    if holds is Holds.activations:
        if config.batch.micro and config.batch.micro > 1:
            yield f"batch.micro={config.batch.micro // 2}"
        if not config.activation.checkpoint:
            yield "activation=checkpoint"


def _smaller_numbers(config: Config, holds: Holds) -> Iterator[str]:
    """Numbers of fewer bits, a method with fewer states, and shorter samples where their activations count."""
    method, stage = config.method, config.zero.stage
    training = holds in (Holds.states, Holds.activations)
    if config.precision.dtype is Dtype.fp32:
        yield "precision=bf16"
    if training and method.name is Method.full:
        yield "method=lora"
    if training and method.name is Method.freeze and (method.last_layers or 0) > 1:
        yield f"a smaller method.last_layers (now {method.last_layers})"
    if method.name is Method.lora and stage < 3 and holds is not Holds.answers:
        yield "method=qlora"
    if holds is Holds.activations:
        yield f"a smaller data.max_length (now {config.data.max_length})"
