"""An export: a folder that is filled under another name, checked, and put in its place whole."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.models.prompts import prompts_for
from glmexp.train.weights.card import card, is_export
from glmexp.train.weights.layout import State, is_adapter, write_adapter, write_model, write_prefix
from glmexp.trial.orphan import abandoned

SPARE = 1.02
"""What headers, tokenizer and configuration take on top of the weights."""


def write_standard(
    model: PreTrainedModel,
    state: State,
    tokenizer: PreTrainedTokenizerBase | None,
    config: Config,
    run: Path,
    step: int | None,
    folder: Path,
) -> None:
    """Fills a new folder with what plain transformers or PEFT load: a model, an adapter or (for glmexp) a prefix.

    Args:
        state: what was trained, or the whole model, by names in ``model``; emptied meanwhile.
        run: the run's folder, for the model card.
        step: optimizer steps behind the weights; None is the run's last.
    """
    if is_adapter(config.method.name) and hasattr(model, "peft_config"):
        layout = "adapter"
        write_adapter(model, state, config.model.path, folder)
    elif hasattr(model, "prefix_encoder"):
        layout = "prefix"
        write_prefix(state, config, folder)
    else:
        layout = "model"
        write_model(model, state, tokenizer, folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    write_card(config, run, layout, tokenizer, step, folder)


def write_card(
    config: Config, run: Path, layout: str, tokenizer: PreTrainedTokenizerBase | None, step: int | None, folder: Path
) -> None:
    """``README.md``, see ``card``."""
    template = None if tokenizer is None else prompts_for(tokenizer).template
    (folder / "README.md").write_text(card(config, run, layout, template, step), encoding="utf-8")


def publish(target: Path, fill: Callable[[Path], None]) -> None:
    """Lets ``fill`` make a folder and puts it at ``target``, whole or not at all; what was there before is replaced.

    A link stays one, and what it leads to is replaced.
    """
    target = target.resolve()
    clear(target)
    building, old = (target.with_name(f".{target.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    shutil.rmtree(building, ignore_errors=True)
    try:
        fill(building)
        for weights in building.glob("*.safetensors"):
            weights.chmod(0o644)  # safetensors writes for the owner alone, unlike the files beside it
        if target.exists():
            os.rename(target, old)
        os.rename(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def clear(target: Path) -> None:
    """Removes what exports to ``target`` that were killed left beside it, as large as the export."""
    for path in abandoned(target.parent, rf"\.{re.escape(target.name)}\.(\d+)(\.old)?"):
        if target.exists() or path.suffix != ".old":
            shutil.rmtree(path, ignore_errors=True)


def refuse_foreign(target: Path) -> None:
    """Raises UserError if ``target`` is there and is neither empty nor an export."""
    if target.is_dir() and (is_export(target) or not any(target.iterdir())):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} is there and is no export of glmexp's\nremove it, or name another folder with to=DIR")
