"""Rules of ``method``: what of a model is trained, and which fields each method takes."""

from collections.abc import Iterator

from glmexp.config.choices import Init, Method, OffloadDevice
from glmexp.config.measure import initialisation
from glmexp.config.schema import Config

ADAPTER = ("rank", "alpha", "dropout")
ADAPTER_MAY = ("target_modules", "dora", "rslora")
NEEDED: dict[Method, tuple[str, ...]] = {
    Method.full: (),
    Method.freeze: (),
    Method.lora: ADAPTER,
    Method.qlora: (*ADAPTER, "quant_type", "double_quant"),
    Method.ptuning_v2: ("prefix_length", "prefix_projection", "dropout"),
}
"""Method -> the fields that it needs."""
OPTIONAL: dict[Method, tuple[str, ...]] = {
    Method.freeze: ("last_layers", "trainable"),
    Method.lora: ADAPTER_MAY,
    Method.qlora: ADAPTER_MAY,
}
"""Method -> the fields that it has besides, which may be null."""
PREFIX_LR = 1e-3
"""Below it, a prefix without projection hardly moves."""


def fields(method: Method) -> tuple[str, ...]:
    """The fields of ``method`` that have an effect with a method."""
    return NEEDED[method] + OPTIONAL.get(method, ())


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    method = config.method
    for field in dict.fromkeys(field for other in Method for field in fields(other)):
        value = getattr(method, field)
        if value is None and field in NEEDED[method.name]:
            yield f"method.{field} must be set with method={method.name.value}"
        elif value is not None and field not in fields(method.name):
            whose = " or ".join(f"method={other.value}" for other in Method if field in fields(other))
            yield f"method.{field} has no effect with method={method.name.value}; it is for {whose}"
    if method.target_modules == []:
        yield "method.target_modules=[] would train nothing; null takes the model's attention projections"
    if method.name is Method.freeze and not method.last_layers and not method.trainable:
        yield "method=freeze would train nothing: set method.last_layers=2, or method.trainable=['lm_head.*']"
    if method.name is Method.qlora:
        yield from _qlora(config)


def _qlora(config: Config) -> Iterator[str]:
    """Packed weights pass DeepSpeed as they are, unless it rewrites what it moves."""
    for field in ("zero_quantized_weights", "zero_quantized_nontrainable_weights"):
        if getattr(config.zero, field):
            yield f"zero.{field}=true does not go with method=qlora, whose weights are quantised already"
    if config.offload.device is OffloadDevice.nvme and config.offload.parameters:
        # swap_tensor/partitioned_param_swapper.py has buffers of one dtype for all parameters.
        yield "offload=nvme does not go with method=qlora, whose packed weights it would round; use offload=cpu_all"


def warnings(config: Config) -> Iterator[str]:
    """What would learn little, one line each."""
    method, lr = config.method, config.optimizer.lr
    # A full or a frozen model is exported whole; what else is trained is of use with its base alone.
    alone = method.name not in (Method.full, Method.freeze)
    if alone and initialisation(config) is Init.random:
        yield f"method={method.name.value} on random weights: what is trained fits only this model, drawn from this train.seed"
    if method.name is Method.ptuning_v2 and not method.prefix_projection and lr < PREFIX_LR:
        yield f"method=ptuning_v2: a prefix hardly moves at optimizer.lr={lr:g}; ChatGLM2's scripts train it at 1e-2 to 2e-2"
