"""A saved configuration as an experiment: the options and values that compose to it, and no more.

Composition itself is not run, since Hydra cannot be entered twice and a sweep runs inside it. What the options hold is merged
on the schema here, as Hydra does it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from glmexp.config.choices import Init, Task
from glmexp.config.compose import conf_dir
from glmexp.config.files import to_values
from glmexp.config.schema import Config

LEFT_OUT = ("task", "lang", "tracker", "sweep", "measure")
"""They say what a run is for, not what it trains."""
OF_LAUNCH = ("backend", "device", "ranks", "nodes")
"""The other fields of ``launch`` are limits of time, which suit a short run."""


def experiment(config: Config, picked: Mapping[str, str], kept: Iterable[str] = ()) -> dict[str, Any]:
    """The content of an experiment file that composes to ``config`` in all that it trains.

    ``picked`` are the overrides of the trial, key -> value: an option that was named there is named again. For the other
    groups the option that comes closest is taken. ``model.init=random`` is left out after ``measure``, where it saves the
    reading of weights, unless the model's own option says so.

    ``kept`` are keys of values that are written even where they are the default, since they were chosen.
    """
    wanted = _wanted(config)
    options = _options(wanted, picked)
    own = _plain(OmegaConf.merge({}, *(_at(wanted, key.split(".")) for key in kept)))
    # A value may follow from another one, as optimizer.lr from the model: the second round sees what the first has changed.
    while missing := _differences(wanted, _wanted_part(_composed(options, own))):
        merged = _plain(OmegaConf.merge(OmegaConf.create(own), OmegaConf.create(missing)))
        if merged == own:
            break
        own = merged
    if config.task is Task.measure and own.get("model", {}).get("init") == Init.random.value:
        del own["model"]["init"]
    shipped = _defaults()
    named = [group for group, option in options.items() if group in wanted and (group in picked or option != shipped[group])]
    defaults = [{f"override /{group}": options[group]} for group in named]
    return {**({"defaults": defaults} if defaults else {}), **{name: value for name, value in own.items() if value != {}}}


def _wanted(config: Config) -> dict[str, Any]:
    return _wanted_part(to_values(config))


def _wanted_part(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name not in LEFT_OUT}
    if not kept["hardware"]["emulate"]:
        del kept["hardware"]  # it is the card that the sweep was asked about, not one to run on
    return {**kept, "launch": {name: value for name, value in kept["launch"].items() if name in OF_LAUNCH}}


def _at(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The single value at a path of keys, nested; empty where there is none, as for a group's own name."""
    name, *rest = path
    value = values.get(name, {})
    if isinstance(value, dict):
        inner = _at(value, rest) if rest else {}
        return {name: inner} if inner else {}
    return {} if rest else {name: _literal(value)}


def _options(wanted: Mapping[str, Any], picked: Mapping[str, str]) -> dict[str, str]:
    """Group -> its option: the one named in the overrides, else the one with the fewest differing values."""
    chosen = {}
    for group, shipped in _defaults().items():
        names = sorted(path.stem for path in (Path(conf_dir()) / group).glob("*.yaml"))
        if picked.get(group) in names:
            chosen[group] = picked[group]
        elif group in wanted:
            values = wanted[group]

            def distance(
                name: str, group: str = group, shipped: str = shipped, values: dict[str, Any] = values
            ) -> tuple[int, bool, str]:
                return _count(_differences(values, _plain(_option(group, name)))), name != shipped, name

            chosen[group] = min(names, key=distance)
    return chosen


@cache
def _defaults() -> dict[str, str]:
    """Group -> the option that ``config.yaml`` starts from."""
    entries = OmegaConf.to_container(OmegaConf.load(Path(conf_dir()) / "config.yaml"), resolve=False)["defaults"]  # type: ignore[index,call-overload]
    pairs = {group: option for entry in entries if isinstance(entry, dict) for group, option in entry.items()}
    sections = {name for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}
    return {
        group: option for group, option in pairs.items() if group in sections and option is not None and group not in LEFT_OUT
    }


@cache
def _option(group: str, name: str) -> DictConfig:
    """What one option of a group holds, on the group's schema."""
    file = OmegaConf.load(Path(conf_dir()) / group / f"{name}.yaml")
    merged = OmegaConf.merge(OmegaConf.structured(get_type_hints(Config)[group]), file)
    assert isinstance(merged, DictConfig)
    return merged


def _composed(options: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of the options with the own values on top, interpolations resolved."""
    main = OmegaConf.load(Path(conf_dir()) / "config.yaml")
    assert isinstance(main, DictConfig)
    fields = {name: value for name, value in main.items() if name not in ("defaults", "hydra")}
    groups = {group: _option(group, name) for group, name in options.items()}
    merged = OmegaConf.merge(OmegaConf.structured(Config), groups, fields, own)
    return _plain(merged, resolve=True)


def _plain(node: Any, resolve: bool = False) -> dict[str, Any]:
    values = OmegaConf.to_container(node, resolve=resolve, enum_to_str=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``wanted`` that ``found`` lacks or has otherwise, nested, as they are written in YAML."""
    missing: dict[str, Any] = {}
    for key, value in wanted.items():
        other = found.get(key)
        if isinstance(value, dict) and isinstance(other, dict) and value:
            if inner := _differences(value, other):
                missing[key] = inner
        elif key not in found or value != other or type(value) is not type(other):
            missing[key] = _literal(value)
    return missing


def _literal(value: Any) -> Any:
    """A value in which nothing is left to interpolate."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value


def _count(values: Any) -> int:
    return sum(map(_count, values.values())) if isinstance(values, dict) and values else 1 if values != {} else 0
