"""The fp16 loss scaler (runtime/fp16/loss_scaler.py, runtime/precision_config.py)."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, asks, error, warning

DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale")


def findings(asked: Asked) -> Iterator[Finding]:
    scale = asked.number("fp16.loss_scale", 0)
    if asked.optimizer_type == "lamb" and scale:
        yield error("fp16.loss_scale", Kind.contradiction, "must be 0, a dynamic scale, with the Lamb optimizer")
    # "auto" may turn fp16 on, and these values would then do their harm; only fp16 that is off cannot.
    if asked.on("fp16.enabled") is False or scale is None:
        return
    if scale > 0:
        for name in DYNAMIC:
            if asks(asked.section("fp16").get(name)):
                message = f"has no effect with a static loss_scale of {scale:g}; set loss_scale to 0, or leave it out"
                yield error(f"fp16.{name}", Kind.no_effect, message)
        return
    yield from _dynamic(asked)


def _dynamic(asked: Asked) -> Iterator[Finding]:
    power = asked.number("fp16.initial_scale_power", 16)
    hysteresis = asked.number("fp16.hysteresis", 2)
    lowest = asked.number("fp16.min_loss_scale", 1)
    if hysteresis is not None and hysteresis < 1:
        message = f"{hysteresis:g} keeps the scale from ever falling, and each overflowing step is skipped for good; use 2"
        yield error("fp16.hysteresis", Kind.value, message)
    if power is None:
        return
    if power >= 32:
        message = f"starts at 2^{power:.0f}: {power - 16:.0f} or more steps are skipped before one is taken; use 16"
        yield error("fp16.initial_scale_power", Kind.value, message)
    elif power > 16:
        message = f"starts at 2^{power:.0f}: expect about {power - 15:.0f} skipped steps at the start; 16 is usual"
        yield warning("fp16.initial_scale_power", Kind.value, message)
    elif lowest is not None and lowest > 0 and power == int(power) and lowest >= 2.0 ** max(power, -1000):
        if lowest > 2.0 ** max(power, -1000):
            message = f"{lowest:g} is above the initial scale 2^{power:.0f}: one overflow raises it, the next ends the run"
            key = "fp16.min_loss_scale" if asked.has("fp16.min_loss_scale") else "fp16.initial_scale_power"
        else:
            message = f"starts at 2^{power:.0f}, which is the lowest scale as well: a second overflow ends the run; use 16"
            key = "fp16.initial_scale_power"
        yield error(key, Kind.value, message)
