"""The linter: what is wrong with a DeepSpeed config, without DeepSpeed."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from glmexp.dsconfig import rules, structure
from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation, View
from glmexp.dsconfig.table import DESCRIBES


def lint(config: Mapping[str, Any], situation: Situation) -> list[Finding]:
    """What is wrong with a config, in its own order; never raises, whatever the config holds.

    A rule's finding on a key that is wrong by itself (unknown, of a wrong type, ...) is left out: it would rest on a value
    that DeepSpeed never sees.
    """
    found = list(structure.findings(config, situation))
    broken = {finding.key for finding in found if finding.severity is Severity.error}
    unread = {key for finding in found for key in finding.meant}
    ruled = [finding for finding in rules.findings(View(config), situation, unread) if finding.key not in broken]
    refused = {finding.key for finding in ruled if finding.kind is Kind.contradiction and finding.severity is Severity.error}
    # An old name that is refused need not be told to still work.
    found = [finding for finding in found if finding.kind is not Kind.removed or finding.key not in refused] + ruled
    order = {key: position for position, key in enumerate(_keys(config))}
    return sorted(dict.fromkeys(found), key=lambda finding: _position(finding.key, order))


def known_version() -> tuple[str, str | None]:
    """The DeepSpeed release that the linter describes, and the installed one (None: not installed)."""
    try:
        return DESCRIBES, version("deepspeed")
    except PackageNotFoundError:
        return DESCRIBES, None


def _keys(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[str]:
    keys = []
    for name, value in values.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, Mapping) and depth < 20:  # deeper than any section of DeepSpeed
            keys += _keys(value, f"{prefix}{name}.", depth + 1)
    return keys


def _position(key: str, order: Mapping[str, int]) -> int:
    """Where a key stands; one that is missing from the config stands where its section does, or at the end."""
    while key:
        if key in order:
            return order[key]
        key = key.rpartition(".")[0]
    return len(order)
