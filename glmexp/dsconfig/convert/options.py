"""From values to overrides: the shipped option of a group that is nearest, and what it lacks, in Hydra's own grammar."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from glmexp.config.compose import conf_dir
from glmexp.config.errors import UserError
from glmexp.config.files import leaves

PLAIN = re.compile(r"[A-Za-z_/.][\w/.-]*", re.ASCII)
"""Text that Hydra reads as it stands, unless it is one of ``WORDS``."""
WORDS = ("null", "true", "false", "nan", "inf")
KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)


@dataclass
class Wanted:
    """What the fields of a group shall be."""

    said: dict[str, Any] = field(default_factory=dict)
    """Field -> value that was written down."""
    left_out: dict[str, Any] = field(default_factory=dict)
    """Field -> what DeepSpeed does when its key is left out. A field that is null in an option leaves the key out."""

    def lacking(self, option: Mapping[str, Any]) -> dict[str, Any]:
        """Field -> value of what must be set on top of the option."""
        lacking = {name: value for name, value in self.said.items() if not same(option.get(name), value)}
        for name, value in self.left_out.items():
            if name not in self.said and option.get(name) is not None and not same(option[name], value):
                lacking[name] = value
        return lacking


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: ``true`` is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def choose(group: str, wanted: Wanted, *fixed: str) -> list[str]:
    """The option that needs the fewest fields on top, then those fields; ``fixed`` must be right in the option itself."""
    lacking = {name: wanted.lacking(option(group, name)) for name in options(group)}
    name = min((name for name in lacking if not lacking[name].keys() & set(fixed)), key=lambda name: len(lacking[name]))
    return [f"{group}={name}", *(override(f"{group}.{key}", value) for key, value in lacking[name].items())]


@cache
def options(group: str) -> Sequence[str]:
    """Names of the shipped options of a group."""
    return sorted(path.stem for path in (Path(conf_dir()) / group).glob("*.yaml"))


@cache
def option(group: str, name: str) -> Mapping[str, Any]:
    """Dotted field -> value in a shipped option, interpolations and ``???`` as they are written."""
    values = OmegaConf.to_container(OmegaConf.load(Path(conf_dir()) / group / f"{name}.yaml"), resolve=False)
    assert isinstance(values, dict)
    return dict(leaves(values))


def override(key: str, value: Any) -> str:
    """``key=value`` in Hydra's grammar; raises UserError for what it cannot hold."""
    if not KEY.fullmatch(key.lstrip("+")):
        raise UserError(f"{key.removeprefix('++deepspeed.')!r} cannot be written as an override: letters, digits and _ only")
    return f"{key}={written(value, key)}"


def written(value: Any, key: str) -> str:
    """A JSON value in Hydra's grammar; ``key`` is what messages name."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(written(item, key) for item in value)}]"
    if isinstance(value, Mapping):
        bad = next((name for name in value if not KEY.fullmatch(name) or "." in name), None)
        if bad is not None:
            raise UserError(f"{key}: the name {bad!r} inside a list cannot be written as an override")
        return f"{{{','.join(f'{name}:{written(inner, key)}' for name, inner in value.items())}}}"
    return _text(str(value), key)


def _text(value: str, key: str) -> str:
    # ``${`` would be looked up and ``???`` would count as not set; a line break ends an override in a shell's loop.
    if "${" in value or value == "???" or not value.isprintable():
        raise UserError(
            f"{key.removeprefix('++deepspeed.')}={value!r}: such a text cannot be written as an override; change it"
        )
    if PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    # Hydra unescapes a backslash only before a quote or at the end.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"
