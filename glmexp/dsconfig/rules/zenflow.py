"""``zero_optimization.zenflow`` (runtime/zenflow/engine.py, zenflow_stage_1_and_2.py, engine_stage3.py)."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error
from glmexp.dsconfig.rules.batch import accumulation_of

ZENFLOW = "zero_optimization.zenflow"

ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad")
"""What both of ZenFlow's optimizers, torch's AdamW on the GPU and DeepSpeed's on the host, take."""


def findings(asked: Asked) -> Iterator[Finding]:
    if not asked.section(ZENFLOW) or asked.stage == 0:
        return
    if asked.optimizer_device == "none":
        yield error(ZENFLOW, Kind.contradiction, 'needs zero_optimization.offload_optimizer with a device of "cpu"')
    if asked.on(f"{ZENFLOW}.offload") and asked.on("zero_optimization.overlap_comm", asked.stage == 3) is False:
        yield error(f"{ZENFLOW}.offload", Kind.contradiction, "needs zero_optimization.overlap_comm true")
    if asked.on("zero_optimization.compute_grad_norm", default=True) is False:
        yield error(ZENFLOW, Kind.contradiction, "needs zero_optimization.compute_grad_norm true")
    yield from _optimizer(asked)
    yield from _update(asked)
    yield from _select(asked)


def _optimizer(asked: Asked) -> Iterator[Finding]:
    if not asked.section("optimizer"):
        yield error(ZENFLOW, Kind.contradiction, "needs an optimizer section, type AdamW; it cannot take one from the program")
    elif asked.optimizer_type not in (None, "adam", "adamw"):
        yield error("optimizer.type", Kind.contradiction, "must be AdamW with ZenFlow")
    for name in asked.section("optimizer.params"):
        if name not in ADAM and asked.optimizer_type in ("adam", "adamw"):
            message = f"keeps DeepSpeed from starting with ZenFlow, whose optimizers take {', '.join(ADAM)} alone; leave it out"
            yield error(f"optimizer.params.{name}", Kind.contradiction, message)


def _update(asked: Asked) -> Iterator[Finding]:
    """DeepSpeed overwrites the accumulation with the interval, and with 0 for one of "auto" (configure_zenflow)."""
    key, accumulation = f"{ZENFLOW}.update_interval", accumulation_of(asked)
    interval = asked.view.raw(key) if asked.has(key) else "auto"
    if interval == "auto":
        message = '"auto", its value where it is left out, sets the accumulation to 0; use gradient_accumulation_steps'
        yield error(key, Kind.contradiction, f"{message}{f', {accumulation}' if accumulation else ''}")
    elif asked.count(key) is not None and accumulation is not None and asked.count(key) != accumulation:
        message = f"{asked.count(key)} overwrites gradient_accumulation_steps, which is {accumulation}; make them equal"
        yield error(key, Kind.contradiction, message)


def _select(asked: Asked) -> Iterator[Finding]:
    strategy = asked.view.raw(f"{ZENFLOW}.select_strategy") if asked.has(f"{ZENFLOW}.select_strategy") else "auto"
    key = f"{ZENFLOW}.select_interval"
    interval = asked.count(key)
    if strategy == "auto" and interval is not None:
        yield error(
            key, Kind.contradiction, 'keeps DeepSpeed from starting with select_strategy "auto"; set it to "step" or "epoch"'
        )
    if strategy not in ("step", "epoch"):
        return
    if not asked.has(key) or asked.view.raw(key) == "auto":
        yield error(key, Kind.contradiction, f'must be a number with select_strategy "{strategy}"')
    elif strategy == "step" and interval is not None and interval < (asked.count(f"{ZENFLOW}.update_interval") or 0):
        yield error(key, Kind.contradiction, f"{interval} is less than update_interval, which keeps DeepSpeed from starting")
