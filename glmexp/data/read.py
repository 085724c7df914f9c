"""A data file to conversations, each with the line it came from.

JSON lines and a JSON array are told apart by content, not by the file's name; UTF-8 with or without a byte order mark. Lines
end at a newline byte and nowhere else: text may hold Unicode's own line separators. ``glmexp.data.forms`` states which samples
are understood.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmexp.config.choices import OnBad
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError
from glmexp.data.encode import Message
from glmexp.data.forms import FORMS_READ, Reader, SampleError

SHOWN = 60
"""Characters of a bad line that a message shows."""
REMEMBERED = 5
"""Messages of bad lines kept under ``data.on_bad=skip``."""


@dataclass(frozen=True)
class Conversation:
    """Messages ``{"role": system|user|assistant|observation|tool, "content": text}``, the last one the assistant's."""

    messages: list[Message]
    line: int
    """1-based line of the file where the sample begins."""


@dataclass
class Found:
    """What a data file held."""

    path: Path
    conversations: list[Conversation] = field(default_factory=list)
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)


def data_file(data: DataConfig) -> Path:
    """The absolute path of ``data.path``, or of the instruction set that ships with glmexp.

    Raises:
        UserError: there is no such file.
    """
    if data.path is None:
        return Path(__file__).with_name("instruct.jsonl")
    path = Path(data.path).expanduser().absolute()
    if path.is_dir():
        raise UserError(f"data.path={data.path} is a folder: {path}\nname one JSONL or JSON file in it")
    if not path.exists():
        raise UserError(
            f"data.path={data.path}: there is no file {path}\ngive a path that exists; a relative one starts at {Path.cwd()}"
        )
    return path


def read(data: DataConfig) -> Found:
    """All conversations of the data file, in its order, up to ``data.limit``.

    Raises:
        UserError: no file, a bad line (unless ``data.on_bad=skip``), or nothing in it. The message names file and line.
    """
    found = Found(data_file(data))
    reader = Reader(data.columns)
    try:
        for line, outcome in _records(found.path):
            if data.limit is not None and len(found.conversations) >= data.limit:
                break
            try:
                if isinstance(outcome, SampleError):
                    raise outcome
                found.conversations.append(Conversation(reader.messages(outcome), line))
            except SampleError as bad:
                _tell_bad(found, bad, line, outcome, data.on_bad)
    except OSError as error:
        raise UserError(f"data.path={data.path}: cannot read {found.path}: {error.strerror}") from error
    if not found.conversations:
        raise UserError(_nothing(found))
    unused = reader.columns_never_seen()
    if unused:
        raise UserError(f"{found.path}: no sample has {unused}\nfound: {reader.seen()}\ncheck the name, or leave the key null")
    return found


def _tell_bad(found: Found, bad: SampleError, line: int, outcome: Any, on_bad: OnBad) -> None:
    shown = bad.text if bad.text is not None else json.dumps(outcome, ensure_ascii=False)
    place = f"{found.path}:{line}: {visible(str(bad))}"
    if on_bad is OnBad.skip and not bad.fatal:
        found.bad += 1
        if len(found.first_bad) < REMEMBERED:
            found.first_bad.append(place)
        return
    skip = "" if bad.fatal else "\nor leave bad lines out with data.on_bad=skip"
    start = visible(shown[:SHOWN])
    ellipsis = "…" if len(shown) > SHOWN else ""
    raise UserError(f"{place}\n  {start}{ellipsis}\n{visible(bad.move)}{skip}")


def visible(text: str) -> str:
    """``text`` on one line: what a terminal would act on, or not show, is written as in a Python string."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text
    )


def _nothing(found: Found) -> str:
    if found.bad:
        return f"{found.path}: no sample could be read, {found.bad} were bad and skipped; the first:\n{found.first_bad[0]}"
    return f"{found.path}: the file is empty: 0 samples read, 0 dropped\nset data.path to a file with samples"


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, JSON value or SampleError) of each sample."""
    with path.open("rb") as handle:
        first = b""
        while not first.strip():
            block = handle.read(4096)
            if not block:
                break
            first += block
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    yield from (_array(path) if start.startswith(b"[") else _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as handle:
        for number, raw in enumerate(handle, start=1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                text = raw.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                yield number, not_utf8(raw, error)
                continue
            try:
                yield number, json.loads(text)
            except (ValueError, RecursionError) as error:
                yield number, _bad_json(text, error)


def _array(path: Path) -> Iterator[tuple[int, Any]]:
    raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        yield raw.count(b"\n", 0, error.start) + 1, not_utf8(raw[error.start :], error, fatal=True)
        return
    decoder = json.JSONDecoder()
    position = text.index("[") + 1
    line, counted = 1, 0
    expect_comma = False
    while True:
        position = _skip_space(text, position)
        line += text.count("\n", counted, position)
        counted = position
        if text.startswith("]", position):
            rest = _skip_space(text, position + 1)
            if rest < len(text):
                yield (
                    line + text.count("\n", counted, rest),
                    _broken_array(text[rest:], "text after the array's closing ]"),
                )
            return
        if expect_comma:
            if not text.startswith(",", position):
                yield line, _broken_array(text[position:], "expected , or ] after an element of the array")
                return
            position, expect_comma = position + 1, False
            continue
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at = error.pos if isinstance(error, json.JSONDecodeError) else position
            message = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            yield line + text.count("\n", counted, at), _broken_array(text[position:], message)
            return
        yield line, value
        position, expect_comma = end, True


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _broken_array(text: str, what: str) -> SampleError:
    # Where the next element begins cannot be known once the syntax is broken, so on_bad=skip does not apply.
    return SampleError(
        f"not valid JSON: {what}", "mend the array, or write one JSON object a line", text[: SHOWN + 1], fatal=True
    )


def _bad_json(text: str, error: Exception) -> SampleError:
    what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
    if not text.startswith("{"):
        move = f"{FORMS_READ}; CSV, Parquet and packed files are not read"
    elif text == "{":
        move = "write each sample on one line (JSON lines), or put all of them into one JSON array"
    else:
        move = "mend the line"
    return SampleError(f"not valid JSON: {what}", move, text)


def not_utf8(raw: bytes, error: UnicodeDecodeError, fatal: bool = False) -> SampleError:
    """The complaint about bytes in another encoding."""
    what = f"not UTF-8 text: byte 0x{error.object[error.start]:02x} {error.reason}"
    move = "save the file as UTF-8, for example: iconv -f GB18030 -t UTF-8"
    return SampleError(what, move, raw[: 2 * SHOWN].decode("utf-8", "replace"), fatal)
