"""Hydra's callback: takes the sweep's folder before the first trial, whichever launcher and sweeper follow."""

import os
import re
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.choices import Order, Search
from glmexp.config.compose import LAUNCHER, SWEEPER, as_written, conf_dir
from glmexp.config.errors import UserError
from glmexp.config.rules import MOST_LINES, out_of_range
from glmexp.config.wording import from_hydra
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.parent import PARENT, this_process
from glmexp.sweep.session import SweepRefusedError, current

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class SweepCallback(Callback):
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Names, locks and opens the folder. Raises SweepRefusedError, since Hydra would turn others into warnings."""
        try:
            refuse_settings_out_of_range(config)
            refuse_settings_without_effect(config)
            settings = {
                "objective": config.sweep.objective.value,
                "gpu_memory_gib": config.sweep.gpu_memory_gib or config.hardware.gpu_memory_gib,
                "lang": config.lang.value,
                "swept": swept(config),
            }
            name_folder(config)
            folder = SweepFolder(Path(config.hydra.sweep.dir).absolute())
            folder.open(bool(config.sweep.resume))
            current().folder = folder
            folder.save_settings(settings)
        except UserError as error:
            raise SweepRefusedError(error) from error
        except (OmegaConfBaseException, HydraException) as error:
            raise SweepRefusedError(from_hydra(error)) from error
        except OSError as error:
            told = UserError(f"the sweep cannot write its folder: {error}\nname another place: hydra.sweep.dir=PATH")
            raise SweepRefusedError(told) from error
        except Exception as error:
            raise SweepRefusedError(error) from error
        os.environ[PARENT] = this_process()


def swept(config: DictConfig) -> list[str]:
    """Keys that are given several values; raises UserError for an interval, which only a search of its own can go through."""
    sweeper = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
    assert isinstance(sweeper, dict)
    given = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    parsed = OverridesParser.create().parse_overrides([*given, *as_written(config.hydra.overrides.task)])
    last = {item.key_or_group: item for item in parsed}  # the command line replaces a preset's values
    for item in last.values():
        if item.is_interval_sweep() and sweeper["_target_"] == SWEEPER:
            hint = "give the values one by one, or a list of them with sweep.search=optuna"
            raise UserError(f"{item.input_line}: a grid has no values from an interval\n{hint}")
    return [key for key, item in last.items() if item.is_sweep_override()]


def refuse_settings_out_of_range(config: DictConfig) -> None:
    """Once, and not for each trial."""
    problems = list(out_of_range(OmegaConf.to_object(config.sweep), "sweep."))
    if problems:
        raise UserError("\n".join(problems[:MOST_LINES]))


def refuse_settings_without_effect(config: DictConfig) -> None:
    """What only glmexp's own launcher does is not dropped in silence under another one, nor what it has no need of."""
    sweeper, launcher = (config.hydra.runtime.choices.get(f"hydra/{name}") for name in ("sweeper", "launcher"))
    if config.hydra.launcher.get("_target_") == LAUNCHER:
        batch = config.hydra.sweeper.get("max_batch_size")
        if batch is not None and sweeper in ("glmexp", "basic"):
            raise UserError(
                f"hydra.sweeper.max_batch_size={batch}: a batch would wait for the end of the one before, and gains nothing\n"
                "leave it out; sweep.slots=N is how many trials run at once"
            )
        return
    wanted = {"slots": 1, "order": Order.grid, "search": Search.grid, "time_budget_minutes": None}
    for name, plain in wanted.items():
        if config.sweep[name] != plain:
            raise UserError(
                f"sweep.{name} has no effect with hydra/launcher={launcher}: that launcher starts the trials itself\n"
                f"leave sweep.{name} out, or leave out hydra/launcher"
            )


def name_folder(config: DictConfig) -> None:
    """``sweep.name`` below ``multirun/``, for this process and for those that compose the trials again."""
    name, given = config.sweep.name, folder_given(config.hydra)
    if name is None:
        if config.sweep.resume and given is None:
            raise UserError(
                "sweep.resume=true: which sweep? Each has a new folder unless it is named\n"
                "add sweep.name=NAME (the folder below multirun/), or hydra.sweep.dir=PATH"
            )
        return
    if given is not None:
        raise UserError(f"sweep.name={name} and hydra.sweep.dir={given} both name the folder; leave one out")
    if not SAFE_NAME.fullmatch(name):
        raise UserError(f"sweep.name={name}: a folder's name of letters, digits, dash, dot and underscore is wanted")
    with read_write(config.hydra):
        config.hydra.sweep.dir = f"multirun/{name}"
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir=multirun/{name}")


def folder_given(hydra: DictConfig, of: str = "sweep") -> str | None:
    """``hydra.sweep.dir`` (or ``hydra.run.dir``) as somebody has set it; None for the shipped one, which is new each time."""
    written, shipped = (
        OmegaConf.to_container(node, resolve=False)[of]["dir"]  # type: ignore[call-overload, index]
        for node in (hydra, OmegaConf.load(Path(conf_dir()) / "config.yaml").hydra)
    )
    return None if written == shipped else str(written)
