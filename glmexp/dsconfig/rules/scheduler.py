"""``scheduler`` (runtime/lr_schedules.py; runtime/engine.py, _scheduler_from_config)."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error, warning
from glmexp.dsconfig.table.optimizer import TORCH_SCHEDULES

PARAMS = "scheduler.params"

NEEDED = {
    "LRRangeTest": (),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
    "WarmupLR": (),
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
}
"""DeepSpeed's schedules -> the parameters without which they do not start."""


def findings(asked: Asked) -> Iterator[Finding]:
    section = asked.section("scheduler")
    if section and section.get("type") is None:
        message = "has no type, and DeepSpeed leaves the whole section unread without one; add a type such as WarmupDecayLR"
        yield error("scheduler", Kind.no_effect, message)
        return
    kind = asked.word("scheduler.type")
    wrapped = asked.stage is not None and asked.dtype is not None and (asked.stage > 0 or asked.dtype != "fp32")
    if kind in TORCH_SCHEDULES and wrapped:
        message = (
            "is torch's, which refuses the optimizers of ZeRO, fp16 and bf16; use a schedule of DeepSpeed, as WarmupDecayLR"
        )
        yield error("scheduler.type", Kind.contradiction, message)
    if kind not in NEEDED:
        return
    if section.get("params") is None:
        yield error(PARAMS, Kind.contradiction, f"is left out, and {kind} does not start without it; an empty section will do")
        return
    for name in NEEDED[kind]:
        if not asked.has(f"{PARAMS}.{name}"):
            yield error(f"{PARAMS}.{name}", Kind.contradiction, f"is left out, and {kind} does not start without it")
    if kind.startswith("Warmup"):
        yield from _warmup(asked, kind)


def _warmup(asked: Asked, kind: str) -> Iterator[Finding]:
    total, warmup = asked.number(f"{PARAMS}.total_num_steps"), asked.number(f"{PARAMS}.warmup_num_steps", 1000)
    if kind != "WarmupLR" and total is not None and warmup is not None and total < warmup:
        given = "" if asked.has(f"{PARAMS}.warmup_num_steps") else ", its value where it is left out"
        message = f"{total:g} is less than warmup_num_steps {warmup:g}{given}: the lr never comes down"
        yield error(f"{PARAMS}.total_num_steps", Kind.contradiction, message)
    yield from _peak(asked, kind)


def _peak(asked: Asked, kind: str) -> Iterator[Finding]:
    """WarmupLR and WarmupDecayLR overwrite the optimizer's lr; WarmupDecayLR does even where no peak is given."""
    lr, peak = asked.number("optimizer.params.lr"), asked.number(f"{PARAMS}.warmup_max_lr")
    if kind == "WarmupDecayLR" and not asked.has(f"{PARAMS}.warmup_max_lr") and lr not in (None, 0.001):
        message = f"is left out and then 0.001, not the optimizer's lr of {lr:g}; set it to {lr:g}"
        yield error(f"{PARAMS}.warmup_max_lr", Kind.contradiction, message)
    elif kind in ("WarmupLR", "WarmupDecayLR") and lr is not None and peak is not None and lr != peak:
        message = f"{peak:g} goes before the optimizer's lr of {lr:g}, which has no effect; make them equal"
        yield warning(f"{PARAMS}.warmup_max_lr", Kind.contradiction, message)
