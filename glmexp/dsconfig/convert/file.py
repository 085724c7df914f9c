"""A DeepSpeed JSON file, linted and ready to be converted."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from glmexp.config.errors import UserError
from glmexp.config.files import leaves
from glmexp.config.secrets import refuse_secrets
from glmexp.dsconfig.allow import let_through
from glmexp.dsconfig.convert.reader import AUTO
from glmexp.dsconfig.convert.retired import modernise
from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation, View, printable
from glmexp.dsconfig.json_file import read
from glmexp.dsconfig.lint import lint
from glmexp.dsconfig.table.trainer import FILLED

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu")
"""DeepSpeed needs one of them."""


@dataclass(frozen=True)
class Linted:
    config: Mapping[str, Any]
    """Without retired keys."""
    notes: list[str]
    """What the file itself gives cause to say, one line each."""
    findings: list[str]
    """What the linter says of it besides errors, one line each."""


def load(path: str, allow: Collection[str] = ()) -> Linted:
    """The config in a file, ``-`` for standard input; raises UserError with every error that the linter finds in it.

    "auto" where the HF Trainer fills it in makes the file one of the Trainer's. ``allow`` are keys that the linter does not
    know and that pass all the same (``lint.allow``).
    """
    file = read(path)
    try:
        refuse_secrets([str(value) for _, value in leaves(file.config)])
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    config, notes = modernise(file.config)
    view = View(config)
    trainer = any(view.raw(key) == AUTO for key in FILLED)
    found = let_through(lint(config, Situation(reader="hf" if trainer else "deepspeed")), allow)
    errors = [finding for finding in found if finding.severity is Severity.error]
    if not any(view.has(key) for key in BATCH):
        errors = [finding for finding in errors if finding.key not in BATCH]  # glmexp has a batch of its own
    if errors:
        command = f"python -m glmexp lint {shlex.quote(path)}{' --for hf' if trainer else ''} lists everything"
        new = any(finding.kind is Kind.unknown for finding in errors)
        way_out = f"{command}; lint.allow=[KEY] lets an unknown key through" if new else command
        raise UserError("\n".join([f"{path} has errors:", *(_line(finding) for finding in errors), way_out]))
    if file.note:
        notes.insert(0, file.note)
    # Read once more for glmexp, which is not the Trainer; "auto" and what the file lacks are told by the conversion.
    told = [one for one in let_through(lint(config, Situation()), allow) if one.severity is not Severity.error]
    findings = [_line(finding) for finding in told if finding.kind is not Kind.auto and view.has(finding.key)]
    return Linted(config, notes, findings)


def _line(finding: Finding) -> str:
    return f"{printable(finding.key)}: {finding.message}"
