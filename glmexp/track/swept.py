"""What a sweep varied, as columns that a dashboard can plot: pure functions over a sweep's rows and its trials' configs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glmexp.config.files import leaves
from glmexp.track.base import SweepInfo

SPEED = "tokens_per_second"
MEMORY = ("peak_allocated_gib", "host_peak_gib")
"""GPU first; a sweep on the CPU has the host's figure alone."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of all rows, in the order in which they come up."""
    return list(dict.fromkeys(key for row in rows for key in row))


def memory_column(rows: Sequence[Mapping[str, Any]]) -> str:
    return next((name for name in MEMORY if any(is_number(row.get(name)) for row in rows)), MEMORY[0])


def config_keys(sweep: SweepInfo) -> list[str]:
    """Dotted keys of the config for what was swept; of a group its first field that differs between trials."""
    return list(dict.fromkeys(key for name in sweep.swept if (key := _config_key(name, sweep)) is not None))


def _config_key(name: str, sweep: SweepInfo) -> str | None:
    seen: dict[str, set[str]] = {}
    for config in configs(sweep):
        for key, value in leaves({name: config[name]} if isinstance(config.get(name), dict) else {}):
            seen.setdefault(key, set()).add(repr(value))
    if not seen:
        return name if "." in name else None
    return next((key for key, values in seen.items() if len(values) > 1), None)


def configs(sweep: SweepInfo) -> Iterator[dict[str, Any]]:
    """The ``config.yaml`` of each trial that has one, as plain values."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for row in sweep.rows:
        try:
            content = yaml.load((sweep.folder / str(row.get("trial")) / "config.yaml").read_text(encoding="utf-8"), loader)
        except (OSError, yaml.YAMLError):
            continue
        if isinstance(content, dict):
            yield content
