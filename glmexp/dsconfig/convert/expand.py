"""``deepspeed_json=PATH`` and retired DeepSpeed keys on the command line, as the overrides that they stand for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glmexp.config.errors import UserError
from glmexp.dsconfig.allow import allowed
from glmexp.dsconfig.convert.file import load
from glmexp.dsconfig.convert.known import known
from glmexp.dsconfig.convert.overrides import Converted, convert
from glmexp.dsconfig.convert.retired import modern_overrides
from glmexp.dsconfig.convert.zero import HIDDEN_SIZE_RULES, ZERO
from glmexp.dsconfig.passthrough import place

NAME = "deepspeed_json"
MOST_LINES = 5


@dataclass(frozen=True)
class Expanded:
    overrides: list[str]
    """What Hydra gets."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of it, one line each."""
    origin: dict[str, str] = field(default_factory=dict)
    """Override -> ``deepspeed_json=PATH``, for those that a file stands for."""

    def relabel(self, sources: Mapping[str, str]) -> dict[str, str]:
        """``Composed.sources`` with ``deepspeed_json=PATH: zero=stage2`` for values that came from the file."""
        labels = {f"command line: {text}": f"{where}: {text}" for text, where in self.origin.items()}
        return {key: labels.get(source, source) for key, source in sources.items()}

    def attribute(self, error: UserError) -> UserError:
        """The error with a line that says which of the overrides that it names came from the file."""
        message = str(error)
        named = [text for text in self.origin if re.search(rf"(?<![\w.]){re.escape(_key(text))}(?![\w])", message)]
        if not named or message.count("\n") >= MOST_LINES:
            return error
        where = self.origin[named[0]]
        return UserError(f"{message}\n{where} says {', '.join(named[:MOST_LINES])}")


def expand(overrides: Sequence[str], config_dir: str | None = None) -> Expanded:
    """The overrides with ``deepspeed_json=PATH`` and retired raw keys replaced by what they stand for; raises UserError.

    The file's overrides come first. An option that the user picks himself stands for its whole group, so the file's values of
    that group are left out, which is noted; a field that he sets himself replaces the file's alone.
    """
    own, notes = modern_overrides([text for text in overrides if _key(text) != NAME])
    files = [text for text in overrides if _key(text) == NAME]
    if not files:
        return Expanded(own, notes)
    if len(files) > 1:
        raise UserError(f"{' and '.join(files)}: one file at a time\ntake the keys of the others as overrides of their own")
    path, allow = _path(files[0]), allowed(own)
    try:
        linted = load(path, allow)
        found = _convert(linted.config, own, config_dir)
    except UserError as error:
        raise UserError(f"{NAME}={error}" if str(error).startswith(path) else f"{NAME}={path}: {error}") from None
    kept, left_out = _beside(found.overrides, own)
    notes += [*linted.notes, *found.notes, *left_out]
    return Expanded([*kept, *own], notes, dict.fromkeys(kept, f"{NAME}={path}"))


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def _group(text: str) -> str:
    """The group that an override chooses or sets a field of, also for a raw DeepSpeed key."""
    key = _key(text)
    return (place(key.removeprefix("deepspeed.")) if key.startswith("deepspeed.") else key).split(".")[0]


def _path(text: str) -> str:
    value = text.partition("=")[2]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and not Path(value).exists():
        value = value[1:-1]  # quoted as Hydra wants other values
    if not value:
        raise UserError(f"{text}: the path of a DeepSpeed JSON file is due")
    if not Path(value).exists() and re.search(r",|^(glob|choice)\(", value):
        raise UserError(
            f"{text}: one file, since it stands for many overrides\n"
            "run the sweep once for each file, or sweep over what differs: zero=stage2,stage3"
        )
    return str(Path(value).expanduser()) if value.startswith("~") else value


def _convert(config: Mapping[str, Any], own: Sequence[str], config_dir: str | None) -> Converted:
    found = convert(config)
    computed = {f"{ZERO}.{name}" for name in HIDDEN_SIZE_RULES} & found.auto
    if not computed and "fp16.enabled" not in found.auto:
        return found
    beside = known([*found.overrides, *own], config_dir)
    found = convert(config, beside)
    if computed and beside.hidden_size is None:
        unknown = "the hidden size of model.path is not known before the model is here: give a local folder, or numbers"
        found = replace(found, notes=[*found.notes, unknown])
    return found


def _beside(overrides: Sequence[str], own: Sequence[str]) -> tuple[list[str], list[str]]:
    """The file's overrides that hold beside the user's own, and a line for each group that they do not hold in."""
    mine = {_key(text): text for text in own}
    gone: dict[str, list[str]] = {}
    for text in overrides:
        group = _group(text)
        by = mine.get(group)
        if by is None and group == "scaler":  # the fp16 loss scaler is refused under another precision
            chosen = mine.get("precision", mine.get("precision.dtype"))
            by = chosen if chosen is not None and chosen.partition("=")[2] != "fp16" else None
        if by is not None:
            gone.setdefault(by, []).append(text)
    dropped = {text for texts in gone.values() for text in texts}
    kept = [text for text in overrides if text not in dropped and _key(text) not in mine]
    lines = [f"{by}, your own choice, replaces the file's {' '.join(texts)}" for by, texts in gone.items() if texts != [by]]
    return kept, lines
