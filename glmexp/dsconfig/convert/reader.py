"""Reads a DeepSpeed config value by value: each is taken once, and what nobody took has no field in glmexp."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeVar

from glmexp.config.errors import UserError
from glmexp.dsconfig.table import REMARK
from glmexp.dsconfig.table.shape import Key, Section

AUTO = "auto"
T = TypeVar("T")
SECTIONS = (
    "optimizer", "optimizer.params", "scheduler", "scheduler.params", "data_types", "bf16", "fp16", "torch_autocast", "aio",
    "compile", "zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param",
    "zero_optimization.zenflow",
)  # fmt: skip
NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}


class Reader:
    """A DeepSpeed config that empties as it is read. Raises UserError for a value of the wrong type."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.left: dict[str, Any] = deepcopy({name: value for name, value in config.items() if not REMARK.fullmatch(name)})
        """What has not been taken."""
        self.auto: list[str] = []
        """Dotted keys that were taken and hold "auto"."""
        self.emitted: set[str] = set()
        """Sections that the chosen options emit, so that more keys can be added to them."""
        self.notes: list[str] = []
        """What whoever converts should know, one line each."""
        for key in SECTIONS:
            section = self._raw(key)
            if section is not None and not isinstance(section, Mapping):
                raise UserError(f"{key}={section!r}: a section is due, {{...}}")

    def take(self, key: str, kind: type[T]) -> T | None:
        """The value at a dotted key as a bool, int, float, str or list; None if it is absent, null or "auto"."""
        section, _, name = key.rpartition(".")
        holder = self._raw(section) if section else self.left
        if not isinstance(holder, dict) or name not in holder:
            return None
        value = holder.pop(name)
        if value == AUTO:
            self.auto.append(key)
        return None if value is None or value == AUTO else _as(kind, value, key)

    def drop(self, key: str) -> None:
        """Takes a whole section, whatever is left in it."""
        section, _, name = key.rpartition(".")
        holder = self._raw(section) if section else self.left
        if isinstance(holder, dict):
            holder.pop(name, None)

    def has(self, key: str) -> bool:
        """Whether something is left at a dotted key."""
        return self._raw(key) not in (None, {})

    def _raw(self, key: str) -> Any:
        value: Any = self.left
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def default(section: Section, name: str) -> Any:
    """What DeepSpeed takes for a key of a section when it is left out."""
    key = section.keys[name]
    assert isinstance(key, Key)
    return key.default


def _as(kind: type[T], value: Any, key: str) -> T:
    """``value`` as DeepSpeed reads it (pydantic's lax mode): 5e8 is a whole number, "2" too, and 1 is true."""
    if kind is bool:
        words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
        if isinstance(value, bool):
            return value  # type: ignore[return-value]
        if str(value).lower() in words:
            return words[str(value).lower()]  # type: ignore[return-value]
    elif kind is int:
        if isinstance(value, int | float) and math.isfinite(value) and value == int(value):
            return int(value)  # type: ignore[return-value]
        if isinstance(value, str) and value.isdecimal() and len(value) < 20:
            return int(value)  # type: ignore[return-value]
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
            return value  # type: ignore[return-value]
    elif isinstance(value, kind):
        return value
    raise UserError(f"{key}={value!r}: {NOUNS[kind]} is due")
