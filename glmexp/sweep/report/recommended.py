"""The files of the recommended trial: an experiment that runs as it is, and the DeepSpeed config for other programs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.choices import Language
from glmexp.config.files import load
from glmexp.sweep.report.answer import figures, one_line
from glmexp.sweep.report.experiment import experiment
from glmexp.sweep.report.files import write_whole
from glmexp.sweep.report.trainer import arguments, for_trainer
from glmexp.sweep.report.trials import Settings, Trial
from glmexp.sweep.report.wording import say
from glmexp.trial import record

EXPERIMENT = "recommended.yaml"
DS_CONFIG = "recommended_ds_config.json"
HF_CONFIG = "recommended_ds_config.hf.json"
LENGTH = "data.max_length"
ALL = (EXPERIMENT, DS_CONFIG, HF_CONFIG)


def write_recommended(trial: Trial | None, swept: Sequence[str], settings: Settings, folder: Path) -> dict[str, Any] | None:
    """Writes the three files, or removes what an earlier report recommended; returns the trial's DeepSpeed dict.

    Nothing is written while the same trial is recommended with the same figures. None without a trial, or if its own files are
    gone or of a version that this one does not read.
    """
    ds_config = None if trial is None else _ds_config(folder / trial.name)
    if trial is None or ds_config is None:
        _remove(folder)
        return None
    head = _head(trial, swept, settings, folder)
    chosen = [key for key in (*swept, LENGTH) if key in trial.values]
    if _starts_with(folder / EXPERIMENT, head) and all((folder / name).is_file() for name in ALL):
        return ds_config
    try:
        content = experiment(load(folder / trial.name / record.CONFIG), trial.values, chosen)
    except (ValueError, OSError, RecursionError, yaml.YAMLError, OmegaConfBaseException):  # no file that glmexp wrote
        _remove(folder)
        return None
    write_whole(folder / EXPERIMENT, head, OmegaConf.to_yaml(OmegaConf.create(content)) if content else "")
    write_whole(folder / DS_CONFIG, json.dumps(ds_config, indent=2, ensure_ascii=False))
    write_whole(folder / HF_CONFIG, json.dumps(for_trainer(ds_config), indent=2, ensure_ascii=False))
    return ds_config


def next_steps(ds_config: Mapping[str, Any] | None, folder: Path, lang: Language) -> list[str]:
    """How the recommendation is run, here and by the HF Trainer; ``ds_config`` is what ``write_recommended`` gave."""
    if ds_config is None:
        return []
    return [
        say(lang, "run it", file=folder / EXPERIMENT),
        say(lang, "json", plain=DS_CONFIG, hf=HF_CONFIG, arguments=arguments(ds_config)),
    ]


def _head(trial: Trial, swept: Sequence[str], settings: Settings, folder: Path) -> str:
    limit = f", sweep.gpu_memory_gib={settings.gpu_memory_gib:g}" if settings.gpu_memory_gib else ""
    ranks = trial.result.world_size
    where = f"{ranks} rank{'s' if ranks != 1 else ''}" + (f" of {one_line(trial.device)}" if trial.device else "")
    # What was swept is known when the second trial has ended, and decides what is written below.
    keys = f"# Swept: {one_line(' '.join(swept))}\n" if swept else ""
    measured = LENGTH in trial.values and not trial.trained
    length = f"# {LENGTH}={one_line(trial.values[LENGTH])} is that of the measurement: set yours\n" if measured else ""
    return (
        "# @package _global_\n"
        f"# Recommended by the sweep {one_line(folder.resolve().name)} for sweep.objective={settings.objective.value}{limit}:\n"
        f"# trial {trial.name} ({trial.state.value}), {figures(trial, Language.en)}, on {where}.\n"
        f"# Overrides: {one_line(' '.join(map(str, trial.result.overrides)))}\n"
        f"{keys}{length}"
    )


def _starts_with(path: Path, head: str) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(head)
    except (OSError, ValueError):
        return False


def _ds_config(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / record.DS_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return dict(content) if isinstance(content, Mapping) else None


def _remove(folder: Path) -> None:
    for name in ALL:
        (folder / name).unlink(missing_ok=True)
