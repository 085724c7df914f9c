"""The trained weights in the standard layout: ``export/`` loads in plain transformers or PEFT, without glmexp.

A P-tuning prefix, which neither knows, has the official names; ``glmexp.models.load_prefix`` puts it onto its model.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero import GatheredParameters
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glmexp.config.choices import Method
from glmexp.config.schema import Config
from glmexp.models import prefix
from glmexp.models.method import trainable_parameters
from glmexp.models.source import TINY, local_folder

LOGGER = logging.getLogger(__name__)

EXPORT = "export"
GATHERED_AT_ONCE = 50_000_000
"""Elements of partitioned parameters that are whole at one time."""
SPARE = 1.02
"""Headers, tokenizer and configuration on top of the weights."""


def save(
    engine: DeepSpeedEngine, tokenizer: PreTrainedTokenizerBase | None, config: Config, folder: Path, rank: int
) -> Path | None:
    """Writes ``FOLDER/export/`` in the compute dtype, whole or not at all; all ranks call it together, rank 0 writes.

    A model, trained whole or in part, is written with its native keys and config.json, LoRA and QLoRA as a PEFT adapter,
    P-tuning as its prefix alone. If the disk has no room for it, a warning says so and the run goes on to its end: the
    measurements stand.

    Returns:
        The export folder, on rank 0, or None.
    """
    model: PreTrainedModel = engine.module
    method = config.method.name
    only_trainable = method not in (Method.full, Method.freeze)
    if not _room(model, only_trainable, folder, rank):
        return None
    state = collect(model, only_trainable, keep=rank == 0)
    if rank != 0:
        return None
    count = len(state)  # save_pretrained empties the dict as it writes
    target, building = folder / EXPORT, folder / f".{EXPORT}.{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    try:
        if method in (Method.lora, Method.qlora):
            _write_adapter(model, state, config.model.path, building)
        elif method is Method.ptuning_v2:
            _write_prefix(state, config, building)
        else:
            _write_model(model, state, building)
        if tokenizer is not None:
            tokenizer.save_pretrained(building)
        for weights in building.glob("*.safetensors"):
            weights.chmod(0o644)  # safetensors writes for the owner alone, unlike the files beside it
        shutil.rmtree(target, ignore_errors=True)
        os.rename(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    LOGGER.info("weights written to %s (%d tensors)", target, count)
    return target


def collect(model: nn.Module, only_trainable: bool, keep: bool) -> dict[str, torch.Tensor]:
    """Name -> whole tensor on the host, on the ranks that ``keep``; partitioned ones are gathered a few at a time.

    ``save_pretrained`` at ZeRO stage 3 would write tensors of shape [0] without a word.
    """
    state: dict[str, torch.Tensor] = {}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad or not only_trainable]
    for group in _groups(named):
        partitioned = [p for _, p in group if hasattr(p, "ds_id")]
        with torch.no_grad(), GatheredParameters(partitioned, enabled=bool(partitioned)):
            if keep:
                state.update({name: p.detach().to("cpu", copy=True).contiguous() for name, p in group})
    empty = [name for name, tensor in state.items() if tensor.numel() == 0]
    if empty:
        raise ValueError(f"{len(empty)} tensors are empty after gathering, the first is {empty[0]}")
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


def _write_adapter(model: PreTrainedModel, state: dict[str, torch.Tensor], base: str, building: Path) -> None:
    """adapter_config.json, which names the base model, and adapter_model.safetensors."""
    for settings in model.peft_config.values():
        settings.base_model_name_or_path = _base_name(base)
        settings.target_modules = sorted(settings.target_modules)
    # "auto" would ask the hub whether the vocabulary was resized.
    model.save_pretrained(str(building), state_dict=state, save_embedding_layers=False)
    (building / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def _write_prefix(state: dict[str, torch.Tensor], config: Config, building: Path) -> None:
    """prefix_config.json, which names the base model, and the prefix encoder under the names of ChatGLM2's official code."""
    building.mkdir()
    official = {name.replace(prefix.SUBMODULE, prefix.OFFICIAL, 1): tensor for name, tensor in state.items()}
    save_file(official, building / prefix.FILE, metadata={"format": "pt"})
    settings = {
        "base_model_name_or_path": _base_name(config.model.path),
        "prefix_length": config.method.prefix_length,
        "prefix_projection": config.method.prefix_projection,
    }
    (building / prefix.SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _base_name(base: str) -> str:
    """The base model as an export names it: a hub id, or an absolute folder."""
    folder = local_folder(base)
    return base if folder is None or base == TINY else str(folder.absolute())


def _write_model(model: PreTrainedModel, state: dict[str, torch.Tensor], building: Path) -> None:
    """config.json and the weights under their native keys."""
    persistent = set(model.state_dict())
    state.update({name: buffer.detach().cpu() for name, buffer in model.named_buffers() if name in persistent})
    model.config.use_cache = True  # off for training only
    model.save_pretrained(str(building), state_dict=state)


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
