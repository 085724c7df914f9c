"""Tables, a sample a row: CSV and TSV, whose first line names the columns, and Parquet.

Cells of CSV and TSV are text as written: an empty one is "", and a number stays as it is. A column that holds messages or past
turns holds them as JSON.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from glmexp.config.errors import missing_package
from glmexp.data.errors import SampleError
from glmexp.data.read_json import Record
from glmexp.data.text import TextFile

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ROWS = 1000
"""Rows of a Parquet file that are held at a time."""

Know = Callable[[list[str]], list[str]]
"""Takes the names of all columns and gives those to read; raises SampleError if they are no samples' columns."""


def csv_records(file: TextFile, delimiter: str, know: Know) -> Iterator[Record]:
    """The rows of a CSV or TSV file, each with the line where it begins; raises OSError.

    Quotes, and newlines within them, are as in RFC 4180. A row of more or fewer cells than the header is a bad line.
    """
    csv.field_size_limit(sys.maxsize)
    feed = _Feed(file)
    rows = csv.reader(feed, delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        line = rows.line_num + 1
        try:
            row = next(rows)
            if feed.bad:
                line, error = feed.bad.pop()
                raise error
            if not row:
                continue
            if header:
                yield line, _sample(row, header, delimiter)
                continue
            header = _header(row, delimiter, know)
        except StopIteration:
            return
        except (csv.Error, SampleError) as error:
            bad = error if isinstance(error, SampleError) else _bad_csv(error, feed)
            bad.fatal |= not header
            yield line, bad


class _Feed:
    """The lines of a file for ``csv.reader``; of one that cannot be read, ``bad`` holds why."""

    def __init__(self, file: TextFile) -> None:
        self.bad: list[tuple[int, SampleError]] = []
        self.last = ""
        self._lines = file.lines()

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        number, text = next(self._lines)
        if isinstance(text, SampleError):
            self.bad = [(number, text)]
            text = text.text or ""
        elif "\0" in text:
            move = "of a file in UTF-16 name the encoding: data.encoding=utf-16-le"
            self.bad = [(number, SampleError("not text: it holds NUL bytes", move, text))]
            text = text.replace("\0", "")
        self.last = text
        return text


def _header(row: list[str], delimiter: str, know: Know) -> list[str]:
    """The names of the columns; raises SampleError if they are not those of samples."""
    names = [cell.strip() for cell in row]
    shown = delimiter.join(row)
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise SampleError(f"two columns have the name {twice!r}", "give each column a name of its own", shown)
    try:
        know(names)
    except SampleError as error:
        if names[0].startswith(("{", "[")):
            raise SampleError(str(error), "the content is JSON: give the file the ending .jsonl", shown) from error
        other = next((sign for sign in ";\t," if len(row) == 1 and sign in row[0]), None)
        move = f"columns are separated by {delimiter!r} here, and the line holds {other!r}" if other else error.move
        raise SampleError(str(error), f"the first line must name the columns; {move}", shown) from error
    return names


def _sample(row: list[str], header: list[str], delimiter: str) -> dict[str, str] | SampleError:
    if len(row) == len(header):
        return dict(zip(header, row, strict=True))
    cells = f"{len(row)} cell{'s' if len(row) > 1 else ''}"
    return SampleError(
        f"the row has {cells}, and the first line names {len(header)} columns",
        'a cell that holds the separator, a quote or a newline is written in quotes: "a, b"',
        delimiter.join(row),
    )


def _bad_csv(error: csv.Error, feed: _Feed) -> SampleError:
    feed.bad.clear()
    text = feed.last.strip()
    if "unexpected end" in str(error):
        return SampleError("not valid CSV: a quote is opened and never closed", "close it with a quote", text, fatal=True)
    if "new-line" in str(error):
        return SampleError("not valid CSV: a carriage return stands in a cell without quotes", "end lines with a newline", text)
    return SampleError(f"not valid CSV: {error}", 'write a quote within quotes twice: "say ""yes"""', text)


class ParquetTable:
    """A Parquet file.

    Raises:
        UserError: pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise missing_package(f"data.path={path}", "pyarrow", "'glmexp[data]'", "convert it to JSON lines") from error
        self.path = path
        self.rows: int | None = None
        """Rows in all, once the file was opened."""

    def records(self, know: Know) -> Iterator[Record]:
        """The rows with their 1-based numbers; raises OSError."""
        import pyarrow as arrow
        from pyarrow import parquet

        number = 0
        try:
            with parquet.ParquetFile(self.path) as file:
                self.rows = file.metadata.num_rows
                columns = know(list(file.schema_arrow.names))
                for batch in file.iter_batches(ROWS, columns=columns):
                    for sample in batch.to_pylist():
                        number += 1
                        yield number, sample
        except SampleError as error:
            error.fatal = True
            yield 1, error
        except (arrow.ArrowException, UnicodeDecodeError) as error:
            what = f"not a Parquet file, or a damaged one: {str(error).splitlines()[0][:200]}"
            yield number + 1, SampleError(what, "write the file again", "", fatal=True)
