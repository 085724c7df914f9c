"""Files that are written whole or not at all, and the lock under which a report is rebuilt."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from glmexp.sweep.folder import locked

LOCK = ".report.lock"


def write_whole(path: Path, *parts: str | bytes) -> None:
    """Writes the parts one after the other; whoever reads meanwhile sees the old file or the new one.

    To be called while ``rebuilding``: the half of one that was killed is written over by the next. It is not forced to the
    disk, since a report can be built again. A text's lone surrogates, which stand for bytes of a path that are no UTF-8, are
    written as escapes.
    """
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        for part in parts:
            file.write(part if isinstance(part, bytes) else part.encode("utf-8", errors="backslashreplace"))
    os.replace(temporary, path)


def rebuilding(folder: Path) -> AbstractContextManager[None]:
    """One process at a time rebuilds the report."""
    return locked(folder / LOCK)
