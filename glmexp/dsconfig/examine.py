"""The linter on a composed config: what refuses the run and what is only said, in the words of the command line."""

from collections.abc import Iterator, Mapping
from typing import Any

from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.dsconfig.build import derive
from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation, View, printable
from glmexp.dsconfig.lint import lint
from glmexp.dsconfig.machine import Machine
from glmexp.dsconfig.passthrough import merge, place
from glmexp.dsconfig.raw import unheeded

MOST_LINES = 5


def examine(config: Config, machine: Machine, *, probed: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The DeepSpeed dict of a config that may run, and a line for each thing to be warned of.

    Args:
        probed: the device is only what this machine happens to have, and the run may be elsewhere: what it lacks is no error.

    Raises UserError for a raw key that DeepSpeed or glmexp's worker would not honour, an impossible value, or an entry of
    ``lint.allow`` that allows nothing.
    """
    derived = derive(config, machine)
    ds_config = merge(derived, config.deepspeed)
    device = None if probed else machine.device
    situation = Situation(world_size=machine.world_size, device=device, splits_sequences=True)
    found = lint(ds_config, situation)
    owned = dict(unheeded(config.deepspeed, derived))
    problems = [f"deepspeed.{key}: would not do what it says: {why}" for key, why in owned.items()]
    problems += _allowing_nothing(config, found)
    warnings = []
    for finding in found:
        key = user_key(finding.key, config.deepspeed)
        if finding.kind is Kind.unknown and finding.key in config.lint.allow:
            warnings.append(f"{key} is let through by lint.allow: glmexp does not know what it does")
        elif finding.severity is Severity.error and not f"{finding.key}.".startswith(tuple(f"{name}." for name in owned)):
            hint = f" (lint.allow=[{finding.key}] lets a new key through)" if finding.kind is Kind.unknown else ""
            problems.append(f"{key}: {finding.message}{hint}")
        elif finding.severity is Severity.warning:
            warnings.append(f"{key}: {finding.message}")
    if problems:
        raise UserError("\n".join(problems[:MOST_LINES]))
    return ds_config, warnings


def user_key(key: str, raw: Mapping[str, Any]) -> str:
    """A DeepSpeed key as its user wrote it: ``deepspeed.KEY`` if raw, else the field of the config behind it."""
    return f"deepspeed.{printable(key)}" if View(raw).has(key) else place(key)


def _allowing_nothing(config: Config, found: list[Finding]) -> Iterator[str]:
    unknown = {finding.key for finding in found if finding.kind is Kind.unknown}
    for key in config.lint.allow:
        if key in unknown:
            continue
        section = next((name for name in unknown if key.startswith(f"{name}.")), None)
        if section is not None:
            yield f"lint.allow=[{key}]: glmexp does not know {section} as a whole: lint.allow=[{section}] lets it through"
        elif View(config.deepspeed).has(key):
            yield f"lint.allow=[{key}]: glmexp knows this key and checks it; leave it out of lint.allow"
        else:
            yield f"lint.allow=[{key}]: no such key is set; add it as +deepspeed.{key}=..., or leave it out of lint.allow"
