"""How gradients are summed over the ranks: the factors, the operation and reduce_scatter."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error

SCATTER = "zero_optimization.reduce_scatter"


def findings(asked: Asked) -> Iterator[Finding]:
    sums = (asked.word("gradient_allreduce_op") or "").lower() == "sum"
    yield from _operation(asked, sums)
    yield from _factors(asked, sums)
    if asked.optimizer_type == "muon" and asked.stage == 3 and asked.on(SCATTER, default=True):
        message = "must be false with the Muon optimizer at stage 3, where it is true unless set"
        yield error(SCATTER, Kind.contradiction, message)
    if asked.on("torch_autocast.enabled") and asked.stage in (1, 2, 3):
        for key in ("communication_data_type", "seq_parallel_communication_data_type"):
            if asked.asks(key):
                message = "is overruled by torch_autocast, which reduces gradients in its own dtype; leave it out"
                yield error(key, Kind.no_effect, message)


def _operation(asked: Asked, sums: bool) -> Iterator[Finding]:
    """``gradient_allreduce_op: sum`` (runtime/config.py, _do_error_check); at stages 0 to 2 it takes effect."""
    key = "gradient_allreduce_op"
    if sums and asked.stage == 3:
        yield error(key, Kind.contradiction, '"sum" is refused at stage 3; use stage 2, or "mean"')
    if sums and asked.section("zero_optimization.zenflow"):
        yield error(key, Kind.contradiction, '"sum" is refused with ZenFlow; use "mean"')
    if sums and asked.on("compile.deepcompile"):
        yield error(key, Kind.contradiction, '"sum" is refused with DeepCompile; use "mean"')


def _factors(asked: Asked, sums: bool) -> Iterator[Finding]:
    """Dividing before the reduction: stage_1_and_2.py average_tensor, stage3.py __avg_scatter_*, engine.py allreduce_bucket."""
    factor = asked.number("gradient_predivide_factor", 1.0)
    prescale = asked.on("prescale_gradients")
    scatters = asked.on(SCATTER, default=True)
    for key, wanted in (("gradient_predivide_factor", factor not in (None, 1)), ("prescale_gradients", prescale)):
        if not wanted or asked.stage is None:
            continue
        if sums and asked.stage < 3:
            yield error(key, Kind.no_effect, 'has no effect with gradient_allreduce_op "sum", which divides nothing')
        elif asked.stage >= 2 and scatters:
            message = f"keeps DeepSpeed from starting at stage {asked.stage} with reduce_scatter, which is true unless set"
            yield error(key, Kind.contradiction, f"{message}; leave it out")
        elif asked.stage == 1 and scatters and not asked.bf16_optimizer:
            message = "has no effect at stage 1 with reduce_scatter, which is true unless set; leave it out"
            yield error(key, Kind.no_effect, message)
        elif key == "gradient_predivide_factor" and prescale:
            yield error(key, Kind.no_effect, "has no effect with prescale_gradients, which divides by the world size first")
        elif key == "gradient_predivide_factor" and asked.stage == 3 and factor == asked.situation.world_size:
            message = f"equal to the {factor:g} ranks is not undone at stage 3: gradients come out {factor:g} times too small"
            yield error(key, Kind.value, f"{message}; leave it out")
