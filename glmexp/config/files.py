"""From plain values to a Config and back: the door that everything below Hydra takes."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import MISSING as OMEGACONF_MISSING
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from glmexp.config.errors import UserError
from glmexp.config.rules import check_values
from glmexp.config.schema import Config
from glmexp.config.wording import type_error, unknown_key


def leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key with its value; an empty dict is a leaf."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{name}.")
        else:
            yield name, value


def settings(path: Path) -> dict[str, Any]:
    """Dotted keys and values of a run's ``config.yaml``, unchecked; empty where it cannot be read."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, YAMLError, OmegaConfBaseException, UnicodeDecodeError, RecursionError):
        return {}
    return dict(leaves(content)) if isinstance(content, dict) else {}


def typed(value: Any) -> str:
    """A value as it is typed in an override."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def unknown_keys(values: dict[str, Any], schema: type = Config, prefix: str = "") -> Iterator[str]:
    """Dotted keys that the schema lacks; ``+key=value`` gets past Hydra's own check."""
    types = get_type_hints(schema)
    for key, value in values.items():
        if key not in types:
            yield from (name for name, _ in leaves({key: value}, prefix))
        elif is_dataclass(types[key]) and isinstance(value, dict):
            yield from unknown_keys(value, types[key], f"{prefix}{key}.")


def deleted_keys(values: dict[str, Any], schema: type = Config, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the schema that are not there, as after ``~key``."""
    types = get_type_hints(schema)
    for name in (item.name for item in fields(schema)):
        if name not in values:
            yield f"{prefix}{name}"
        elif is_dataclass(types[name]) and isinstance(values[name], dict):
            yield from deleted_keys(values[name], types[name], f"{prefix}{name}.")


def with_defaults(values: dict[str, Any], schema: type = Config) -> dict[str, Any]:
    """``values`` with the schema's default for each field that is not there, as of a file older than the field."""
    types = get_type_hints(schema)
    plain = {item.name: item.default for item in fields(schema) if item.default not in (OMEGACONF_MISSING, NO_DEFAULT)}
    return {
        **{name: default.name if isinstance(default, Enum) else default for name, default in plain.items()},
        **{
            name: with_defaults(value, types[name]) if is_dataclass(types.get(name)) and isinstance(value, dict) else value
            for name, value in values.items()
        },
    }


def from_values(values: dict[str, Any]) -> Config:
    """A checked Config from resolved plain values; raises UserError."""
    _refuse_unknown_and_deleted(values)
    try:
        config: Config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), values))  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise UserError(type_error(error)) from error
    _refuse_nested_items(config)
    check_values(config)
    return config


def from_composed(task: DictConfig, values: dict[str, Any]) -> Config:
    """A checked Config from what Hydra composed on the schema, whose types have been checked on the way; raises UserError.

    ``values`` are its resolved plain values, with the paths that the Config gets.
    """
    _refuse_unknown_and_deleted(values)
    try:
        config = Config(**{field.name: _to_object(task, field.name) for field in fields(Config)})
    except OmegaConfBaseException as error:
        raise UserError(type_error(error)) from error
    config = replace(
        config,
        data=replace(config.data, path=values["data"]["path"], eval_path=values["data"]["eval_path"]),
        model=replace(config.model, path=values["model"]["path"]),
        offload=replace(config.offload, nvme_path=values["offload"]["nvme_path"]),
        train=replace(config.train, resume=values["train"]["resume"]),
    )
    _refuse_nested_items(config)
    check_values(config)
    return config


def _refuse_nested_items(node: Any, prefix: str = "") -> None:
    """Raises UserError for a list or an object inside a list: OmegaConf checks plain items alone."""
    for name in (field.name for field in fields(node)):
        value = getattr(node, name)
        if is_dataclass(value):
            _refuse_nested_items(value, f"{prefix}{name}.")
        elif isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
            raise UserError(
                f"{prefix}{name}={value}: each item must be a plain value\nwrite {prefix}{name}=[...] with one level"
            )


def _to_object(task: DictConfig, name: str) -> Any:
    value = task[name]
    return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value


def _refuse_unknown_and_deleted(values: dict[str, Any]) -> None:
    unknown = list(unknown_keys(values))
    if unknown:
        raise UserError("\n".join(unknown_key(key) for key in unknown[:5]))
    deleted = list(deleted_keys(values))
    if deleted:
        raise UserError(
            f"{', '.join(deleted[:5])} was deleted: every field must be there; set it to a value instead of using ~"
        )


def to_values(config: Config) -> dict[str, Any]:
    """Plain nested dicts, lists, strings and numbers of a Config; enum members become their names."""
    values = _plain(config)
    assert isinstance(values, dict)
    return values


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def load(path: Path | str) -> Config:
    """Reads a saved ``config.yaml``; raises UserError for one that this version does not understand.

    A field that came after the file was written takes its default in the schema, which is what the run did without it.
    """
    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, UnicodeDecodeError, OmegaConfBaseException, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())[:400]}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a configuration: wanted a mapping, found a {type(values).__name__}")
    # What glmexp saves is resolved: in somebody else's file it could read a variable of this environment into a model card.
    if unresolved := next((key for key, value in leaves(values) if "${" in str(value)), None):
        raise UserError(f"{path}: {unresolved} holds an interpolation\nwrite the value itself")
    filled = with_defaults({str(key): value for key, value in values.items()})
    if absent := list(deleted_keys(filled)):
        raise UserError(
            f"{path} lacks {', '.join(absent[:5])}: another version of glmexp wrote it, or it was edited\n"
            "take that version, or add what the config.yaml of `python -m glmexp check` has there"
        )
    return from_values(filled)


def save(config: Config, path: Path | str) -> None:
    """Writes the resolved configuration as YAML that ``load`` reads back to an equal Config."""
    Path(path).write_text(OmegaConf.to_yaml(OmegaConf.create(to_values(config))), encoding="utf-8")
