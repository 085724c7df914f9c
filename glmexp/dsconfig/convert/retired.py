"""Keys of DeepSpeed that have been retired, as what means the same today."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from glmexp.config.errors import UserError
from glmexp.config.zero import STAGES
from glmexp.dsconfig.table.shape import Key
from glmexp.dsconfig.table.zero import ZERO

RENAMED = {
    "bfloat16": "bf16",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
} | {
    f"zero_optimization.{key.alias}": f"zero_optimization.{name}"
    for name, key in ZERO.keys.items()
    if isinstance(key, Key) and key.alias
}
"""Old name, or second name, -> name. DeepSpeed still takes each."""


def _cpu(on: bool) -> dict[str, Any] | None:
    return {"device": "cpu"} if on else None


RETIRED: dict[str, tuple[str, Callable[[bool], Any]]] = {
    "zero_optimization.cpu_offload": ("zero_optimization.offload_optimizer", _cpu),
    "zero_optimization.cpu_offload_param": ("zero_optimization.offload_param", _cpu),
    "zero_optimization.cpu_offload_params": ("zero_optimization.offload_param", _cpu),
    "fp32_allreduce": ("communication_data_type", lambda on: "fp32" if on else None),
}
"""Switch -> (key, its value for true or false). DeepSpeed itself maps the first two still, and the others no longer."""

PINNING = "zero_optimization.cpu_offload_use_pin_memory"
"""Goes with the first two switches; DeepSpeed no longer reads it (its field has ``set_new_param`` false)."""


OVERRIDES = {
    "zero_optimization.cpu_offload": "offload=cpu",
    "zero_optimization.cpu_offload_param": "offload=cpu_all",
    "zero_optimization.cpu_offload_params": "offload=cpu_all",
    "fp32_allreduce": "comm.communication_data_type=fp32",
}
"""Switch -> the override that it is when it is on."""


def modern_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides with retired raw keys as what means the same today, and a line for each.

    Raises UserError where one says something else than an override beside it.
    """
    modern: list[str] = []
    lines: list[str] = []
    for text in overrides:
        name, equals, value = text.lstrip("+").partition("=")
        key = name.removeprefix("deepspeed.")
        new = _modern(text, key, value) if equals and key != name else text
        if new != text:
            lines.append(f"{text} is an old name: taken as {new}" if new else f"{text} is an old name and asks for nothing")
        modern += [new] if new else []
    if "offload=cpu_all" in modern and "offload=cpu_all" not in overrides and "offload=cpu" not in overrides:
        modern = [text for text in modern if text != "offload=cpu"]  # two switches of one thing
    for text in modern:
        other = next((one for one in modern if one.partition("=")[0] == text.partition("=")[0] and one != text), None)
        if text not in overrides and other is not None:
            raise UserError(f"{text} (from an old DeepSpeed key) and {other} say two things\nleave one of them out")
    return list(dict.fromkeys(modern)), lines


def _modern(text: str, key: str, value: str) -> str:
    """A raw override under today's name; empty if it asks for nothing."""
    if key in OVERRIDES or key == PINNING:
        if value.lower() not in ("true", "false"):
            raise UserError(
                f"{text}: true or false is due\nDeepSpeed has retired {key}: {OVERRIDES.get(key, 'offload.pin_memory')}"
            )
        if key == PINNING:
            return f"offload.pin_memory={value.lower()}"
        return OVERRIDES[key] if value.lower() == "true" else ""
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            name = new + key[len(old) :]
            field = name.removeprefix("zero_optimization.")
            return f"zero.{field}={value}" if field in STAGES else f"+deepspeed.{name}={value}"
    return text


def modernise(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The config without retired keys, and a line for each; raises UserError if a key is there in both forms."""
    modern, lines = deepcopy(dict(config)), []
    if isinstance(modern.get("zero_optimization"), bool):
        stage = int(modern["zero_optimization"])
        modern["zero_optimization"] = {"stage": stage}
        lines.append(f"zero_optimization={str(stage == 1).lower()} is an old form of zero_optimization.stage={stage}")
    pinned = _pop(modern, PINNING)
    for old, (new, meaning) in RETIRED.items():
        switch = _pop(modern, old)
        if switch is None:
            continue
        if not isinstance(switch, bool):
            raise UserError(f"{old}={switch!r}: true or false is due")
        value = meaning(switch)
        lines.append(f"{old} is retired; " + ("false asks for nothing" if value is None else f"taken as {new}={_shown(value)}"))
        if value is not None:
            _put(modern, old, new, value)
    if pinned is not None:
        lines.append(f"{PINNING} is retired; taken as pin_memory of what is offloaded")
        for section in ("offload_optimizer", "offload_param"):
            holder = modern.get("zero_optimization", {}).get(section)
            if isinstance(holder, dict):
                holder.setdefault("pin_memory", pinned)
    for old, new in RENAMED.items():
        value = _pop(modern, old)
        if value is not None:
            lines.append(f"{old} is another name of {new}")
            _put(modern, old, new, value)
    return modern, lines


def _shown(value: Any) -> str:
    return str(value["device"]) if isinstance(value, dict) else str(value)


def _holder(config: dict[str, Any], key: str) -> tuple[Any, str]:
    section, _, name = key.rpartition(".")
    return (config.get(section) if section else config), name


def _pop(config: dict[str, Any], key: str) -> Any:
    holder, name = _holder(config, key)
    return holder.pop(name, None) if isinstance(holder, dict) else None


def _put(config: dict[str, Any], old: str, new: str, value: Any) -> None:
    holder, name = _holder(config, new)
    if holder.get(name) is not None:
        raise UserError(f"{old} and {new} are one setting in two forms; leave the former out")
    holder[name] = value
