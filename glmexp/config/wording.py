"""Errors of Hydra and OmegaConf in the user's own words, with the nearest name that exists."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from glmexp.config.errors import UserError, nearest
from glmexp.config.schema import Config

SYNONYMS = {
    "learning_rate": "optimizer.lr",
    "batch_size": "batch.micro",
    "train_batch_size": "batch.total",
    "train_micro_batch_size_per_gpu": "batch.micro",
    "per_device_train_batch_size": "batch.micro",
    "gradient_accumulation_steps": "batch.accumulation",
    "accum": "batch.accumulation",
    "gradient_clipping": "train.grad_clip",
    "max_grad_norm": "train.grad_clip",
    "num_train_epochs": "train.epochs",
    "seed": "train.seed",
    "max_steps": "train.max_steps",
    "warmup": "scheduler.warmup_steps",
    "lora_rank": "method.rank",
    "lora_alpha": "method.alpha",
    "gradient_checkpointing": "activation.checkpoint",
    "nproc_per_node": "launch.ranks",
    "num_gpus": "launch.ranks",
}
"""Names of other trainers for what glmexp calls otherwise."""

REFUSALS = {
    "device_map": "glmexp never sets a device map: ZeRO and the ranks decide where weights live",
    "low_cpu_mem_usage": "glmexp loads weights in a way that ZeRO-3 partitions; there is nothing to set",
    "trust_remote_code": "glmexp never runs a model folder's Python; ChatGLM2, ChatGLM3 and GLM-4 load natively",
    "load_in_4bit": "glmexp does not quantise a full or LoRA run",
    "load_in_8bit": "glmexp does not quantise a full or LoRA run",
}
"""Keys that people try and that glmexp leaves out on purpose."""

OWN = {
    "model": "; for a folder or hub id: model=auto model.path={}",
    "data": "; for a file: data.path={}",
    "experiment": "; --config-dir DIR adds your own, DIR/experiment/{}.yaml",
}
"""Group -> how what is no option of it may be meant."""


def known_keys(schema: type = Config, prefix: str = "") -> list[str]:
    """Every dotted key of the schema."""
    names = []
    for name, kind in get_type_hints(schema).items():
        names.append(f"{prefix}{name}")
        if isinstance(kind, type) and is_dataclass(kind):
            names += known_keys(kind, f"{prefix}{name}.")
    return names


def unknown_key(key: str) -> str:
    """One line for a key that the schema lacks: the nearest key, or those of its group."""
    if key.startswith("deepspeed."):
        return f"{key}: a raw DeepSpeed key is added with a plus sign: +{key}=..."
    last = key.split(".")[-1]
    if last in REFUSALS:
        return f"{key}: {REFUSALS[last]}; remove it"
    known = [*known_keys(), "deepspeed_json"]  # the latter stands for overrides and is no field
    if key == "deepspeed_json":
        return "deepspeed_json: is for the command line alone: deepspeed_json=FILE"
    if last in SYNONYMS:
        return f"{key}: unknown key; did you mean {SYNONYMS[last]}?"
    parent = key.rpartition(".")[0]
    same = [name for name in known if name.rpartition(".")[2] == last]
    if not parent and len(same) == 1:  # the name of a field without its group
        return f"{key}: unknown key; did you mean {same[0]}?"
    siblings = [name for name in known if name.rpartition(".")[0] == parent]
    close = nearest(key, siblings if parent and siblings else known) or nearest(key, known)
    if close:
        return f"{key}: unknown key; did you mean {close}?"
    if siblings:
        return f"{key}: unknown key; known here: {', '.join(siblings)}"
    return f"{key}: unknown key; groups: {', '.join(name for name in known if '.' not in name)}"


def no_option(group: str, value: str, options: Sequence[str]) -> str:
    """Two lines for a value that can be no name of an option, such as a number."""
    told = f"{group}={value}: {group} is a group and takes one option{_meant(group, value, options)}"
    return f"{told}\noptions of {group}: {', '.join(sorted(options))}; its fields are set one by one: {group}.FIELD=..."


def _meant(group: str, value: str, options: Sequence[str]) -> str:
    """``; did you mean zero=stage2?``, or how what is no option may be meant."""
    close = next((name for name in options if name.endswith(value)), None) if value.isdigit() else nearest(value, options)
    return f"; did you mean {group}={close}?" if close else OWN.get(group, "").format(value)


def type_error(error: BaseException) -> str:
    """One line for a value of the wrong type: key, value and what was wanted."""
    cause: BaseException = error
    while cause.__cause__ is not None and not getattr(cause, "full_key", None):
        cause = cause.__cause__
    key = getattr(cause, "full_key", None) or getattr(error, "full_key", None)
    first = (str(getattr(cause, "msg", None) or cause) or type(cause).__name__).splitlines()[0]
    found = re.search(r"Value '(.*?)' of type '.*?' could not be converted to (\w+)", first)
    if found:
        first = f"{found[1]} is not {_noun(found[2])}"
    found = re.search(r"Value '(.*?)' is not a valid (\w+)", first)
    if found:
        first = f"{found[1]} is not {_noun(found[2])}"
    found = re.search(r"Invalid value '(.*?)', expected one of \[(.*)\]", first)
    if found:
        first = f"{found[1]} is not one of {found[2]}"
    first = _shape(key, first)
    return f"{key}: {first}" if key and key not in first else first


def _shape(key: str | None, message: str) -> str:
    """The message of OmegaConf about null, a list or an object where something else is due, in words; others as they are."""
    if found := re.search(r"field '(.*?)' is not Optional", message):
        return f"{found[1]}: null is no value here; leave it out"
    if found := re.search(r"(\w+) is not a subclass of \w+Config\. value: (.*)", message):
        return f"{found[2]} is no object; an option is chosen as `- override /GROUP: {found[2]}` under defaults:"
    if key and re.search(r"is not a ListConfig, list or tuple|Cannot merge DictConfig with ListConfig", message):
        return f"{key}: must be a list, as {key}=[...]" if _is_list(key) else f"{key}: must be an object, got a list"
    return message


def _is_list(key: str) -> bool:
    """Whether a dotted key of the schema holds a list."""
    kind: Any = Config
    for name in key.split("."):
        kind = get_type_hints(kind).get(name) if is_dataclass(kind) else None
    return list in (get_origin(kind), *map(get_origin, get_args(kind)))


def _noun(kind: str) -> str:
    nouns = {"Integer": "a whole number", "Float": "a number", "String": "text"}
    nouns |= dict.fromkeys(("Boolean", "bool"), "true or false")
    return nouns.get(kind, f"a {kind}")


def from_hydra(error: Exception) -> UserError:
    """A Hydra or OmegaConf error as one for the user."""
    text = str(error)
    if found := re.search(r"Could not find '((?:hydra/)?\w+)/([\w./-]+)'", text):
        options = re.search(r"Available options in '[\w/]+':\n((?:\t.*\n?)+)", text)
        names = options[1].split() if options else []
        hint = _meant(found[1], found[2], names)
        if not names:
            return UserError(f"{found[1]}={found[2]}: no such option; --config-dir DIR adds the folder that holds {found[1]}/")
        return UserError(f"{found[1]}={found[2]}: no such option{hint}\noptions of {found[1]}: {', '.join(names)}")
    if found := re.search(r"Could not override '([\w./@]+)'\. No match in the defaults list", text):
        return UserError(_unknown_group(found[1]))
    if found := re.search(r"Could not override '([\w./]+)'", text):
        cause = error.__cause__ or error.__context__
        kind = type(cause).__name__
        if found[1] == "deepspeed":
            return UserError("deepspeed: give one key at a time, as +deepspeed.zero_optimization.sub_group_size=1e8")
        if kind in ("ConfigAttributeError", "ConfigKeyError") or cause is None:
            return UserError(unknown_key(found[1]))
        return UserError(type_error(cause))
    if found := re.search(r"Error merging override (.+)", text):
        return UserError(type_error(error.__cause__ or error.__context__ or error) + f" (in {found[1]})")
    if found := re.search(r"In '([\w/.-]+)': (\w*)Error", text):
        cause = error.__cause__ or error.__context__ or error
        if getattr(cause, "full_key", None) == "experiment":
            return UserError(f"in {found[1]}.yaml: its first line must be `# @package _global_`, without a byte order mark")
        missing = re.search(r"Key '(\w+)' not in '(\w+)'", str(cause))
        key = getattr(cause, "full_key", None)
        if missing:
            return UserError(f"in {found[1]}.yaml: {unknown_key(str(key or missing[1]))}")
        return UserError(f"in {found[1]}.yaml: {type_error(cause)}")
    if type(error).__name__ == "OverrideParseException":
        return UserError(_grammar(str(getattr(error, "override", "")), text))
    if "interpolation" in type(error).__name__.lower():
        return UserError(type_error(error))
    if getattr(error, "full_key", None):
        return UserError(type_error(error))
    if not text.strip():
        return UserError(type_error(error.__cause__ or error.__context__ or error))
    lines = [line for line in text.splitlines() if line.strip() and "To append to your config" not in line]
    return UserError("\n".join(lines[:5]))


def _unknown_group(name: str) -> str:
    groups = [key for key in known_keys() if "." not in key] + ["experiment"]
    close = nearest(name, [*groups, "deepspeed_json"])
    return f"{name}: no such group; " + (f"did you mean {close}?" if close else f"groups: {', '.join(groups)}")


def _grammar(override: str, text: str) -> str:
    """A value with characters of Hydra's grammar needs quotes: shows the quoted form of the override at fault."""
    key, separator, value = override.partition("=")
    if not separator:
        return f"{override}: an override is written key=value, and an option of a group group=option"
    if value.startswith(("'", '"')):
        return f"{override}: {text.splitlines()[0]}"
    reason = "the value has characters with a meaning of their own"
    if value.startswith(("[", "{")):
        reason = f"no list and no object: {text.splitlines()[0]}"
    escaped = value.replace('"', '\\"')
    return f"{override}: {reason}\nquote it: " + shlex.quote(f'{key}="{escaped}"')
