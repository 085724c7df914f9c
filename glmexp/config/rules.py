"""Rules that a configuration must keep: ranges of single values, then rules across fields.

``check_values`` needs only the values, so a saved configuration is checked again when it is loaded. ``check_sources`` needs to
know who set a value and runs where something was composed. Neither changes anything.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MultipleOf

from glmexp.config import checkpoint, data, evaluation, machinery, measure, method, offload, rows, tracker
from glmexp.config.choices import ROPE_STYLES, TEMPLATES, Dtype, Language, Task
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel
from glmexp.config.zero import STAGES

MOST_LINES = 5


def check_values(config: Config) -> None:
    """Raises UserError with every broken rule about values, one a line."""
    # Rules across fields take values in range for granted.
    problems = list(out_of_range(config)) or list(contradictions(config))
    if problems:
        raise UserError("\n".join(problems[:MOST_LINES]))


def check_sources(config: Config, sources: Mapping[str, str]) -> None:
    """Raises UserError for a value that was asked for on the command line and would have no effect."""
    checkpoint.check_sources(config, sources)
    steps = config.train.max_steps
    if config.task is not Task.measure and steps is not None and sources.get("train.epochs", "").startswith("command line"):
        raise UserError(
            f"train.epochs={config.train.epochs:g} has no effect with train.max_steps={steps}, which ends the run\n"
            "add train.max_steps=null, or leave train.epochs out"
        )
    if config.precision.dtype is not Dtype.fp16:
        asked = [key for key, source in sources.items() if key.startswith("scaler.") and source.startswith("command line")]
        if asked:
            raise UserError(
                f"{asked[0]} is the fp16 loss scaler's and has no effect with precision={_precision_option(config)}\n"
                "add precision=fp16, or leave the scaler out"
            )


def _precision_option(config: Config) -> str:
    return "autocast" if config.precision.autocast_dtype is not None else config.precision.dtype.value


def warnings(config: Config, sources: Mapping[str, str] | None = None) -> list[str]:
    """What is likely not what was meant, one line each; with ``sources`` also what was set and has no effect on the task."""
    found = list(measure.without_effect(config, sources or {}))
    recommended = [dtype.value for dtype in config.model.recommended_precisions]
    dtype = config.precision.dtype
    if recommended and dtype is not Dtype.fp32 and dtype.value not in recommended:
        found.append(
            f"precision={dtype.value}: {config.model.path} was trained in {' or '.join(recommended)} and may "
            f"overflow or lose accuracy in {dtype.value}; use precision={recommended[0]}"
        )
    if config.task is not Task.measure:  # it learns nothing that is kept
        found += method.warnings(config)
    if config.lang is not Language.en:
        found.append(
            f"lang={config.lang.value} has no effect on {config.task.value}: it is that of explain and of a sweep's report"
        )
    if config.hardware.gpu_memory_gib is not None and not config.hardware.emulate:
        found.append(f"hardware={config.hardware.name} has no effect on a run without hardware.emulate=true")
    return [
        *found,
        *data.warnings(config),
        *rows.warnings(config),
        *machinery.warnings(config),
        *checkpoint.warnings(config),
        *evaluation.warnings(config, sources or {}),
    ]


def without_sweep(sources: Mapping[str, str]) -> list[str]:
    """What was set on the command line and has no effect on a single run: at most one line."""
    asked = [key for key, source in sources.items() if key.startswith("sweep.") and source.startswith("command line")]
    if not asked:
        return []
    listed = " and ".join([*([", ".join(asked[:-1])] if asked[1:] else []), asked[-1]])
    return [f"{listed} {'have' if asked[1:] else 'has'} no effect without --multirun"]


def out_of_range(node: Any, prefix: str = "") -> Iterator[str]:
    """Values outside the range that the schema gives them."""
    for name, kind in get_type_hints(type(node), include_extras=True).items():
        value, key = getattr(node, name), f"{prefix}{name}"
        if is_dataclass(value):
            yield from out_of_range(value, f"{key}.")
        elif get_origin(kind) is Annotated and value is not None:
            limits = kind.__metadata__
            if not all(_within(value, limit) for limit in limits):
                yield f"{key}={value}: must be {' and '.join(_words(limit) for limit in limits)}"


def _within(value: float, limit: Any) -> bool:
    if value != value or value in (float("inf"), float("-inf")):
        return False
    if isinstance(limit, Ge):
        return bool(value >= limit.ge)  # type: ignore[operator]
    if isinstance(limit, Gt):
        return bool(value > limit.gt)  # type: ignore[operator]
    if isinstance(limit, Le):
        return bool(value <= limit.le)  # type: ignore[operator]
    if isinstance(limit, Lt):
        return bool(value < limit.lt)  # type: ignore[operator]
    assert isinstance(limit, MultipleOf)
    return bool(value % limit.multiple_of == 0)  # type: ignore[operator]


def _words(limit: Any) -> str:
    if isinstance(limit, Ge):
        return f"at least {limit.ge}"
    if isinstance(limit, Gt):
        return f"greater than {limit.gt}"
    if isinstance(limit, Le):
        return f"at most {limit.le}"
    if isinstance(limit, Lt):
        return f"less than {limit.lt}"
    return "a whole number"


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields."""
    yield from _zero(config)
    yield from offload.contradictions(config)
    yield from machinery.contradictions(config)
    yield from measure.contradictions(config)
    yield from _precision(config)
    yield from method.contradictions(config)
    yield from data.contradictions(config)
    yield from rows.contradictions(config)
    yield from _inputs(config)
    yield from _optimizer(config)
    yield from sequence_parallel(config)
    yield from checkpoint.contradictions(config)
    yield from evaluation.contradictions(config)
    yield from tracker.contradictions(config.tracker)
    if config.hardware.emulate and config.hardware.gpu_memory_gib is None:
        yield "hardware.emulate=true needs a card to emulate: hardware=rtx4090, or hardware.gpu_memory_gib=24"


def _zero(config: Config) -> Iterator[str]:
    zero = config.zero
    for key, stages in STAGES.items():
        value = getattr(zero, key)
        if value is not None and zero.stage not in stages:
            wanted = " or ".join(f"zero=stage{stage}" for stage in stages)
            yield f"zero.{key} has no effect at stage {zero.stage}: it needs {wanted}"
    if zero.allgather_bucket_size is not None and zero.allgather_bucket_size % 2:
        yield f"zero.allgather_bucket_size={zero.allgather_bucket_size:.0f}: must be even"


def _precision(config: Config) -> Iterator[str]:
    dtype, accum, stage = config.precision.dtype, config.precision.grad_accum_dtype, config.zero.stage
    if dtype is Dtype.fp16 and stage == 0:
        # DeepSpeed 0.19.8 scales the loss for ZeRO optimizers alone, but divides the gradients by the scale at stage 0 too.
        yield "precision=fp16 is scaled wrongly by DeepSpeed at zero=stage0; use zero=stage1, also on one rank"
    if accum is not None and accum not in (dtype, Dtype.fp32):
        yield f"precision.grad_accum_dtype={accum.value} must be {dtype.value} or fp32 with precision={dtype.value}"
    if accum is not None and accum is not dtype and stage == 0:
        yield f"precision.grad_accum_dtype={accum.value} needs zero=stage1, stage2 or stage3, got stage0"
    scaler = config.scaler
    if scaler.loss_scale > 0:
        for field in ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
            if getattr(scaler, field) is not None:
                yield f"scaler.{field} has no effect with a static scale ({scaler.loss_scale:g}); use scaler=dynamic"
    elif scaler.initial_scale_power is not None and (scaler.min_loss_scale or 1) > 2**scaler.initial_scale_power:
        yield (
            f"scaler.min_loss_scale={scaler.min_loss_scale} is above the initial scale "
            f"2^{scaler.initial_scale_power}: the first overflow would raise the scale"
        )


def _inputs(config: Config) -> Iterator[str]:
    for field, known in (("template", TEMPLATES), ("rope_style", ROPE_STYLES)):
        value = getattr(config.model, field)
        if value is not None and value not in known:
            yield f"model.{field}={value}: must be one of {', '.join(known)}, or null to read it from the folder"
    if not config.model.path.strip():
        yield "model.path is empty: give a folder with config.json and weights, or a hub id"


def _optimizer(config: Config) -> Iterator[str]:
    betas = config.optimizer.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        yield f"optimizer.betas={betas}: must be two numbers from 0 up to but not including 1"
