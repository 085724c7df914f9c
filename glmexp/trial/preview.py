"""The ``preview`` verb on the parent's side: compose, let a child tokenise, pass on what it says."""

from collections.abc import Sequence

from glmexp.config.compose import compose
from glmexp.config.errors import UserError
from glmexp.dsconfig.convert import Expanded
from glmexp.trial.tasks import check_inputs
from glmexp.trial.use import ask

WORKER = "glmexp.train.preview"


def preview(flags: Sequence[str], expanded: Expanded) -> int:
    """Prints some samples as the model would be trained on them; returns the exit code, raises UserError."""
    config = compose(expanded.overrides, config_dir("preview", flags)).config
    check_inputs(config)
    return ask(WORKER, config, {})


def config_dir(verb: str, flags: Sequence[str]) -> str | None:
    """The folder of ``--config-dir``; the other flags of Hydra have no use here."""
    found = None
    for index, flag in enumerate(flags):
        if flag in ("--config-dir", "-cd") and index + 1 < len(flags):
            found = flags[index + 1]
        elif flag.startswith("--config-dir="):
            found = flag.partition("=")[2]
        elif flag.startswith("-") and flag not in ("--config-dir", "-cd"):
            raise UserError(f"{verb} {flag}: {verb} takes overrides and --config-dir DIR alone")
    return found
