"""A run's trained model: the base model and the tuning method of its config, with what was trained put onto them."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import is_deepspeed_zero3_enabled

from glmexp.config.choices import Init, Method
from glmexp.config.errors import UserError, nearest
from glmexp.config.schema import Config
from glmexp.models import build_model, load_tokenizer, locate, prefix
from glmexp.models import method as methods
from glmexp.models.quantised import quantization
from glmexp.train.device import DTYPES
from glmexp.train.task import for_task
from glmexp.train.weights.layout import WHOLE_MODEL, adapter_names, is_adapter
from glmexp.trial import saved
from glmexp.trial.record import RESULT

Build = Callable[..., PreTrainedModel]
"""``build_model`` with what is the same for every base model."""

EXPORT = "export"
BEST, NEWEST = "best", "newest"
ADAPTER_FILE = "adapter_model.safetensors"


@dataclass(frozen=True)
class Source:
    """Where the trained weights are read from."""

    path: Path
    """``export/``, or a checkpoint's folder."""
    step: int | None
    """Optimizer steps behind a checkpoint; None for ``export/``, which says nothing of it."""

    @property
    def is_export(self) -> bool:
        return self.step is None

    def __str__(self) -> str:
        return EXPORT if self.step is None else f"checkpoint {self.path.name}"


def find_source(run: Path, chosen: str | None = None) -> Source:
    """The trained weights of a run: ``export``, ``best``, ``newest`` or a checkpoint's name such as ``step-000100``.

    None takes ``export/`` where there is one, else the best checkpoint, else the newest. Raises UserError: there is none such.
    """
    if chosen in (None, EXPORT) and (run / EXPORT).is_dir():
        return Source((run / EXPORT).absolute(), None)
    kept = saved.checkpoints(run)
    if chosen == EXPORT or not kept:
        raise UserError(_nothing(run, chosen, kept))
    best = saved.best(run)
    if chosen == BEST and best is None:
        raise UserError(
            f"checkpoint={BEST}: {run} kept no checkpoint for its score (checkpoint.best was not set)\n"
            f"take checkpoint={NEWEST}, or one of {', '.join(item.path.name for item in kept)}"
        )
    if chosen in (None, BEST) and best is not None:
        chosen = str(best["tag"])
    if chosen in (None, NEWEST):
        return Source(kept[-1].path, kept[-1].step)
    found = next((item for item in kept if item.path.name == chosen), None)
    if found is None:
        raise UserError(_nothing(run, chosen, kept))
    return Source(found.path, found.step)


def _nothing(run: Path, chosen: str | None, kept: list[saved.Saved]) -> str:
    names = [item.path.name for item in kept]
    if chosen is None:
        ended = _result(run).get("state")
        told = f": it ended as {ended}" if ended not in (None, "complete") else f": no {EXPORT}/ and no whole checkpoint"
        return (
            f"{run} holds no trained weights{told}\ntrain with checkpoint.every=N, or to its end with train.save_weights=true"
        )
    if chosen == EXPORT:
        there = f"; take checkpoint={NEWEST}" if names else ""
        return f"checkpoint={EXPORT}: {run} has no {EXPORT}/{there}\ntrain.save_weights=true writes it at the end of a run"
    if not names and (damaged := saved.folders(run)):
        return (
            f"checkpoint={chosen}: {run} holds no whole checkpoint\n{damaged[-1].name} is damaged: {saved.damage(damaged[-1])}"
        )
    if not names:
        return f"checkpoint={chosen}: {run} holds no whole checkpoint\ncheckpoint.every=N makes a run save one every N steps"
    broken = [path.name for path in saved.folders(run) if path.name == chosen]
    wrong = f"is damaged: {saved.damage(run / saved.FOLDER / chosen)}" if broken else "is not there"
    close = nearest(chosen, names)
    return f"checkpoint={chosen} {wrong}{f'; did you mean {close}?' if close else ''}\n{run} holds {', '.join(names)}"


def _result(run: Path) -> dict[str, Any]:
    """What ``result.json`` holds; empty where it cannot be read."""
    try:
        content = json.loads((run / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def load_trained(
    run: Path, config: Config, device: torch.device, source: Source | None = None, dtype: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The trained model of a run, in evaluation mode with the key-value cache on, and its tokenizer.

    With a live ``HfDeepSpeedConfig`` of stage 3 the weights come partitioned, as ``build_model`` gives them; then all ranks
    call this together, and rank 0 reads what was trained.

    Args:
        run: the run's folder.
        config: of the run, as saved; what is changed in it must leave model and method as they were.
        device: where the model shall be.
        source: from ``find_source``; None is its default.
        dtype: of the weights; None is the run's compute dtype, in which QLoRA's base is quantised again on a GPU. In a dtype
            that is given, and on the CPU, it is not.

    Raises:
        UserError: there are no trained weights, or they do not fit the base model, or that is not what it was.
    """
    source = source or find_source(run)
    return load_model_of(run, for_task(config), device, source, dtype), load_run_tokenizer(config, source)


def load_model_of(
    run: Path, config: Config, device: torch.device, source: Source, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """``load_trained`` without the tokenizer, which a run on synthetic data may lack; ``config`` as ``for_task`` gives it."""
    build = partial(
        build_model,
        dtype=dtype or DTYPES[config.precision.dtype],
        attention=config.kernels.attention.value,
        seed=config.train.seed,
    )
    if source.is_export and config.method.name in WHOLE_MODEL:
        whole = replace(config.model, path=str(source.path), init=Init.pretrained, revision=None, rope_style=None)
        model = build(whole, device=device)
    else:
        if dtype is None and device.type == "cuda":
            compute = DTYPES[config.precision.autocast_dtype or config.precision.dtype]
            build = partial(build, quantization=quantization(config.method, compute))
        model = methods.apply(_base_model(run, config, device, source, build), config.method)
        put(model, source, config)
    model.config.use_cache = True
    return model.eval()


def load_run_tokenizer(config: Config, source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer as in training: the exported one, which remembers its prompt format, else the base model's."""
    exported = (source.path / "tokenizer_config.json").is_file()
    return load_tokenizer(source.path if exported else locate(for_task(config).model), config.model.template)


def _base_model(run: Path, config: Config, device: torch.device, source: Source, build: Build) -> PreTrainedModel:
    """The model as it was before training.

    Weights drawn from train.seed differ between a CPU and a GPU, whose generators differ, so they are drawn where the run drew
    them; when every one of them is replaced by a checkpoint's, that does not matter.
    """
    if config.model.init is not Init.random or (config.method.name is Method.full and not source.is_export):
        return build(config.model, device=device)
    drawn_on = torch.device(_device_kind(run, config) or device.type)
    if drawn_on.type == device.type:
        return build(config.model, device=device)
    if (drawn_on.type == "cuda" and not torch.cuda.is_available()) or is_deepspeed_zero3_enabled():
        kinds = ("on a GPU", "a CPU") if drawn_on.type == "cuda" else ("on a CPU", "a GPU")
        merged = "; there `export RUN merge=true` writes a model that works anywhere"
        raise UserError(
            f"model.init=random: the frozen weights of {run} were drawn {kinds[0]}, and {kinds[1]} draws others\n"
            f"use the run where it was trained{merged if is_adapter(config.method.name) else ''}"
        )
    return build(config.model, device=drawn_on).to(device)


def _device_kind(run: Path, config: Config) -> str | None:
    """``cpu`` or ``cuda``: what the run's ranks computed on, as its result or its config says; None if neither does."""
    device = _result(run).get("device")
    kind = device.get("kind") if isinstance(device, dict) else config.launch.device.value
    return {"cpu": "cpu", "gpu": "cuda"}.get(str(kind))


def put(model: PreTrainedModel, source: Source, config: Config) -> None:
    """Copies what was trained onto ``model``, which has its tuning method applied. Raises UserError where it does not fit."""
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    partitioned = any(hasattr(parameter, "ds_id") for parameter in wanted.values())
    reads = not partitioned or torch.distributed.get_rank() == 0
    state = _read(model, source, config) if reads else {}
    if reads:
        _compare(wanted, state, source)
    for name, parameter in wanted.items():
        with torch.no_grad(), _whole(parameter):
            if reads:
                parameter.copy_(state.pop(name))


def _whole(parameter: nn.Parameter) -> AbstractContextManager[None]:
    """Gathers a partitioned parameter; on leaving, rank 0's values go to every rank."""
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters  # takes seconds to import, and answers need it seldom

    gathered: AbstractContextManager[None] = GatheredParameters([parameter], modifier_rank=0)
    return gathered


def put_best(model: PreTrainedModel, run: Path, config: Config, last: int) -> str | None:
    """Puts the weights of the best checkpoint onto the model of the run itself; all ranks call it, and rank 0 decides.

    Returns:
        What was done, for the user; None where the best weights are those after step ``last``, which are there already.
    """
    told: list[Any] = [saved.best(run) if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(told, src=0)
    best = told[0]
    if best is None or best["step"] == last:
        return None
    put(model, Source((run / saved.FOLDER / best["tag"]).absolute(), best["step"]), config)
    return f"{EXPORT}/ holds the weights after step {best['step']}, the best by {best['score']} ({best['value']:.4g})"


def _compare(wanted: dict[str, nn.Parameter], state: dict[str, torch.Tensor], source: Source) -> None:
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        name = (missing or unknown)[0]
        said = "lacks" if missing else "holds"
        more = len(missing or unknown) - 1
        raise UserError(
            f"{source.path} {said} {name}{f' and {more} more tensors' if more else ''}, which its config.yaml "
            f"{'asks for' if missing else 'does not ask for'}\nuse the run with the config.yaml that it was trained with"
        )
    for name, parameter in wanted.items():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if tuple(state[name].shape) != shape:
            raise UserError(
                f"{source.path}: {name} has shape {list(state[name].shape)}, and the base model needs {list(shape)}\n"
                "the model at model.path is not the one that was trained"
            )


def _read(model: PreTrainedModel, source: Source, config: Config) -> dict[str, torch.Tensor]:
    """What was trained, by its names in ``model``; whole tensors on the host."""
    if not source.is_export:
        from glmexp.train.checkpoint.files import trained_weights

        return trained_weights(source.path)
    if config.method.name is Method.ptuning_v2:
        content = _tensors(source.path / prefix.FILE)
        return {name.replace(prefix.OFFICIAL, prefix.SUBMODULE, 1): tensor for name, tensor in content.items()}
    content = _tensors(source.path / ADAPTER_FILE)
    names = adapter_names(model)
    return {names.get(name, name): tensor for name, tensor in content.items()}


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{file} cannot be read: {error}\nwrite it again: python -m glmexp export RUN checkpoint=..."
        ) from error
