"""Files of text: opened, told apart by encoding, and read line by line with the place of what cannot be read.

Without ``data.encoding`` a file is in what its byte order mark says, else in UTF-8, else in GB18030, of which GBK and GB2312
are parts. The last two are told apart by the file's head: it is GB18030 if whatever is not UTF-8 there is GB18030, and makes up
most of what is beyond ASCII. A line of the other encoding is a bad line, so that a mixture is told and not misread. Lines end
at a newline and nowhere else: text may hold Unicode's own line separators.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from pathlib import Path
from typing import IO, cast

from glmexp.data.errors import SHOWN, SampleError

UTF8 = "utf-8-sig"
"""UTF-8 with or without a byte order mark."""
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as that of UTF-16 does
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
HEAD = 2**24
"""Bytes by which the encoding is told."""
CHUNK = 2**20
IN_CHARACTERS = bytes(range(0x30, 0x100))
"""The bytes that a character of several bytes may hold, in UTF-8 and in GB18030."""
STRETCHES = re.compile(rb"[\x30-\xff]+")
PRIVATE = re.compile("[\ue000-\uf8ff]")
SURELY_UTF8 = 12
"""So many bytes beyond ASCII are not UTF-8 by chance: as GB18030 they are six characters."""


class TextFile:
    """A file of text and how it is read.

    Args:
        path: the file; unpacked if its name ends with ``.gz``.
        encoding: ``data.encoding``; None has the content tell it.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, encoding: str | None) -> None:
        self.path = path
        self.detected = encoding is None
        name = _detect(path) if encoding is None else codecs.lookup(encoding).name
        self.encoding = UTF8 if name == "utf-8" else name
        """A codec's name."""
        self.doubtful = False
        """Whether what was told as GB18030 by its content has characters of private use, as only Big5 does."""
        self._packed: IO[bytes] | None = None

    def bytes_read(self) -> int:
        """How far into the file the reading is."""
        return 0 if self._packed is None or self._packed.closed else self._packed.tell()

    @property
    def name(self) -> str:
        """The encoding as people write it."""
        return "UTF-8" if self.encoding == UTF8 else self.encoding.upper()

    def lines(self) -> Iterator[tuple[int, str | SampleError]]:
        """(1-based line, its text with the newline, or why it cannot be read); raises OSError."""
        if self.encoding != UTF8 and "\n".encode(self.encoding) != b"\n":
            yield from self._lines_of_chunks()
            return
        codec = "utf-8" if self.encoding == UTF8 else self.encoding
        mixed = self.detected and codec == "gb18030"  # may be, where the content told it
        with self._opened() as handle:
            for number, raw in enumerate(handle, start=1):
                if number == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                if mixed and _surely_utf8(raw):
                    yield number, self._mixture(raw)
                    continue
                try:
                    line = raw.decode(codec)
                    self.doubtful |= mixed and PRIVATE.search(line) is not None
                    yield number, line
                except UnicodeError as error:
                    yield number, self._undecodable(raw, error)

    def _lines_of_chunks(self) -> Iterator[tuple[int, str | SampleError]]:
        number, rest = 1, ""
        try:
            for chunk in self.chunks():
                *whole, rest = (rest + chunk).split("\n")
                for line in whole:
                    yield number, f"{line}\n"
                    number += 1
        except SampleError as error:
            yield number, error
            return
        if rest:
            yield number, rest

    def chunks(self) -> Iterator[str]:
        """The text, piece by piece, up to the character that cannot be read.

        Raises:
            SampleError: there is one; fatal.
            OSError: the file cannot be read.
        """
        decoder = codecs.getincrementaldecoder(self.encoding)()
        mark = "\ufeff"  # of a codec that does not take it off, as utf-16-le
        with self._opened() as handle:
            while True:
                raw = handle.read(CHUNK)
                state = decoder.getstate()
                try:
                    text = decoder.decode(raw, final=not raw)
                except UnicodeDecodeError as error:
                    decoder.setstate(state)
                    yield decoder.decode(raw[: max(0, len(raw) - len(error.object) + error.start)])
                    raise self._undecodable(error.object[error.start :], error, fatal=True) from error
                if text:
                    self.doubtful |= self.detected and self.encoding == "gb18030" and PRIVATE.search(text) is not None
                    yield text.removeprefix(mark)
                    mark = ""
                if not raw:
                    return

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with opened(self.path) as (handle, self._packed):
            yield handle

    def _undecodable(self, raw: bytes, error: UnicodeError, fatal: bool = False) -> SampleError:
        """The complaint about bytes that are not in the file's encoding."""
        what = f"not {self.name} text"
        if isinstance(error, UnicodeDecodeError):
            place = "" if fatal else f" {error.start + 1} of the line,"
            what += f": byte{place} 0x{error.object[error.start]:02x}, {error.reason}"
        move = "save the file as UTF-8, or name its encoding, as in data.encoding=gb18030"
        if not self.detected:
            move = "name the file's encoding with data.encoding, or leave it null to have it told by the content"
        return SampleError(what, move, (raw[: 2 * SHOWN] if fatal else raw).decode(self.encoding, "replace"), fatal)

    def _mixture(self, raw: bytes) -> SampleError:
        byte = next(place for place, value in enumerate(raw, start=1) if value > 127)
        return SampleError(
            f"not {self.name} text, as the lines before, but UTF-8: byte {byte} of the line, 0x{raw[byte - 1]:02x}",
            "save the whole file as UTF-8, or set data.encoding=gb18030 if this is no mixture",
            raw.decode("utf-8"),
        )


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The bytes of a file, unpacked if its name ends with ``.gz``, and as they are; a broken archive is an OSError too."""
    with path.open("rb") as packed:
        if path.suffix.lower() != ".gz":
            yield packed, packed
            return
        try:
            with gzip.GzipFile(fileobj=packed) as unpacked:
                yield cast(IO[bytes], unpacked), packed
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise OSError(EIO, f"the gzip archive is damaged ({error})") from error


def _detect(path: Path) -> str:
    with opened(path) as (handle, _):
        head = handle.read(HEAD)
    marked = next((name for mark, name in BYTE_ORDER_MARKS if head.startswith(mark)), None)
    if marked is not None:
        return marked
    if len(head) == HEAD:
        head = head.rstrip(IN_CHARACTERS)  # so that it ends between two characters
    if _decodes(head, "utf-8"):
        return UTF8
    others = 0
    for stretch in STRETCHES.findall(head):
        if not stretch.isascii():
            is_utf8 = _decodes(stretch, "utf-8")
            if not (is_utf8 or _decodes(stretch, "gb18030")):
                return UTF8
            others += -_beyond_ascii(stretch) if is_utf8 else _beyond_ascii(stretch)
    return "gb18030" if others > 0 else UTF8


def _surely_utf8(raw: bytes) -> bool:
    return not raw.isascii() and _decodes(raw, "utf-8") and _beyond_ascii(raw) >= SURELY_UTF8


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _beyond_ascii(raw: bytes) -> int:
    return len(raw.translate(None, bytes(range(0x80))))
