"""``python -m glmexp convert FILE``: the overrides that reproduce a DeepSpeed JSON, any project's."""

import shlex
import sys
from collections.abc import Sequence

from glmexp.config.errors import USER_ERROR, UserError
from glmexp.dsconfig.allow import allowed
from glmexp.dsconfig.convert.file import load
from glmexp.dsconfig.convert.overrides import convert

HELP = """usage: python -m glmexp convert FILE [lint.allow=[KEY,...]]

Prints the overrides that reproduce a DeepSpeed JSON config of any project, one a line and quoted for a shell. What they leave
open ("auto"), and what has no counterpart in glmexp, is said on standard error. FILE may be - for standard input.

deepspeed_json=FILE among the overrides of a run does the same, and computes "auto" from the run's model:

  python -m glmexp check deepspeed_json=FILE

Exits with 2 if the file has errors; python -m glmexp lint FILE lists them with everything else."""


def main(arguments: Sequence[str]) -> int:
    """Prints the overrides and returns the exit code; raises UserError for a file that cannot be reproduced."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0 if arguments else USER_ERROR
    if any(word.partition("=")[0] == "--for" for word in arguments):
        raise UserError('convert takes "auto" as it is; no --for is needed')
    let_through = [word for word in arguments if word.startswith("lint.allow=")]
    paths = [word for word in arguments if word not in let_through]
    flags = [word for word in paths if word.startswith("-") and word != "-"]
    if flags or len(paths) != 1:
        what = f"no such option: {flags[0]}" if flags else f"it takes one file, got {', '.join(paths) or 'none'}"
        raise UserError(f"convert: {what}\npython -m glmexp convert FILE, or - for standard input")
    linted = load(paths[0], allowed(let_through))
    converted = convert(linted.config)
    for text in [*converted.overrides, *let_through]:
        print(shlex.quote(text))
    for line in [*linted.notes, *linted.findings, *converted.notes]:
        print(f"note: {line}", file=sys.stderr)
    return 0
