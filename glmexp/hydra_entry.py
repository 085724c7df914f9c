"""The Hydra entry: one composed configuration, or many under ``--multirun``, each to its end."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.compose import VERSION_BASE, as_written, conf_dir, from_composition, register
from glmexp.config.errors import UserError
from glmexp.config.wording import from_hydra
from glmexp.dsconfig.convert import Expanded
from glmexp.sweep.session import SweepRefusedError, begin


def compose_and_run(flags: Sequence[str], expanded: Expanded, run_id: str) -> int:
    """Lets Hydra compose one configuration, or many under ``--multirun``, and runs each; raises UserError for a single one.

    ``flags`` come first: argparse takes the overrides of Hydra's command line in one run only.
    """
    register()
    os.environ["GLMEXP_RUN_ID"] = run_id
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them; worded() does that
    codes: list[int] = []
    failed: list[Exception] = []

    def task(composed: DictConfig) -> float | None:
        node = HydraConfig.get()
        assert isinstance(node, DictConfig)
        if node.mode is RunMode.MULTIRUN:  # here only with a launcher that is not glmexp's own
            from glmexp.sweep.alone import run_alone

            return run_alone(composed, node)
        try:
            codes.append(run_one(composed, node, expanded))
        except Exception as error:  # not raised through Hydra, which would print a line of its own about it
            failed.append(error)
        return None

    sys.argv = [sys.argv[0], *flags, *expanded.overrides]
    entry: Callable[[], None] = hydra.main(version_base=VERSION_BASE, config_path=conf_dir(), config_name="config")(task)
    session = begin(expanded)
    try:
        entry()
    except SweepRefusedError as refused:
        session.abandon()
        raise refused.error from refused.__cause__
    except BaseException:  # Ctrl-C while the trials are composed, too
        session.abandon()
        raise
    if failed:
        raise failed[0]
    return codes[0] if codes else session.exit_code()


def run_one(task: DictConfig, node: DictConfig, expanded: Expanded) -> int:
    """One configuration, to its end; the exit code."""
    from glmexp.sweep.callback import folder_given
    from glmexp.trial.tasks import run_task

    folder = Path(node.runtime.output_dir)
    overrides = as_written(node.overrides.task)
    try:
        composed = from_composition(task, node)
        composed = replace(composed, sources=expanded.relabel(composed.sources))
        return run_task(composed, folder, overrides, given=folder_given(node, "run") is not None)
    except (UserError, OmegaConfBaseException) as raised:
        error = raised if isinstance(raised, UserError) else from_hydra(raised)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise error from raised.__cause__
