"""A DeepSpeed config of any project as the overrides that reproduce it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmexp.config.files import leaves
from glmexp.dsconfig.convert.groups import batch, clipping, communication, kernels
from glmexp.dsconfig.convert.optimizer import optimizer, scheduler
from glmexp.dsconfig.convert.options import override
from glmexp.dsconfig.convert.precision import precision
from glmexp.dsconfig.convert.reader import AUTO, Reader
from glmexp.dsconfig.convert.zero import HIDDEN_SIZE_RULES, OPTIMIZER, ZERO, offload, zero
from glmexp.dsconfig.passthrough import place
from glmexp.dsconfig.raw import OWNED, unheeded

SCHEDULE = {
    "scheduler.params.total_num_steps": "train.max_steps or train.epochs",
    "scheduler.params.warmup_num_steps": "scheduler.warmup_steps",
    "scheduler.params.warmup_max_lr": "optimizer.lr",
}
"""Parameters of a schedule -> what stands for them in glmexp, which gives DeepSpeed none."""


@dataclass(frozen=True)
class Known:
    """What the composed config says where a file says "auto"; None is unknown."""

    hidden_size: int | None = None
    """Of the model."""
    dtype: str | None = None
    """``precision.dtype``: bf16, fp16 or fp32."""


@dataclass(frozen=True)
class Converted:
    overrides: list[str]
    notes: list[str]
    """What could not be said in overrides, or is said otherwise than one may think; one line each."""
    auto: frozenset[str] = frozenset()
    """DeepSpeed keys that are "auto"."""


def convert(config: Mapping[str, Any], known: Known | None = None) -> Converted:
    """The overrides that reproduce a DeepSpeed config without retired keys and without errors (``lint``).

    What the file leaves out is what DeepSpeed 0.19 takes for it, so that an option of another mind is corrected; "auto" is left
    to the composed config. Raises UserError for what glmexp cannot run.
    """
    known = known or Known()
    reader = Reader(config)
    stage = _stage(reader)
    zero_group, offload_group = zero(reader, stage, known.hidden_size), offload(reader)
    precision_group, dtype = precision(reader, known.dtype)
    scheduler_group, peak = scheduler(reader)
    overrides = [
        *zero_group,
        *offload_group,
        *precision_group,
        *batch(reader),
        *clipping(reader),
        *optimizer(reader, peak, OPTIMIZER in reader.emitted),
        *scheduler_group,
        *communication(reader, dtype or known.dtype),
        *kernels(reader),
        *_rest(reader),
    ]
    notes = [*_about_auto(reader.auto, stage, known.hidden_size), *reader.notes]
    return Converted(overrides, notes, frozenset(reader.auto))


def _stage(reader: Reader) -> int:
    stage = reader.take(f"{ZERO}.stage", int)
    if f"{ZERO}.stage" not in reader.auto:
        return stage or 0
    reader.auto.remove(f"{ZERO}.stage")
    reader.notes.append(f"{ZERO}.stage is auto: zero=stage2, as accelerate fills it")
    return 2


def _rest(reader: Reader) -> list[str]:
    """What has no field, as raw keys, except for what glmexp's worker would not honour: that is noted."""
    unheard = dict(unheeded(reader.left, {}))
    for key in OWNED:
        if key not in reader.emitted:
            reader.notes += [f"{key} is left out: {unheard[key]}"] if key in unheard else []
            reader.drop(key)
    overrides = []
    for key, value in leaves(reader.left):
        if value == AUTO:  # only where it is DeepSpeed's own word for what it does anyway
            reader.notes.append(f"{key} is auto, which is what DeepSpeed does when it is left out")
        elif value != {}:  # an empty section asks for nothing
            overrides.append(override(f"++deepspeed.{key}", value))  # ++: an experiment may have set it
    return overrides


def _about_auto(keys: list[str], stage: int, hidden_size: int | None) -> list[str]:
    """What became of each "auto"."""
    left, computed = [], []
    for key in keys:
        field, rule = SCHEDULE.get(key) or place(key), HIDDEN_SIZE_RULES.get(key.removeprefix(f"{ZERO}."))
        if rule is None:
            left.append(key if field == key else f"{key} ({field})")
        elif stage in rule.stages:
            computed.append(f"{field}={rule.number(hidden_size)}" if hidden_size else f"{field} ({rule.words})")
    trainer = "computed" if hidden_size else "as shipped, where the HF Trainer computes it"
    return [
        *([f"auto, left to the composed config: {', '.join(left)}"] if left else []),
        *([f"auto, {trainer} from the model's hidden size: {', '.join(computed)}"] if computed else []),
    ]
