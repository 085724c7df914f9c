"""Which files ``data.path`` and ``data.eval_path`` name: asked by the parent before a start, and by the ranks as they read."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glmexp.config.choices import Source
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError

PARQUET = ".parquet"
PATTERN = frozenset("*?[")
"""Characters that make a pattern of a path, unless a file has that very name."""


def named(value: Any) -> list[str]:
    """The paths and patterns of ``data.path``: none, one or a list of them."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def files(setting: str, value: Any) -> list[Path]:
    """The files that ``value`` names, absolute, in its order; those of a pattern by name, with ``**`` for any folders between.

    Args:
        setting: ``data.path`` or ``data.eval_path``, for messages.

    Raises:
        UserError: one is absent, a folder or no regular file, a pattern matches none, or a file is named twice.
        OSError: a path cannot be looked up.
    """
    found: dict[Path, None] = {}
    for path in (path for written in named(value) for path in _of(setting, written)):
        if path in found:
            raise UserError(f"{setting} names {path} twice\nleave one out, or its samples would count double")
        found[path] = None
    return list(found)


def all_files(data: DataConfig) -> list[Path]:
    """The files here that the samples come from: of ``data.path`` and ``data.eval_path``, or of a hub dataset that is a folder.

    Raises as ``files``.
    """
    if data.source is Source.file:
        return [*files("data.path", data.path), *files("data.eval_path", data.eval_path)]
    if data.source is Source.hub and os.path.isabs(str(data.path)):
        return sorted(path for path in Path(str(data.path)).rglob("*") if path.is_file())
    return []


def _of(setting: str, written: str) -> Iterator[Path]:
    path = Path(os.path.abspath(os.path.expanduser(written)))
    if path.is_file():
        yield path
    elif path.is_dir():
        raise UserError(f"{setting}={path} is a folder, not a file\nname the files in it: '{setting}={path}/*.jsonl'")
    elif path.exists():
        raise UserError(
            f"{setting}={path} is a pipe or a device, and data is read more than once\nwrite it to a file, and name that"
        )
    elif PATTERN.isdisjoint(written):
        raise UserError(
            f"{setting}={path} is not there\ngive a file, a pattern or a list of them; a relative path starts at the folder "
            "of the call"
        )
    else:
        matches = sorted(match for match in map(Path, glob.glob(str(path), recursive=True)) if match.is_file())
        if not matches:
            raise UserError(
                f"{setting}={path} matches no file\ncheck the pattern: * stands for anything in a name, ** for any folders"
            )
        yield from matches


def absolute_files(value: Any, start: Path) -> Any:
    """``value`` with each path and pattern made absolute from the folder ``start``; what is no path stays as it is."""
    if isinstance(value, list):
        return [absolute_files(item, start) for item in value]
    if not isinstance(value, str) or not value.strip():
        return value
    path = os.path.expanduser(value)  # a ~ of nobody stays
    if os.path.isabs(path) or PATTERN.isdisjoint(path) or os.path.exists(start / path):
        return os.path.normpath(start / path)
    return os.path.normpath(os.path.join(glob.escape(str(start)), path))  # the folder of the call is no pattern
