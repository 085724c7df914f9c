"""The Hydra entry: one composed configuration, or many under ``--multirun``, each to its end."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.compose import VERSION_BASE, conf_dir, from_composition, register
from glmexp.config.errors import USER_ERROR, UserError
from glmexp.config.wording import from_hydra
from glmexp.dsconfig.convert import Expanded

INTERRUPTED = (129, 130, 143)


def told(error: UserError) -> int:
    """Prints a user's error; returns its exit code."""
    print(f"glmexp: {error}", file=sys.stderr)
    return USER_ERROR


def compose_and_run(flags: Sequence[str], expanded: Expanded, run_id: str) -> int:
    """Lets Hydra compose one configuration, or many under ``--multirun``, and runs each; raises UserError for a single one.

    ``flags`` come first: argparse takes the overrides of Hydra's command line in one run only.
    """
    register()
    os.environ["GLMEXP_RUN_ID"] = run_id
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them; worded() does that
    codes: list[int] = []
    failed: list[Exception] = []

    def task(composed: DictConfig) -> None:
        # Not raised through Hydra, which would print a line of its own about it; but a sweep ends there.
        try:
            codes.append(run_one(composed, expanded))
        except Exception as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            failed.append(error)

    sys.argv = [sys.argv[0], *flags, *expanded.overrides]
    entry: Callable[[], None] = hydra.main(version_base=VERSION_BASE, config_path=conf_dir(), config_name="config")(task)
    entry()
    if failed:
        raise failed[0]
    return overall(codes)


def run_one(task: DictConfig, expanded: Expanded) -> int:
    """One configuration, to its end; the exit code."""
    from glmexp.trial.tasks import run_task

    node = HydraConfig.get()
    assert isinstance(node, DictConfig)
    folder = Path(node.runtime.output_dir)
    overrides = [str(text) for text in OmegaConf.to_container(node.overrides.task, resolve=False)]  # type: ignore[union-attr]
    try:
        composed = from_composition(task, node)
        code = run_task(replace(composed, sources=expanded.relabel(composed.sources)), folder, overrides)
    except (UserError, OmegaConfBaseException) as raised:
        error = raised if isinstance(raised, UserError) else from_hydra(raised)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if node.mode is RunMode.MULTIRUN:  # one impossible combination does not end the sweep
            return told(error)
        raise error from raised.__cause__
    if code in INTERRUPTED and node.mode is RunMode.MULTIRUN:
        raise SystemExit(code)
    return code


def overall(codes: Sequence[int]) -> int:
    """The exit code of several runs: the first that is not 0, but a refused combination does not count beside one that ran."""
    return next((code for code in codes if code and not (code == USER_ERROR and 0 in codes)), 0)
