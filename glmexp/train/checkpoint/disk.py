"""Whether the disk has room for what a run will write, from the model's shape alone and before any weights are read."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers.initialization import no_init_weights

from glmexp.config.checkpoint import resumes_itself
from glmexp.config.choices import Dtype, Method, OptimizerType
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.models import describe
from glmexp.models.initialisation import from_config
from glmexp.models.method import apply
from glmexp.train.weights.layout import WHOLE_MODEL
from glmexp.trial import saved

SPARE, HEADERS = 1.02, 100_000
"""Names, tokenizer and configuration on top of the tensors: a share of them, and bytes."""
NOT_MUONS = ("embed", "lm_head")
"""DeepSpeed trains these by Muon's second half, an AdamW, whatever their shape (runtime/engine.py, set_optimizer_flags)."""


@dataclass(frozen=True)
class Size:
    """Parameters of a model with its tuning method."""

    total: int
    trained: int
    by_muon: int
    """Of these the ones that Muon trains: it keeps one number for each, Adam two."""


def size_of(config: Config) -> Size:
    """Counted on the meta device, where a model costs nothing."""
    method = config.method
    if method.name is Method.qlora:  # what it trains is LoRA's
        method = replace(method, name=Method.lora, quant_type=None, double_quant=None)
    with torch.device("meta"), no_init_weights():
        model = apply(from_config(describe(config.model).config, torch.bfloat16, "eager"), method)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    by_muon = 0
    if config.optimizer.type is OptimizerType.Muon:
        matrices = [name for name, parameter in trained.items() if parameter.ndim >= 2]
        by_muon = sum(trained[name].numel() for name in matrices if not any(word in name.lower() for word in NOT_MUONS))
    return Size(sum(p.numel() for p in model.parameters()), sum(p.numel() for p in trained.values()), by_muon)


def checkpoint_bytes(config: Config, size: Size) -> int:
    """One checkpoint: master weights and moments; below stage 3 the compute weights too, unless they are the same."""
    precision, stage = config.precision, config.zero.stage
    compute = 4 if precision.dtype is Dtype.fp32 else 2
    master = 2 if precision.bf16_master_weights_and_grads else 4
    moment = 2 if precision.bf16_optimizer_states else 4
    twice = stage in (1, 2) or (stage == 0 and compute == 2)
    momentum = compute if stage in (1, 2) else moment
    kept = size.by_muon * momentum + (size.trained - size.by_muon) * 2 * moment
    return HEADERS + int(SPARE * (size.trained * (master + (compute if twice else 0)) + kept))


def export_bytes(config: Config, size: Size) -> int:
    """``export/`` in the compute dtype: the whole model, or what was trained beside it."""
    count = size.total if config.method.name in WHOLE_MODEL else size.trained
    return int(SPARE * count * (4 if config.precision.dtype is Dtype.fp32 else 2))


def most_checkpoints(config: Config, steps: int) -> int:
    """Checkpoints on the disk at one time: those kept, the best, and the new one until it is whole."""
    checkpoint = config.checkpoint
    saves = steps // checkpoint.every if checkpoint.every else 0
    saves += int(config.train.stop_after is not None or resumes_itself(config))
    if checkpoint.best is not None:
        saves += steps // (config.eval.every or steps) + 1
    return min(saves, checkpoint.keep + 1 + int(checkpoint.best is not None))


def check_room(config: Config, folder: Path, steps: int) -> None:
    """Raises UserError where the disk of the run's folder has less room than a run of ``steps`` will need."""
    count = most_checkpoints(config, steps)
    if not count and not config.train.save_weights:
        return
    size = size_of(config)
    checkpoints = count * checkpoint_bytes(config, size)
    there = sum(sum(item.state["files"].values()) for item in saved.checkpoints(folder))
    export = export_bytes(config, size) if config.train.save_weights else 0
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    needed = max(checkpoints - there, 0) + export
    if free >= needed:
        return
    parts = [f"{count} checkpoints at once need {checkpoints / 1e9:.3g} GB"] if count else []
    parts += [f"the export needs {export / 1e9:.3g} GB"] if export else []
    ways = [f"a smaller checkpoint.keep (now {config.checkpoint.keep})"] if count and config.checkpoint.keep > 1 else []
    ways += ["train.save_weights=false"] if export else []
    raise UserError(
        f"{folder} has {free / 1e9:.3g} GB free and the run will write {needed / 1e9:.3g} GB: {', '.join(parts)}\n"
        f"try {', '.join([*ways, 'hydra.run.dir on a larger disk'])}"
    )
