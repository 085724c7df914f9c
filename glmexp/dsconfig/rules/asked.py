"""What a DeepSpeed config asks for, as far as its values can be told."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation, View

TRUE, FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
"""Words that pydantic, and so DeepSpeed, takes for a bool."""

DTYPES = {
    name: dtype
    for dtype, names in {
        "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
        "fp16": ("fp16", "float16", "half", "torch.float16"),
        "fp32": ("fp32", "float32", "float", "torch.float32"),
    }.items()
    for name in names
}
"""DeepSpeed's names of a dtype (runtime/config.py, DtypeEnum) -> ours."""

LARGEST = 1e300
"""Numbers beyond mean nothing to DeepSpeed, and arithmetic with them would fail."""

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}

STAGE3_ALIASES = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "gather_16bit_weights_on_model_save",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
    "allgather_sequential",
)
"""Keys of ``zero_optimization`` that may be written with or without ``stage3_`` (runtime/zero/config.py)."""


def error(key: str, kind: Kind, message: str) -> Finding:
    return Finding(key, kind, Severity.error, message)


def warning(key: str, kind: Kind, message: str) -> Finding:
    return Finding(key, kind, Severity.warning, message)


def info(key: str, kind: Kind, message: str) -> Finding:
    return Finding(key, kind, Severity.info, message)


def truth(value: Any) -> bool | None:
    """The bool that DeepSpeed makes of a value; None if it makes none or the value is still to be filled in."""
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, int | str) else ""
    return True if word in TRUE else False if word in FALSE else None


DEEPEST = 20
"""More levels than any section of DeepSpeed has."""


def asks(value: Any, depth: int = 0) -> bool:
    """Whether a value asks for anything: false, null, "none", "auto" and sections that are off or empty do not."""
    if isinstance(value, Mapping):
        if truth(value.get("enabled", True)) is False or value.get("device", "") == "none":
            return False
        return depth > DEEPEST or any(asks(each, depth + 1) for each in value.values())
    if isinstance(value, list):
        return bool(value)
    return value is not None and value is not False and value not in ("none", "auto", "")


class Asked:
    """A config with DeepSpeed's defaults in mind. Everywhere None means "cannot be told": a rule that needs it is silent."""

    def __init__(self, view: View, situation: Situation, unread: Collection[str] = ()) -> None:
        self.view = view
        self.situation = situation
        self.bf16_section = "bf16" if view.raw("bf16") is not None else "bfloat16"
        misspelt = not self.has("zero_optimization.stage") and {"zero_optimization", "zero_optimization.stage"} & set(unread)
        # DeepSpeed then takes stage 0, which nobody asked for: what rules say of it would lead astray.
        self.stage = None if misspelt else self._stage()
        self.dtype = self._dtype()
        self.optimizer_device = self._offloads_to("optimizer")
        self.param_device = self._offloads_to("param")
        self.optimizer_type = (self.word("optimizer.type") or "").lower() or None

    def has(self, key: str) -> bool:
        return self.view.has(key)

    def section(self, key: str) -> Mapping[str, Any]:
        """The members of a section, none where it is absent or no section."""
        value = self.view.raw(key)
        return value if isinstance(value, Mapping) else {}

    def asks(self, key: str) -> bool:
        return asks(self.view.raw(key))

    def on(self, key: str, default: bool = False) -> bool | None:
        """A flag as DeepSpeed takes it, its ``default`` where it is left out."""
        return truth(self.view.raw(key)) if self.has(key) else default

    def number(self, key: str, default: float | None = None) -> float | None:
        """A finite number, ``default`` where the key is left out; digits in quotes count."""
        value = self.view.raw(key) if self.has(key) else default
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:400])
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if abs(value) < LARGEST else None  # neither infinite nor NaN

    def count(self, key: str) -> int | None:
        """A whole number of at least one."""
        value = self.number(key)
        return int(value) if value is not None and value == int(value) and value >= 1 else None

    def word(self, key: str, default: str | None = None) -> str | None:
        """A word other than "auto", ``default`` where the key is left out or null."""
        value = self.view.raw(key)
        if value is None:
            return default
        return value if isinstance(value, str) and value != "auto" else None

    def dtype_of(self, key: str) -> str | None:
        """``bf16``, ``fp16`` or ``fp32`` under any of DeepSpeed's names."""
        return DTYPES.get((self.word(key) or "").lower())

    def written(self, name: str) -> Iterator[str]:
        """The dotted keys under which a key of ``zero_optimization`` stands in the config, by either of its names."""
        for alias in (name, f"stage3_{name}"):
            if alias in self.section("zero_optimization"):
                yield f"zero_optimization.{alias}"

    def _stage(self) -> int | None:
        zero = self.view.raw("zero_optimization")
        if isinstance(zero, bool):
            return int(zero)  # the old form, which stands for stage 1 or none
        value = zero.get("stage", 0) if isinstance(zero, Mapping) else None if zero is not None else 0
        if isinstance(value, bool):
            return int(value)
        number = self.number("zero_optimization.stage", 0)
        return int(number) if number in (0, 1, 2, 3) and value is not None else None

    def _dtype(self) -> Literal["bf16", "fp16", "fp32"] | None:
        """What the model computes in: DeepSpeed casts it to the one of ``bf16`` and ``fp16`` that is on."""
        fp16, bf16 = self.on("fp16.enabled"), self.on(f"{self.bf16_section}.enabled")
        if bf16:
            return "bf16"
        if fp16:
            return "fp16"
        return "fp32" if fp16 is False and bf16 is False else None

    def _offloads_to(self, what: str) -> Literal["none", "cpu", "nvme"] | None:
        deprecated = {"optimizer": "cpu_offload", "param": "cpu_offload_param"}[what]
        if self.on(f"zero_optimization.{deprecated}"):
            return "cpu"
        value = self.word(f"zero_optimization.offload_{what}.device", "none")
        return value if value in ("none", "cpu", "nvme") else None  # type: ignore[return-value]

    @property
    def bucket_dtype(self) -> str | None:
        """Dtype of the gradient bucket: at stage 3 that of the reduction (stage3.py, _setup_for_real_optimizer), at 1 and 2
        that of the gradients (stage_1_and_2.py, setup_buckets)."""
        if self.stage == 3 and (self.count("sequence_parallel_size") or 1) > 1:
            # Ranks that share a sample have a key of their own for it (engine.py, _configure_distributed_model).
            return self.dtype_of("seq_parallel_communication_data_type") or "fp32"
        other = {1: "data_types.grad_accum_dtype", 3: "communication_data_type"}.get(self.stage or 0)
        return (self.dtype_of(other) if other else None) or self.dtype

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer is meant to live outside the GPU."""
        return self.optimizer_device in ("cpu", "nvme")

    @property
    def bf16_optimizer(self) -> bool:
        """Whether DeepSpeed takes BF16_Optimizer instead of ZeRO's (runtime/engine.py, _do_optimizer_sanity_check)."""
        accumulation = self.dtype_of("data_types.grad_accum_dtype")
        return self.stage == 1 and self.dtype == "bf16" and accumulation == "fp32" and self.optimizer_device in ("none", "nvme")

    @property
    def on_cpu(self) -> bool:
        return self.situation.device == "cpu"

    @property
    def trainer(self) -> bool:
        """Whether the Hugging Face Trainer hands the config on."""
        return self.situation.reader == "hf"
