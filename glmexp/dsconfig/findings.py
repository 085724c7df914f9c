"""What a linter says about one key of a DeepSpeed config, and in which situation the config is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal


class Kind(str, Enum):
    unknown = "unknown"
    """DeepSpeed has no such key there."""
    misplaced = "misplaced"
    """The key exists in another section."""
    no_effect = "no_effect"
    """Read by nobody at this stage, precision or device."""
    contradiction = "contradiction"
    """Two keys that cannot both hold."""
    removed = "removed"
    """Gone from DeepSpeed, or known under a new name."""
    value = "value"
    """Out of range, of the wrong type, or dangerous."""
    auto = "auto"
    """The HF Trainer's "auto", which DeepSpeed itself does not know."""


class Severity(str, Enum):
    error = "error"
    """Asked for and will not happen, or breaks the run."""
    warning = "warning"
    """Takes effect, and is dangerous or costly."""
    info = "info"
    """This DeepSpeed never uses the key, or a launcher will fill it in."""


def printable(key: str) -> str:
    """A key as it is told: characters that would move the cursor or break the line are escaped."""
    return key if key and key.isprintable() else json.dumps(key)[1:-1] or '""'


@dataclass(frozen=True)
class Finding:
    key: str
    """Dotted, as ``zero_optimization.offload_param.device``."""
    kind: Kind
    severity: Severity
    message: str
    """One line: what is wrong and the next move. It does not repeat the key."""
    meant: tuple[str, ...] = ()
    """The keys, dotted, that an unknown or misplaced one may stand for."""


@dataclass(frozen=True)
class Situation:
    """Who reads the config, where."""

    reader: Literal["deepspeed", "hf"] = "deepspeed"
    """``hf``: the Hugging Face Trainer, which fills "auto" in the fields that it owns."""
    world_size: int | None = None
    """Ranks; None is unknown, and rules that need it are silent."""
    device: Literal["gpu", "cpu"] | None = None
    """None is unknown, taken for a GPU."""
    splits_sequences: bool = False
    """Whether the program that reads it shares sequences between ranks itself, by an mpu that it gives to DeepSpeed."""


class View:
    """Safe reading of a config that may hold anything: a value of the wrong type counts as absent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def raw(self, key: str) -> Any:
        """The value at a dotted key, None where it or a section on the way is absent."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return None
            value = value[part]
        return value

    def has(self, key: str) -> bool:
        section, _, name = key.rpartition(".")
        value = self.raw(section) if section else self.config
        return isinstance(value, Mapping) and name in value

    def number(self, key: str, default: float) -> float:
        """A number as DeepSpeed would read it; bool, "auto" and other words count as absent."""
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return default
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key)
        return value if isinstance(value, bool) else default

    def text(self, key: str, default: str = "") -> str:
        value = self.raw(key)
        return value if isinstance(value, str) and value != "auto" else default

    @property
    def stage(self) -> int:
        """The ZeRO stage in effect."""
        return int(self.number("zero_optimization.stage", 0))
