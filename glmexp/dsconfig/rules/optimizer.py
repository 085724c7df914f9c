"""``optimizer`` (runtime/engine.py, _configure_basic_optimizer and get_optimizer_configuration)."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error, info, warning

PARAMS = "optimizer.params"

TESTED = ("adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw")
"""Types that become an optimizer of ZERO_SUPPORTED_OPTIMIZERS (runtime/zero/utils.py)."""

WHOLE_MATRICES = ("adafactor", "lamb")
"""Types that look at a whole matrix, which ZeRO never shows them."""

TORCH_ADAM_ALONE = ("fused", "foreach", "maximize", "capturable", "differentiable", "decoupled_weight_decay")
NOT_TORCH_ADAM = ("bias_correction", "set_grad_none")
"""Parameters of torch's AdamW and of DeepSpeed's Adams that the other does not take."""


def findings(asked: Asked) -> Iterator[Finding]:
    section = asked.section("optimizer")
    if section and section.get("type") is None:
        message = "has no type, and DeepSpeed leaves the whole section unread without one; add a type such as AdamW"
        yield error("optimizer", Kind.no_effect, message)
        return
    yield from _sharded(asked)
    yield from _adam(asked)
    if asked.has(f"{PARAMS}.max_grad_norm"):
        message = "is no parameter of the optimizer and keeps DeepSpeed from starting; use gradient_clipping at the top level"
        yield error(f"{PARAMS}.max_grad_norm", Kind.misplaced, message)
    if asked.on("optimizer.legacy_fusion") and asked.stage in (1, 2, 3):
        yield error("optimizer.legacy_fusion", Kind.no_effect, "has no effect with ZeRO; leave it out")


def _sharded(asked: Asked) -> Iterator[Finding]:
    kind = asked.optimizer_type
    if kind is None or kind in TESTED or asked.stage not in (1, 2, 3):
        return
    allowed = asked.on("zero_allow_untested_optimizer")
    if allowed is False:
        message = (
            "is not tested with ZeRO and keeps DeepSpeed from starting; use AdamW, or set zero_allow_untested_optimizer to true"
        )
        yield error("optimizer.type", Kind.contradiction, message)
    elif allowed and kind in WHOLE_MATRICES:
        message = "looks at whole matrices, but with ZeRO it gets flat parts of them: its updates mean nothing; use AdamW"
        yield warning("optimizer.type", Kind.value, message)
    elif allowed:
        yield warning("optimizer.type", Kind.value, "is not tested with ZeRO; AdamW, Lion, Adagrad and Muon are")


def _adam(asked: Asked) -> Iterator[Finding]:
    if asked.optimizer_type not in ("adam", "adamw"):
        return
    torch_adam, decoupled = asked.on(f"{PARAMS}.torch_adam"), asked.on(f"{PARAMS}.adam_w_mode", default=True)
    if asked.optimizer_type == "adamw" and decoupled is False:
        message = 'false has no effect with type AdamW; use type "Adam" for weight decay inside the gradient'
        yield error(f"{PARAMS}.adam_w_mode", Kind.no_effect, message)
    decay = asked.number(f"{PARAMS}.weight_decay", 0.01 if torch_adam else 0.0)
    if asked.optimizer_type == "adam" and decoupled and not asked.has(f"{PARAMS}.adam_w_mode") and decay != 0:
        message = "is AdamW in DeepSpeed: weight decay is decoupled unless params.adam_w_mode is false; AdamW says the same"
        yield info("optimizer.type", Kind.value, message)
    for names, unfit, what in (
        (TORCH_ADAM_ALONE, torch_adam is False, "torch's AdamW alone: add torch_adam true, or leave it out"),
        (NOT_TORCH_ADAM, torch_adam is True, "DeepSpeed's own Adams alone: leave it or torch_adam out"),
    ):
        for name in names:
            if unfit and asked.has(f"{PARAMS}.{name}"):
                yield error(
                    f"{PARAMS}.{name}", Kind.contradiction, f"keeps DeepSpeed from starting: it is a parameter of {what}"
                )
    if asked.on(f"{PARAMS}.amsgrad") and torch_adam is False and asked.optimizer_device == "none":
        message = "keeps DeepSpeed from starting: DeepSpeed's FusedAdam has no AMSGrad; add torch_adam true, or leave it out"
        yield error(f"{PARAMS}.amsgrad", Kind.contradiction, message)
    states = f"{PARAMS}.fp32_optimizer_states"
    if asked.on(states, default=True) is False and asked.optimizer_device and (torch_adam or not asked.offloads_optimizer):
        message = "false is read by DeepSpeed's CPU Adam alone, which needs offload_optimizer and no torch_adam"
        yield error(states, Kind.no_effect, message)
    if asked.has(states) and asked.on(states) and asked.on(f"{asked.bf16_section}.bf16_optimizer_states"):
        yield error(states, Kind.contradiction, "true is overruled by bf16_optimizer_states; leave one of them out")
