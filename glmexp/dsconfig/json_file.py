"""A DeepSpeed config from a file, read as DeepSpeed or the HF Trainer reads it, with errors that say where."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmexp.config.errors import UserError

STDIN = "-"
MOST_BYTES, MOST_KEYS, DEEPEST = 2**20, 2_000, 50
"""Beyond these a file is no DeepSpeed config (which has some 600 keys), and is not worth a long reading."""
HJSON_WHOLE = 1e10
"""hjson, DeepSpeed's reader, turns 5e8 into a whole number up to here."""


TOO_DEEP = "is nested too deeply to be a DeepSpeed config"


@dataclass(frozen=True)
class JsonFile:
    config: Mapping[str, Any]
    note: str | None = None
    """Something to tell the user about the file itself."""


class _DuplicateError(ValueError):
    """A key that stands twice in one section."""


def read(path: str, reader: Literal["deepspeed", "hf"] = "deepspeed") -> JsonFile:
    """The config in a file, ``-`` for standard input; raises UserError.

    DeepSpeed reads its files with hjson, so that comments and trailing commas pass there, and nowhere else.
    """
    name = "standard input" if path == STDIN else path
    text = _text(path, name)
    if not text.strip():
        raise UserError(f"{name} is empty\na DeepSpeed config is a JSON object: {{...}}")
    try:
        config, note = _parse(text, name, reader)
    except RecursionError:
        raise UserError(f"{name} {TOO_DEEP}") from None
    except _DuplicateError as error:
        raise UserError(f"{name}: {error} stands twice in one section; DeepSpeed refuses that\nkeep one of them") from None
    if not isinstance(config, Mapping):
        raise UserError(f"{name} holds {_kind(config)}, not an object\na DeepSpeed config is a JSON object: {{...}}")
    _refuse_beyond_measure(config, name)
    return JsonFile(config, note)


def _refuse_beyond_measure(config: Mapping[str, Any], name: str) -> None:
    level: list[Any] = [config]
    keys = 0
    for _ in range(DEEPEST):
        keys += sum(len(value) for value in level if isinstance(value, Mapping))
        if keys > MOST_KEYS:
            raise UserError(f"{name} has more than {MOST_KEYS:,} keys: too many for a DeepSpeed config")
        inner = (value.values() if isinstance(value, Mapping) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, Mapping | list)]
        if not level:
            return
    raise UserError(f"{name} {TOO_DEEP}")


def _text(path: str, name: str) -> str:
    if path != STDIN and not (path and Path(path).exists()):
        raise UserError(f"{path} is not there\ngive a DeepSpeed JSON file, or - for standard input")
    if path != STDIN and Path(path).is_dir():
        raise UserError(f"{path} is a folder\ngive the JSON file in it")
    try:
        data = _bytes(path)
        if len(data) > MOST_BYTES:
            raise UserError(f"{name} is larger than 1 MiB: too large for a DeepSpeed config")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not text in UTF-8 (byte {error.start})\nsave it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from None


def _bytes(path: str) -> bytes:
    if path != STDIN:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    if sys.stdin is None:  # as with `<&-`
        raise UserError("standard input is closed\ngive a DeepSpeed JSON file")
    return sys.stdin.buffer.read(MOST_BYTES + 1)


def _parse(text: str, name: str, reader: str) -> tuple[Any, str | None]:
    if text.startswith("\ufeff"):
        if reader == "hf":
            raise UserError(
                f"{name} starts with a byte order mark, which the Trainer cannot read\nsave it as UTF-8 without BOM"
            )
        text = text[1:]
    try:
        return json.loads(text, object_pairs_hook=_once, parse_float=_as_hjson if reader == "deepspeed" else float), None
    except _DuplicateError:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
    except ValueError:  # Python reads 4,300 digits
        raise UserError(f"{name} is not JSON that anything reads: a whole number of thousands of digits") from None
    if not isinstance(config := _hjson(text), Mapping):
        raise UserError(f"{name} is not JSON: {where}")
    if reader == "hf":
        raise UserError(f"{name} is not JSON: {where} (a trailing comma or a comment? the Trainer reads strict JSON only)")
    return config, f"{name} is not strict JSON ({where}); DeepSpeed reads it, the HF Trainer and most tools do not"


def _hjson(text: str) -> Any:
    """What DeepSpeed's own reader makes of a text, None if it refuses it."""
    import hjson  # comes with DeepSpeed

    try:
        return hjson.loads(text, object_pairs_hook=_once)
    except _DuplicateError:
        raise
    except (ValueError, OverflowError):
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    config = dict(pairs)
    if len(config) != len(pairs):
        raise _DuplicateError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return config


def _as_hjson(numeral: str) -> float:
    value = float(numeral)
    return int(value) if value.is_integer() and abs(value) < HJSON_WHOLE else value


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
