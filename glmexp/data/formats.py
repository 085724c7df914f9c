"""A data file by its format: told by the file's name, else by its content."""

from collections.abc import Iterator
from pathlib import Path

from glmexp.config.data_files import PARQUET
from glmexp.config.errors import UserError
from glmexp.data.read_json import Record, json_records
from glmexp.data.read_table import DELIMITERS, Know, ParquetTable, csv_records
from glmexp.data.text import TextFile, opened

JSON = (".jsonl", ".json")
LOOKED_AT = 4096
"""Bytes of a file that tell its format, where its name does not."""
NO_TEXT = {
    b"\x1f\x8b": "a gzip archive: let its name end with .gz",
    b"PK\x03\x04": "a zip archive or an Excel file: unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel file: save the sheet as CSV",
    b"PAR1": f"a Parquet file: let its name end with {PARQUET}",
    b"\xfd7zXZ": "an xz archive: unpack it",
    b"\x28\xb5\x2f\xfd": "a zstd archive: unpack it",
    b"BZh": "a bzip2 archive: unpack it",
}
"""How files begin that are no text, and what they are."""


class FileSamples:
    """The samples of one file.

    Args:
        path: the file.
        encoding: ``data.encoding``, for text.

    Raises:
        UserError: its format is none that is read, needs a package that is not installed, or has no encoding.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, encoding: str | None) -> None:
        self.path = path
        self.name = str(path)
        self.stamp = _stamp(path)
        self._kind = _format(path)
        if self._kind == PARQUET and encoding is not None:
            raise UserError(f"data.encoding={encoding} has no effect on {path}: it is that of text files\nleave it out")
        self._encoding = encoding
        self._table = ParquetTable(path) if self._kind == PARQUET else None
        self._text: TextFile | None = None

    @property
    def note(self) -> str | None:
        """What the user should know of how the file was read."""
        text = self._text
        if text is None or not text.detected or text.name == "UTF-8":
            return None
        doubt = ", which makes odd characters of it: if it is Big5, set data.encoding=big5" if text.doubtful else ""
        return f"{self.path} is read as {text.name}{doubt}"

    def records(self, know: Know) -> Iterator[Record]:
        """The samples, each with its 1-based line, or row of a Parquet file; a table's columns go to ``know`` first.

        Raises:
            UserError: it is no text, or it changed meanwhile.
            OSError: it cannot be read.
        """
        if self._table is not None:
            yield from self._table.records(know)
        else:
            _refuse_packed(self.path)
            self._text = TextFile(self.path, self._encoding)  # looks at the file's head: not before its turn comes
            delimiter = DELIMITERS.get(self._kind)
            yield from csv_records(self._text, delimiter, know) if delimiter else json_records(self._text)
        if _stamp(self.path) != self.stamp:
            raise UserError(f"{self.path} changed while it was read\nstart again when nothing writes to it any more")

    def share(self, samples: int) -> float:
        """How much of the file is read, from 0 to 1, after so many of its samples."""
        if self._table is not None:
            return samples / self._table.rows if self._table.rows else 0.0
        return self._text.bytes_read() / max(1, self.stamp[0]) if self._text is not None else 0.0


def _stamp(path: Path) -> tuple[int, int]:
    """Size in bytes and time of the last change."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _refuse_packed(path: Path) -> None:
    """Raises UserError for a file that is no text, whatever its name says."""
    with opened(path) as (handle, _):
        start = handle.read(max(map(len, NO_TEXT)))
    told = next((words for magic, words in NO_TEXT.items() if start.startswith(magic)), None)
    if told is not None:
        raise UserError(f"{path} holds no text\nit is {told}")


def _format(path: Path) -> str:
    """The file's format, as the ending of a name."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    ending = name.suffix.lower()
    if ending in (*JSON, *DELIMITERS, PARQUET):
        return ending
    with opened(path) as (handle, _):
        start = handle.read(LOOKED_AT)
    if start.startswith(b"PAR1"):
        return PARQUET
    # Of UTF-16, the byte order mark and zeros stand around the first character.
    first = start.lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1]
    if first in (b"[", b"{", b""):
        return ".jsonl"
    raise UserError(
        f"{path}: neither its name nor its content tells a format that is read\n"
        f"read are {', '.join((*JSON, *DELIMITERS))}, also with .gz, and {PARQUET}: give the file the ending of what it is, or "
        "convert it"
    )
