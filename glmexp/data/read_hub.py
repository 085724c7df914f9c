"""Datasets of the Hugging Face hub, fetched by the package ``datasets``, which runs no code that a dataset brings (4.0 and on).

It keeps what it fetched in its cache, so that a second run needs no network (HF_HUB_OFFLINE=1); HF_ENDPOINT names a mirror. A
folder of data files here is read as a dataset on the hub would be.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError, missing_package
from glmexp.data.errors import SampleError
from glmexp.data.read_json import Record

CREDENTIALS = re.compile(r"//[^/@\s]*@")


class HubSplit:
    """One split of a dataset.

    Args:
        data: names dataset, subset and revision; ``data.streaming`` reads rows as they come.
        split: the split's name.
        setting: the override that names the split, for messages.

    Raises:
        UserError: the dataset cannot be had, with the reason and the next move.
    """

    def __init__(self, data: DataConfig, split: str, setting: str) -> None:
        self.name = f"{data.path}[{split}]"
        self._data = data
        self._rows = _load(data, split, setting)
        self.size: int | None = None if data.streaming else len(self._rows)
        """Rows; None if that is not known before they have come."""

    def records(self, know: Callable[[list[str]], list[str]]) -> Iterator[Record]:
        """The rows with their 1-based numbers; raises UserError if they cease to come."""
        try:
            names = self._rows.column_names or list(next(iter(self._rows), {}))  # a stream may not know them before
            yield from enumerate(self._rows.select_columns(know(names)), start=1)
        except SampleError as error:
            error.fatal = True
            yield 1, error
        except Exception as error:  # of whatever format and network the rows come from
            raise UserError(f"data.path={self._data.path}: the rows cannot be read: {_first_line(error)}") from error


def _load(data: DataConfig, split: str, setting: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_package(f"data.path={data.path}", "datasets", "'glmexp[data]'", "save the dataset as a file") from error
    datasets.disable_progress_bars()  # of no use in a log
    try:
        return datasets.load_dataset(data.path, data.subset, split=split, revision=data.revision, streaming=data.streaming)
    except Exception as error:
        # The client raises several families of errors (its own, ValueError, OSError), all of them a reason to tell the user.
        raise UserError(_reason(data, split, setting, error)) from error


def _reason(data: DataConfig, split: str, setting: str, error: Exception) -> str:
    """Why a dataset cannot be had, and the next move."""
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError

    at, told = f"data.path={data.path} (data=hub)", _first_line(error)
    if isinstance(error, DataFilesNotFoundError):
        return f"{at} has no file of a kind that is read\n{told}"
    if isinstance(error, DatasetNotFoundError) and f"Revision '{data.revision}'" in str(error):
        return f"{at} has no revision {data.revision}: {told}\nset data.revision to a commit, branch or tag of it, or to null"
    if isinstance(error, DatasetNotFoundError) and "gated" in str(error):
        return f"{at}: access must be granted\naccept the terms on the dataset's page and log in with `hf auth login`"
    if isinstance(error, DatasetNotFoundError):
        return (
            f"{at}: no such dataset on the hub, and no such folder here\n"
            "check the name; for a private dataset log in with `hf auth login`; a file is read with data=instruct"
        )
    if isinstance(error, ConnectionError):
        return (
            f"{at} is not on this machine, and the hub cannot be reached: {told}\n"
            "set HF_ENDPOINT to a mirror, or data.path to a folder that holds the dataset's files"
        )
    if "split" in str(error).lower():
        return f"{at} has no split {split}: {told}\nset {setting} to one that it has"
    if "config" in str(error).lower():
        return f"{at}, data.subset={data.subset}: {told}\nset data.subset to one that it has"
    return f"{at} cannot be read: {told}\nsave its samples as JSON lines, and name that file: data=instruct data.path=FILE"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in CREDENTIALS.sub("//", str(error)).splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__
