"""Where the trained parameters lie in the optimizer's own tensors, in the same words for every ZeRO stage.

DeepSpeed's optimizers work on flat fp32 tensors: at stage 0 one a parameter or a group, at stages 1 and 2 this rank's part of
each group laid end to end, at stage 3 this rank's part of every parameter, sub-group by sub-group. The moments lie as the
master weights do. A checkpoint holds this layout beside the tensors, so that whoever reads it need not know how it was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from torch import nn

from glmexp.train.engine import zero_stage


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a parameter, flattened, from ``at`` on in an optimizer's tensor."""

    name: str
    start: int
    stop: int
    at: int


@dataclass(frozen=True)
class Flat:
    """One tensor that the optimizer updates, with what it holds on this rank."""

    master: torch.Tensor
    """The master weights, fp32 unless the configuration wants bf16; of any shape at stage 0, else flat with padding."""
    pieces: list[Piece]


def trained(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name -> whole shape of each parameter that is trained."""
    return {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def layout(engine: DeepSpeedEngine) -> list[Flat]:
    """This rank's tensors, in the order in which the optimizer's ``state_dict`` counts them."""
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    stage = zero_stage(engine)
    if stage == 3:
        return list(_partitioned_parameters(engine.optimizer, names))
    return list(_partitioned_groups(engine.optimizer, names) if stage else _unpartitioned(engine.optimizer, names))


def _unpartitioned(optimizer: Any, names: dict[int, str]) -> Iterator[Flat]:
    """Stage 0: torch's own optimizer in fp32, DeepSpeed's FP16_UnfusedOptimizer or FP16_Optimizer in bf16."""
    if hasattr(optimizer, "fp32_groups_flat"):
        for master, group in zip(optimizer.fp32_groups_flat, optimizer.fp16_groups, strict=True):
            yield Flat(master, list(_end_to_end(group, names)))
        return
    trained = list(chain.from_iterable(getattr(optimizer, "fp16_groups", None) or _groups(optimizer)))
    masters = list(chain.from_iterable(getattr(optimizer, "fp32_groups", None) or _groups(optimizer)))
    for master, parameter in zip(masters, trained, strict=True):
        yield Flat(master, list(_end_to_end([parameter], names)))


def _groups(optimizer: Any) -> list[list[nn.Parameter]]:
    return [group["params"] for group in optimizer.param_groups]


def _end_to_end(group: list[nn.Parameter], names: dict[int, str]) -> Iterator[Piece]:
    at = 0
    for parameter in group:
        yield Piece(names[id(parameter)], 0, parameter.numel(), at)
        at += parameter.numel()


def _partitioned_groups(optimizer: Any, names: dict[int, str]) -> Iterator[Flat]:
    """Stages 1 and 2; stage 1 with gradients in fp32 has a class of its own, BF16_Optimizer."""
    groups = optimizer.bf16_groups if hasattr(optimizer, "bf16_groups") else optimizer.bit16_groups
    for group, parameters in zip(optimizer.optimizer.param_groups, groups, strict=True):
        pieces = []
        for parameter in parameters:
            mapping = parameter._hp_mapping
            if mapping is not None:  # this rank has a part of it
                lies, part = mapping.hp_fragment_address, mapping.lp_fragment_address
                pieces.append(Piece(names[id(parameter)], part.start, part.start + part.numel, lies.start))
        yield Flat(group["params"][0], pieces)


def _partitioned_parameters(optimizer: Any, names: dict[int, str]) -> Iterator[Flat]:
    """Stage 3: each parameter is cut into as many equal parts as there are ranks, the last of them padded."""
    for master, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
        pieces, at = [], 0
        for parameter in parameters:
            size = parameter.partition_numel()
            start = size * optimizer._get_param_partition_rank(parameter)
            stop = min(start + size, parameter.ds_numel)
            if start < stop:
                pieces.append(Piece(names[id(parameter)], start, stop, at))
            at += size
        yield Flat(master, pieces)
