"""The ``preview`` verb on the parent's side: compose, let a child tokenise, pass on what it says."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from glmexp.config.compose import compose
from glmexp.config.errors import UserError
from glmexp.config.files import save
from glmexp.dsconfig.convert import Expanded
from glmexp.trial.record import CONFIG, PARENT_PID, State, read_rank
from glmexp.trial.tasks import check_inputs

WORKER = "glmexp.train.preview"


def preview(flags: Sequence[str], expanded: Expanded) -> int:
    """Prints some samples as the model would be trained on them; returns the exit code, raises UserError.

    Nothing is left behind: the child works in a temporary folder.
    """
    composed = compose(expanded.overrides, config_dir("preview", flags))
    check_inputs(composed.config)
    with tempfile.TemporaryDirectory(prefix="glmexp-preview-") as name:
        folder = Path(name)
        save(composed.config, folder / CONFIG)
        environ = {
            **os.environ,
            "TOKENIZERS_PARALLELISM": "true",
            "TRANSFORMERS_VERBOSITY": "error",
            PARENT_PID: str(os.getpid()),
        }
        code = subprocess.run([sys.executable, "-m", WORKER, name], env=environ, check=False).returncode
        record = read_rank(folder, 0)
    if record is not None and record.outcome is State.invalid:
        raise UserError(record.error or "the data or the model folder was refused")
    return code


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
