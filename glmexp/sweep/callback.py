"""Hydra's callback: takes the sweep's folder before the first trial, whichever launcher and sweeper follow."""

import re
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from glmexp.config.errors import UserError
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.session import SweepRefusedError, current

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class SweepCallback(Callback):
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Names, locks and opens the folder. Raises SweepRefusedError, since Hydra would turn a UserError into a warning."""
        try:
            name_folder(config)
            folder = SweepFolder(Path(config.hydra.sweep.dir).absolute())
            folder.open(bool(config.sweep.resume))
        except UserError as error:
            raise SweepRefusedError(error) from error
        folder.save_settings(
            {
                "objective": OmegaConf.select(config, "sweep.objective").value,
                "gpu_memory_gib": config.sweep.gpu_memory_gib,
                "lang": config.lang.value,
            }
        )
        current().folder = folder


def name_folder(config: DictConfig) -> None:
    """``sweep.name`` below ``multirun/``, for this process and for those that compose the trials again."""
    name = config.sweep.name
    by_dir = [text for text in config.hydra.overrides.hydra if text.startswith("hydra.sweep.dir=")]
    if name is None:
        if config.sweep.resume and not by_dir:
            raise UserError(
                "sweep.resume=true: which sweep? Each has a new folder unless it is named\n"
                "add sweep.name=NAME (the folder below multirun/), or hydra.sweep.dir=PATH"
            )
        return
    if by_dir:
        raise UserError(f"sweep.name={name} and {by_dir[0]} both name the folder; leave one out")
    if not SAFE_NAME.fullmatch(name):
        raise UserError(f"sweep.name={name}: a folder's name of letters, digits, dash, dot and underscore is wanted")
    with read_write(config.hydra):
        config.hydra.sweep.dir = f"multirun/{name}"
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir=multirun/{name}")
