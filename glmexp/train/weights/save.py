"""The end of a run: what was trained, gathered from all ranks, into ``export/``."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero import GatheredParameters
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glmexp.config.schema import Config
from glmexp.models.method import trainable_parameters
from glmexp.train.weights.exported import SPARE, publish, write_standard
from glmexp.train.weights.layout import WHOLE_MODEL, State
from glmexp.train.weights.trained import EXPORT
from glmexp.trial import saved

LOGGER = logging.getLogger(__name__)

GATHERED_AT_ONCE = 50_000_000
"""Elements of partitioned parameters that are whole at one time."""


def save(
    engine: DeepSpeedEngine, tokenizer: PreTrainedTokenizerBase | None, config: Config, folder: Path, rank: int
) -> Path | None:
    """Writes ``FOLDER/export/`` in the compute dtype, whole or not at all; all ranks call it together, rank 0 writes.

    If the disk has no room for them, a warning says so and the run goes on to its end: the measurements stand. With
    ``checkpoint.best`` the model holds the best weights by now (``trained.put_best``).

    Returns:
        The export folder, on rank 0, or None.
    """
    model: PreTrainedModel = engine.module
    only_trainable = config.method.name not in WHOLE_MODEL
    if not _room(model, only_trainable, folder, rank):
        return None
    state = collect(model, only_trainable, keep=rank == 0)
    if rank != 0:
        return None
    best = None if config.checkpoint.best is None else saved.best(folder)
    step = None if best is None else int(best["step"])  # for the model card
    count = len(state)
    target = folder / EXPORT
    publish(target, lambda building: write_standard(model, state, tokenizer, config, folder, step, building))
    LOGGER.info("weights written to %s (%d tensors)", target, count)
    return target


def collect(model: nn.Module, only_trainable: bool, keep: bool) -> State:
    """Name -> whole tensor on the host, on the ranks that ``keep``; partitioned ones are gathered a few at a time.

    ``save_pretrained`` at ZeRO stage 3 would write tensors of shape [0] without a word.
    """
    state: State = {}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad or not only_trainable]
    for group in _groups(named):
        partitioned = [p for _, p in group if hasattr(p, "ds_id")]
        with torch.no_grad(), GatheredParameters(partitioned, enabled=bool(partitioned)):
            if keep:
                state.update({name: p.detach().to("cpu", copy=True).contiguous() for name, p in group})
    return state


def _groups(named: list[tuple[str, nn.Parameter]]) -> Iterator[list[tuple[str, nn.Parameter]]]:
    group: list[tuple[str, nn.Parameter]] = []
    size = 0
    for name, parameter in named:
        count = int(getattr(parameter, "ds_numel", parameter.numel()))
        if group and size + count > GATHERED_AT_ONCE:
            yield group
            group, size = [], 0
        group.append((name, parameter))
        size += count
    if group:
        yield group


def _room(model: PreTrainedModel, only_trainable: bool, folder: Path, rank: int) -> bool:
    """Whether the disk has room, as rank 0 sees it; every rank gets the same answer, since gathering takes all of them."""
    trainable, total = trainable_parameters(model)
    count = trainable if only_trainable else total
    needed = int(count * next(model.parameters()).element_size() * SPARE)
    free = shutil.disk_usage(folder).free if rank == 0 else 0
    answer = torch.tensor([1 if free >= needed else 0], device=model_device(model))
    torch.distributed.broadcast(answer, src=0)
    enough = bool(answer.item())
    if not enough and rank == 0:
        LOGGER.warning(
            "the weights were not written: %s has %.2f GiB free and they need %.2f GiB; free some room and train again, "
            "or set train.save_weights=false",
            folder,
            free / 2**30,
            needed / 2**30,
        )
    return enough


def model_device(model: nn.Module) -> torch.device:
    """The device that collectives of this rank run on."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
    )
