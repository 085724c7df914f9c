"""Hydra's callback: takes the sweep's folder before the first trial, whichever launcher and sweeper follow."""

import os
import re
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.choices import Order, Search
from glmexp.config.compose import LAUNCHER
from glmexp.config.errors import UserError
from glmexp.config.rules import MOST_LINES, out_of_range
from glmexp.config.wording import from_hydra
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.parent import PARENT, this_process
from glmexp.sweep.session import SweepRefusedError, current

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class SweepCallback(Callback):
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Names, locks and opens the folder. Raises SweepRefusedError, since Hydra would turn a UserError into a warning."""
        try:
            refuse_settings_out_of_range(config)
            refuse_settings_without_effect(config)
            name_folder(config)
            folder = SweepFolder(Path(config.hydra.sweep.dir).absolute())
            folder.open(bool(config.sweep.resume))
            folder.save_settings(
                {
                    "objective": OmegaConf.select(config, "sweep.objective").value,
                    "gpu_memory_gib": config.sweep.gpu_memory_gib or config.hardware.gpu_memory_gib,
                    "lang": config.lang.value,
                    "swept": swept(config),
                }
            )
        except UserError as error:
            raise SweepRefusedError(error) from error
        except OmegaConfBaseException as error:
            raise SweepRefusedError(from_hydra(error)) from error
        except OSError as error:
            told = UserError(f"the sweep cannot write its folder: {error}\nname another place: hydra.sweep.dir=PATH")
            raise SweepRefusedError(told) from error
        current().folder = folder
        os.environ[PARENT] = this_process()


def swept(config: DictConfig) -> list[str]:
    """Keys that are given several values."""
    parser = OverridesParser.create()
    given = [*(f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items())]
    parsed = parser.parse_overrides([*given, *config.hydra.overrides.task])
    last = {item.key_or_group: item for item in parsed}  # the command line replaces a preset's values
    return [key for key, item in last.items() if item.is_sweep_override()]


def refuse_settings_out_of_range(config: DictConfig) -> None:
    """Once, and not for each trial."""
    problems = list(out_of_range(OmegaConf.to_object(config.sweep), "sweep."))
    if problems:
        raise UserError("\n".join(problems[:MOST_LINES]))


def refuse_settings_without_effect(config: DictConfig) -> None:
    """What only glmexp's own launcher does is not dropped in silence under another one."""
    if config.hydra.launcher.get("_target_") == LAUNCHER:
        return
    launcher = config.hydra.runtime.choices.get("hydra/launcher")
    wanted = {"slots": 1, "order": Order.grid, "search": Search.grid, "time_budget_minutes": None}
    for name, plain in wanted.items():
        if config.sweep[name] != plain:
            raise UserError(
                f"sweep.{name} has no effect with hydra/launcher={launcher}: that launcher starts the trials itself\n"
                f"leave sweep.{name} out, or leave out hydra/launcher"
            )


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
