"""The ``export`` verb's child: ``python -m glmexp.train.export FOLDER`` writes a run's trained weights in another form."""

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import PreTrainedModel

from glmexp.config.choices import Dtype, Init, Method, Source
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.models import describe
from glmexp.models.load import stored_state
from glmexp.train.child import answer, device, note
from glmexp.train.device import DTYPES
from glmexp.train.task import for_task
from glmexp.train.weights.exported import SPARE, clear, publish, refuse_foreign, write_card, write_standard
from glmexp.train.weights.layout import (
    WHOLE_MODEL,
    State,
    elements,
    is_adapter,
    original_base,
    write_original,
    write_original_prefix,
)
from glmexp.train.weights.trained import Source as Weights
from glmexp.train.weights.trained import find_source, load_model_of, load_run_tokenizer

CPU = torch.device("cpu")


def export(config: Config, request: dict[str, Any], out: TextIO) -> None:
    """Writes the form that is asked for and tells where. Raises UserError: there is nothing to write, or no such form."""
    device(config.launch.device)
    config = for_task(config)
    run, target = Path(request["run"]), Path(request["to"])
    merge, original = bool(request["merge"]), bool(request["original"])
    refuse_form(config, merge, original)
    base = original_base(config) if original else None
    source = find_source(run, request["checkpoint"])
    if source.is_export and source.path == target:
        print(f"{target} is there already, and whole: {_counted(target)}", file=out)
        return
    refuse_foreign(target)
    dtype = DTYPES[Dtype(request["dtype"])] if request["dtype"] else DTYPES[config.precision.dtype]
    model, state = trained_state(run, config, source, merge, dtype)
    if is_base(state, config):
        warn_of_nothing()
    clear(target.resolve())
    _refuse_full(target, state)
    count = len(state)
    # A run on synthetic data may have a model without a tokenizer.
    tokenizer = None if config.data.source is Source.synthetic else load_run_tokenizer(config, source)
    if base is None:
        publish(target, partial(_standard, model, state, tokenizer, config, run, source.step))
    else:
        publish(target, partial(_original, state, base, tokenizer, config, run, source.step))
    print(f"wrote {target}: {_tensors(count)}, {str(dtype).removeprefix('torch.')}, from {source}", file=out)


def refuse_form(config: Config, merge: bool, original: bool) -> None:
    """Raises UserError for a form that the method does not have."""
    method = config.method.name
    if merge and not is_adapter(method):
        why = "a prefix is no part of any weight" if method is Method.ptuning_v2 else "it has no adapter"
        raise UserError(f"merge=true has no effect with method={method.value}: {why}\nleave merge out")
    if original and is_adapter(method) and not merge:
        raise UserError("layout=original: the original ChatGLM code knows no adapter\nadd merge=true")


def trained_state(run: Path, config: Config, source: Weights, merge: bool, dtype: torch.dtype) -> tuple[PreTrainedModel, State]:
    """The model on the host, and what is written of it in ``dtype``, by name: all of it, or what was trained alone.

    An adapter is merged in fp32, so that its update is rounded once.
    """
    model = load_model_of(run, config, CPU, source, torch.float32 if merge else dtype)
    updates = [parameter for name, parameter in model.named_parameters() if "lora_B" in name]
    if updates and not any(parameter.any() for parameter in updates):
        warn_of_nothing()
    if merge:
        model = model.merge_and_unload()
    whole = merge or config.method.name in WHOLE_MODEL
    named = [(name, p) for name, p in model.named_parameters() if whole or p.requires_grad]
    return model, {name: parameter.detach().to(dtype).contiguous() for name, parameter in named}


def _standard(model: Any, state: State, tokenizer: Any, config: Config, run: Path, step: int | None, folder: Path) -> None:
    write_standard(model, state, tokenizer, config, run, step, folder)


def _original(state: State, base: Any, tokenizer: Any, config: Config, run: Path, step: int | None, folder: Path) -> None:
    if config.method.name is Method.ptuning_v2:
        write_original_prefix(state, base, config.method, folder)
        write_card(config, run, "original_prefix", tokenizer, step, folder)
    else:
        write_original(state, base, folder)
        write_card(config, run, "original", tokenizer, step, folder)
        note("the code of the original release (modeling_chatglm.py and so on) is not copied: take it from its repository")


def is_base(state: State, config: Config) -> bool:
    """Whether a whole model is its pretrained base to the bit; stops at the first tensor that is not."""
    if config.method.name not in WHOLE_MODEL or config.model.init is Init.random:
        return False
    base = stored_state(describe(config.model))
    return all(name in state and torch.equal(tensor.to(state[name].dtype), state[name]) for name, tensor in base.items())


def warn_of_nothing() -> None:
    print(
        "warning: training has changed nothing: these weights answer as the base model does\n"
        "was optimizer.lr too small, or did the run end before its first update?",
        file=sys.stderr,
    )


def _refuse_full(target: Path, state: State) -> None:
    """Raises UserError if the disk has no room."""
    needed = int(elements(state) * next(iter(state.values())).element_size() * SPARE)
    there = next(folder for folder in (target, *target.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f"{target}: the disk has {free / 2**30:.2f} GiB free, and the weights need {needed / 2**30:.2f} GiB\n"
            "free some room, or name a folder on another disk with to=DIR"
        )


def _counted(folder: Path) -> str:
    """The tensors of an export that is there. Raises UserError for one that is damaged."""
    from glmexp.train.weights.layout import headers

    found = headers(folder)
    if not found:
        raise UserError(f"{folder} holds no weights\nremove it and export from a checkpoint: checkpoint=newest")
    return _tensors(len(found))


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' if count != 1 else ''}"


if __name__ == "__main__":
    sys.exit(answer(Path(sys.argv[1]), export))
