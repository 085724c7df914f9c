"""JSON lines, and a JSON array of samples, told apart by content; each sample with the line where it begins."""

import json
from collections.abc import Iterator
from typing import Any

from glmexp.data.errors import SHOWN, SampleError
from glmexp.data.forms import FORMS_READ
from glmexp.data.text import TextFile

SPACE = " \t\r\n"
LITERAL = 16
"""Characters, more than those of the longest JSON word or escape: so close to the end of a piece, an error may be the cut's."""

Record = tuple[int, Any]
"""(1-based line, the sample's JSON value, or a SampleError)."""


def json_records(file: TextFile) -> Iterator[Record]:
    """The samples of a file of JSON lines or of one array; raises OSError."""
    yield from (_array(file) if _is_array(file) else _lines(file))


def _is_array(file: TextFile) -> bool:
    try:
        for chunk in file.chunks():
            start = chunk.lstrip()
            if start:
                return start.startswith("[")
    except SampleError:  # told by whoever reads the lines
        return False
    return False


def _lines(file: TextFile) -> Iterator[Record]:
    for number, text in file.lines():
        if isinstance(text, SampleError):
            yield number, text
            continue
        text = text.strip()
        if not text:
            continue
        try:
            yield number, json.loads(text)
        except (ValueError, RecursionError) as error:
            yield number, _bad_json(text, error)


def _array(file: TextFile) -> Iterator[Record]:
    text = _Pieces(file.chunks())
    try:
        text.skip_space()
        text.take(1)  # the [
        first = True
        while text.skip_space() and not text.rest().startswith("]"):
            if not first:
                if not text.rest().startswith(","):
                    raise _broken_array(text.rest(), "expected , or ] after an element of the array")
                text.take(1)
                text.skip_space()
            yield text.line, text.value()
            first = False
        if not text.rest():
            raise _broken_array("", "the array has no end: a closing ] is missing")
        text.take(1)
        if text.skip_space():
            raise _broken_array(text.rest(), "text after the array's closing ]")
    except SampleError as error:
        yield text.line, error


class _Pieces:
    """A long text that is read from its start and held a piece at a time."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self.line = 1
        self._chunks = chunks
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0

    def rest(self) -> str:
        """What is held and not read yet: empty only at the end of the text, once ``skip_space`` has been called."""
        return self._text[self._at : self._at + SHOWN + 1]

    def take(self, characters: int) -> None:
        """Leaves so many characters behind."""
        self.line += self._text.count("\n", self._at, self._at + characters)
        self._at += characters

    def skip_space(self) -> bool:
        """Goes on to the next character that is no space; false if there is none."""
        while True:
            end = self._at
            while end < len(self._text) and self._text[end] in SPACE:
                end += 1
            self.take(end - self._at)
            if end < len(self._text):
                return True
            if not self._more():
                return False

    def value(self) -> Any:
        """The JSON value that begins here; raises SampleError, with ``line`` where the error is."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                at = error.pos if isinstance(error, json.JSONDecodeError) else self._at
                cut = at >= len(self._text) - LITERAL or "Unterminated" in str(error)
                if cut and self._more():
                    continue
                shown = self.rest()
                self.take(at - self._at)
                what = _what(error)
                raise _broken_array(shown, what) from error
            if end < len(self._text) or not self._more():  # a number may go on
                self.take(end - self._at)
                return value

    def _more(self) -> bool:
        """Reads as much again as is held, at least a chunk; false at the end."""
        held = self._text[self._at :]
        pieces, wanted = [held], len(held)
        try:
            for chunk in self._chunks:
                pieces.append(chunk)
                wanted -= len(chunk)
                if wanted < 0:
                    break
        except SampleError:
            self._text, self._at = "".join(pieces), 0
            self.take(len(self._text))  # to the line of what cannot be read
            raise
        self._text, self._at = "".join(pieces), 0
        return len(self._text) > len(held)


def _broken_array(text: str, what: str) -> SampleError:
    # Where the next element begins cannot be known once the syntax is broken, so on_bad=skip does not apply.
    return SampleError(
        f"not valid JSON: {what}", "mend the array, or write one JSON object a line", text[: SHOWN + 1], fatal=True
    )


def _bad_json(text: str, error: Exception) -> SampleError:
    what = _what(error) + (f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "")
    if "\0" in text:
        what, move = "not text: it holds NUL bytes", "of a file in UTF-16 name the encoding: data.encoding=utf-16-le"
    elif not text.startswith("{"):
        move = FORMS_READ
    elif text == "{":
        move = "write each sample on one line (JSON lines), or put all of them into one JSON array"
    else:
        move = "mend the line"
    return SampleError(f"not valid JSON: {what}", move, text)


def _what(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg.removesuffix(" at")
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"
