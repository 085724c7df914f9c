"""``lint.allow=[KEY,...]``: DeepSpeed keys that glmexp does not know and that pass all the same."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from glmexp.config.errors import UserError
from glmexp.dsconfig.findings import Finding, Kind, Severity

NAME = "lint.allow"
TOLD = "let through by lint.allow; glmexp does not know what it does"


def allowed(words: Sequence[str]) -> list[str]:
    """The keys of the last ``lint.allow=[...]`` among the words of a command line; raises UserError if it is no list."""
    lists = [word for word in words if word.partition("=")[0].lstrip("+") == NAME]
    if not lists:
        return []
    value = lists[-1].partition("=")[2].strip()
    if not (value.startswith("[") and value.endswith("]")):
        raise UserError(f"{NAME}: must be a list, [...] (in {lists[-1]})")
    return [name.strip(" '\"") for name in value.strip("[] ").split(",")]


def let_through(found: Sequence[Finding], allow: Collection[str]) -> list[Finding]:
    """The findings, where an unknown key that is allowed is an info."""
    return [
        replace(finding, severity=Severity.info, message=TOLD)
        if finding.kind is Kind.unknown and finding.key in allow
        else finding
        for finding in found
    ]
