"""What two runs have in common that are the same trial."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmexp.config.checkpoint import resume_path, validates
from glmexp.config.choices import Task
from glmexp.config.data_files import all_files
from glmexp.config.files import leaves, to_values
from glmexp.config.measure import initialisation, random_tokens
from glmexp.config.schema import Config
from glmexp.trial.placement import Placement

HASHED_PACKAGES = ("torch", "deepspeed")
NOT_HASHED = (
    *("tracker", "launch", "lint", "lang", "sweep"),
    *("train.resume", "train.stop_after", "checkpoint.every", "checkpoint.keep"),
)
"""Groups and fields that do not change the outcome. Ranks and device of ``launch`` do, and are added as they turned out; so is
a checkpoint that ``train.resume`` begins from."""
DEFAULTS = dict(leaves(to_values(Config())))
"""Dotted key -> the schema's default, which is left out: a field that is added later leaves the digits of earlier runs."""
IN_DS_CONFIG = ("zero", "offload", "scaler", "batch", "comm", "optimizer", "deepspeed")
"""Groups that reach the ranks through ``ds_config.json`` alone, where a setting that has no effect leaves no trace."""


def config_hash(config: Config, ds_config: Mapping[str, Any], placement: Placement, versions: Mapping[str, str | None]) -> str:
    """16 hex digits over all that changes the outcome of a run, so that equal digits mean the same trial.

    Covers the config but tracker, limits of time, sweep, language, lint and how a run is cut into sessions, with what DeepSpeed
    is told in the form of ``ds_config``: however a setting was spelt or derived, equal effect gives equal digits. Also the
    checkpoint that ``train.resume`` begins from, ranks, nodes, device, versions of torch and DeepSpeed; and size and time of
    every data file and of the files in a local model folder.
    """
    values = to_values(config)
    for name in (*NOT_HASHED, *IN_DS_CONFIG):
        group, _, field = name.partition(".")
        del (values[group] if field else values)[field or group]
    values["model"]["init"] = initialisation(config).value
    if config.task is not Task.measure:
        del values["measure"]
    else:
        values["train"] = {"seed": config.train.seed}  # the steps are measure's own, and nothing is saved
        del values["checkpoint"]
    values["eval"] = {name: values["eval"][name] for name in _evaluated(config)}
    if config.task is Task.measure and random_tokens(config):
        values["data"] = {"max_length": config.data.max_length}
    if not config.hardware.emulate:
        del values["hardware"]
    content = {
        **{name: value for name, value in leaves(values) if name not in DEFAULTS or value != DEFAULTS[name]},
        "ds_config": ds_config,
        "resume": None if config.task is Task.measure else resume_path(config),
        "world_size": placement.machine.world_size,
        "nodes": placement.nodes,
        "device": [placement.machine.device, placement.device_name],
        "versions": {name: versions.get(name) for name in HASHED_PACKAGES},
        "files": [_stamp(path) for path in _files(config)],
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _evaluated(config: Config) -> tuple[str, ...]:
    """The fields of ``eval`` that decide what is scored, and what follows from the scores."""
    if config.task is Task.measure or not validates(config):
        return ()
    generating = ("generate", "metrics", "max_new_tokens", "temperature", "top_p", "seed") if config.eval.generate else ()
    return (*generating, *(("every", "patience") if config.checkpoint.best is not None else ()))


def _files(config: Config) -> list[Path]:
    files = [] if random_tokens(config) else all_files(config.data)
    model = Path(config.model.path)
    if model.is_dir():
        files += sorted(path for path in model.iterdir() if path.is_file())
    return files


def _stamp(path: Path) -> list[Any]:
    try:
        status = path.stat()
    except OSError:
        return [path.name, None, None]
    return [path.name, status.st_size, status.st_mtime_ns]
