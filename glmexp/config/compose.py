"""Composes the config groups with Hydra into a typed Config, and tells where each value came from.

Hydra is imported where it is used: a rank imports this package to load a saved configuration and must not pay for Hydra.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.checkpoint import AUTO
from glmexp.config.choices import Source
from glmexp.config.data_files import absolute_files
from glmexp.config.errors import UserError
from glmexp.config.files import from_composed, leaves
from glmexp.config.rules import check_sources
from glmexp.config.schema import Config
from glmexp.config.secrets import refuse_secrets
from glmexp.config.wording import from_hydra, no_option

LAUNCHER = "hydra_plugins.glmexp.GlmexpLauncher"
SWEEPER = "hydra_plugins.glmexp.GlmexpSweeper"
VERSION_BASE = "1.3"
NO_OPTION = re.compile(r"""$|[-+.\d\[{]|(null|true|false|nan|inf|''|"")$""")
EXPERIMENT_MAY_SET = ("mode", "sweeper.params", "run.dir", "sweep.dir")


@dataclass(frozen=True)
class Composed:
    config: Config
    sources: dict[str, str]
    """Dotted key -> ``zero=stage2`` (a group option), ``experiment=NAME``, ``command line: ...`` or ``config.yaml``."""


def conf_dir() -> str:
    """The shipped ``conf/``: inside the package in a wheel, beside it in a checkout or an editable install."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return str(inside if (inside / "config.yaml").is_file() else package.parent / "conf")


def register() -> None:
    """Tells Hydra the schema that ``config.yaml`` starts from, and where the launcher and the sweeper that it names are."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Config, provider="glmexp")
    store.store(group="hydra/launcher", name="glmexp", node={"_target_": LAUNCHER}, provider="glmexp")
    sweeper = {"_target_": SWEEPER, "max_batch_size": None, "params": None}
    store.store(group="hydra/sweeper", name="glmexp", node=sweeper, provider="glmexp")


def compose(overrides: Sequence[str], config_dir: str | None = None) -> Composed:
    """The configuration for ``overrides`` (Hydra's own syntax); raises UserError.

    ``config_dir`` is a folder with more options of the groups, as ``--config-dir`` on the command line.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    check_overrides(overrides)
    register()
    extra = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    try:
        with initialize_config_dir(version_base=VERSION_BASE, config_dir=conf_dir(), job_name="glmexp"):
            composed = hydra_compose("config", [*extra, *overrides], return_hydra_config=True)
            return from_composition(composed, composed.hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise from_hydra(error) from error


def from_composition(task: DictConfig, hydra: DictConfig) -> Composed:
    """The typed configuration of what Hydra composed; ``hydra`` is Hydra's own node. Raises UserError."""
    experiment = _experiment_leaves(hydra)
    overrides = as_written(hydra.overrides.task)
    _refuse_shadowed_choices(overrides, hydra.runtime.choices, experiment)
    values = _resolve(task)
    config = from_composed(task, absolute_paths(values))
    sources = _sources(values, overrides, hydra.runtime.choices, experiment)
    check_sources(config, sources)
    return Composed(config, sources)


def as_written(overrides: ListConfig) -> list[str]:
    """Hydra's list of overrides: one such as data.path=${oc.env:HOME}/x would be interpolated when the list is read."""
    content = OmegaConf.to_container(overrides, resolve=False)
    assert isinstance(content, list)
    return [str(text) for text in content]


def check_overrides(overrides: Sequence[str]) -> None:
    """Raises UserError for overrides that Hydra must not see: secrets, and values where the name of an option is due."""
    refuse_secrets(overrides)
    sections = {name for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}
    groups = (sections - {"train", "measure", "lint"}) | {"experiment"}
    for override in overrides:
        if override.startswith("="):
            raise UserError(f"{override}: an override is written key=value")
        key, separator, value = override.lstrip("+").partition("=")
        if separator and key in sections - groups - {"deepspeed"} and not value.startswith("{"):
            raise UserError(f"{override}: {key} holds fields\nset them one by one: {key}.FIELD=...")
        if separator and key in groups and NO_OPTION.match(value.strip().lower()):
            raise UserError(no_option(key, value, [path.stem for path in Path(conf_dir(), key).glob("*.yaml")]))


def absolute_paths(values: dict[str, Any], start: Path | None = None) -> dict[str, Any]:
    """``values`` with the paths in them made absolute, relative to the folder of the call.

    They are data.path and data.eval_path, offload.nvme_path, a local model.path, and train.resume where it is not ``auto``.
    """
    here = start or Path.cwd()

    def absolute(path: str) -> str:
        return os.path.normpath(here / os.path.expanduser(path))  # a ~ of nobody stays

    def local(path: str) -> bool:
        return path.startswith((".", "/", "~")) or os.path.isdir(here / path)  # false for a name too long

    data, model, offload, train = (dict(values.get(group, {})) for group in ("data", "model", "offload", "train"))
    if data.get("source") == Source.hub.name:
        if isinstance(data.get("path"), str) and local(data["path"]):
            data["path"] = absolute(data["path"])
    else:
        data |= {name: absolute_files(data[name], here) for name in ("path", "eval_path") if name in data}
    if isinstance(offload.get("nvme_path"), str) and offload["nvme_path"].strip():
        offload["nvme_path"] = absolute(offload["nvme_path"])
    if isinstance(model.get("path"), str):
        path = model["path"]
        if local(path) and path != "tiny":
            model["path"] = absolute(path)
    if isinstance(train.get("resume"), str) and train["resume"].strip() and train["resume"] != AUTO:
        train["resume"] = absolute(train["resume"])
    return {**values, "data": data, "model": model, "offload": offload, "train": train}


def _resolve(task: DictConfig) -> dict[str, Any]:
    """Plain values with every interpolation replaced; each one that cannot be is told by its key."""
    unresolved = _plain_values(task, resolve=False)
    refuse_secrets([str(value) for _, value in leaves(unresolved)])
    for key, value in leaves(unresolved):
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.select(task, key)
            except OmegaConfBaseException as error:
                reason = str(error).splitlines()[0]
                raise UserError(f"{key}={value}: {reason}\nset {key} to a value, or the variable that it names") from error
    missing = sorted(key for key, value in leaves(unresolved) if value == "???")
    if missing:
        raise UserError("\n".join(f"{key} is not set: add {key}=..." for key in missing[:5]))
    values = _plain_values(task, resolve=True)
    refuse_secrets([str(value) for _, value in leaves(values)])  # a variable of any name may hold a URL with credentials
    return values


def _plain_values(task: DictConfig, resolve: bool) -> dict[str, Any]:
    """Nested dicts and lists of what was composed, without Hydra's own node, whose interpolations only Hydra resolves."""
    if not resolve:
        values = OmegaConf.to_container(task, resolve=False, enum_to_str=True)
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items() if key != "hydra"}
    return {
        str(name): OmegaConf.to_container(value, resolve=True, enum_to_str=True)
        if OmegaConf.is_config(value := task[name])
        else (value.name if isinstance(value, Enum) else value)
        for name in task
        if name != "hydra"
    }


def _experiment_leaves(hydra: DictConfig) -> dict[str, str]:
    """Dotted key -> ``experiment=NAME`` for each value that the chosen experiments set themselves."""
    chosen = hydra.runtime.choices.get("experiment")
    names = [chosen] if isinstance(chosen, str) else list(chosen or [])
    folders = [Path(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    found: dict[str, str] = {}
    for name in names:
        file = next((path for folder in folders if (path := folder / "experiment" / f"{name}.yaml").is_file()), None)
        content = OmegaConf.to_container(OmegaConf.load(file), resolve=False) if file else {}
        assert isinstance(content, dict)
        for key, _ in leaves(content.get("hydra") or {}):
            if not key.startswith(EXPERIMENT_MAY_SET):
                allowed = ", ".join(EXPERIMENT_MAY_SET)
                raise UserError(f"experiment={name} sets hydra.{key}: an experiment may set only {allowed} there")
        own = (key for key, _ in leaves(content) if key.split(".")[0] not in ("hydra", "defaults"))
        found |= {key: f"experiment={name}" for key in own}
    return found


def _parse(overrides: Sequence[str], choices: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(key, the override as written, whether it picks a group's option) of each override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [
        (
            item.key_or_group.replace("/", "."),
            item.input_line or "",
            item.key_or_group in choices and isinstance(item.value(), str),
        )
        for item in parsed
    ]


def _refuse_shadowed_choices(overrides: Sequence[str], choices: Mapping[str, Any], experiment: Mapping[str, str]) -> None:
    for group, written, picks in _parse(overrides, choices):
        if not picks:
            continue
        for key, name in experiment.items():
            if key.split(".")[0] == group:
                raise UserError(
                    f"{written} and {name}: the experiment sets {key} itself, which would silently win over the chosen option\n"
                    f"override the values one by one ({key}=...), or leave {name} out"
                )


def _sources(
    values: dict[str, Any], overrides: Sequence[str], choices: Mapping[str, Any], experiment: Mapping[str, str]
) -> dict[str, str]:
    parsed = _parse(overrides, choices)
    direct = [(key, written) for key, written, picks in parsed if not picks]
    picked = {key for key, _, picks in parsed if picks}
    sources = {}
    for key, _ in leaves(values):
        group = key.split(".")[0]
        written = next((text for name, text in reversed(direct) if key == name or key.startswith(f"{name}.")), None)
        by_experiment = next((name for leaf, name in experiment.items() if key == leaf or key.startswith(f"{leaf}.")), None)
        if written is not None:
            sources[key] = f"command line: {written}"
        elif by_experiment is not None:
            sources[key] = by_experiment
        elif choices.get(group) is not None:
            option = f"{group}={_plain(choices[group])}"
            sources[key] = f"command line: {option}" if group in picked else option
        else:
            sources[key] = "config.yaml"
    return sources


def _plain(choice: Any) -> Any:
    return list(choice) if isinstance(choice, ListConfig) else choice
