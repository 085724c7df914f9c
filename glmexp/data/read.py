"""The data to conversations, one after another, each with the place it came from.

``glmexp.data.formats`` and ``read_hub`` give the samples, ``glmexp.data.forms`` makes messages of them. Nothing is held: what
is read may be larger than the memory.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.config.choices import OnBad, Source
from glmexp.config.data_files import all_files, files
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError
from glmexp.data.encode import Message
from glmexp.data.errors import SHOWN, SampleError, visible
from glmexp.data.formats import FileSamples
from glmexp.data.forms import Reader, columns_never_seen
from glmexp.data.read_hub import HubSplit

SHIPPED = Path(__file__).with_name("instruct.jsonl")
"""The instruction set that ships with glmexp."""
REMEMBERED = 5
"""Messages of bad lines kept under ``data.on_bad=skip``."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages ``{"role": system|user|assistant|observation|tool, "content": text}``, the last one the assistant's."""

    messages: list[Message]
    line: int
    """1-based line of the file where the sample begins, or row of a Parquet file or of a dataset of the hub."""
    source: str
    """The file, or dataset and split."""

    @property
    def place(self) -> str:
        """``FILE:LINE``."""
        return f"{self.source}:{self.line}"


@dataclass
class Tally:
    """What became of one file, or split of the hub."""

    source: str
    read: int = 0
    """Samples, the bad ones among them."""
    bad: int = 0
    dropped: int = 0
    """Left out for their length, or because there is nothing to learn in them."""
    cut: int = 0
    """Shortened."""


def read(data: DataConfig, validating: bool = False) -> "Reading":
    """The conversations of ``data.path``; raises UserError if it names no files, or no dataset that can be had.

    ``validating``: what is read there was set as ``data.eval_path`` or ``data.eval_split``, as messages say then.
    """
    return Reading(data, validating)


def stamps(data: DataConfig) -> list[tuple[str, int, int]]:
    """(path, bytes, time of the last change) of each file that is read, for training and for validation."""
    paths = [*([SHIPPED] if data.path is None else []), *all_files(data)]
    return [(str(path), (status := path.stat()).st_size, status.st_mtime_ns) for path in paths]


class Reading:
    """The conversations of ``data.path``, in the files' order, up to ``data.limit``; iterate over it once.

    Raises, as it is iterated over:
        UserError: a file that cannot be read, a bad line (unless ``data.on_bad=skip``), or nothing in it. The message names
            file and line.
    """

    def __init__(self, data: DataConfig, validating: bool) -> None:
        self.data = data
        self.setting = "data.eval_path" if validating and data.source is Source.file else "data.path"
        self.sources: list[FileSamples | HubSplit] = []
        self.tallies: list[Tally] = []
        """One a source, as far as it has been read."""
        self.first_bad: list[str] = []
        """The messages of the first few bad lines."""
        self._seen: dict[str, None] = {}
        with self._readable():
            if data.source is Source.hub:
                self.sources.append(HubSplit(data, data.split or "train", "data.eval_split" if validating else "data.split"))
            else:
                paths = [SHIPPED] if data.path is None else files(self.setting, data.path)
                self.sources += [FileSamples(path, data.encoding) for path in paths]

    @property
    def name(self) -> str:
        """The source, or how many there are."""
        first = self.sources[0].name
        return first if len(self.sources) == 1 else f"{first} and {len(self.sources) - 1} more"

    @property
    def notes(self) -> list[str]:
        """What the user should know of how the files were read, a line each."""
        return [note for source in self.sources if isinstance(source, FileSamples) and (note := source.note)]

    @property
    def read(self) -> int:
        """Samples so far, the bad ones among them."""
        return sum(tally.read for tally in self.tallies)

    @property
    def bad(self) -> int:
        """Samples so far that could not be used, under ``data.on_bad=skip``."""
        return sum(tally.bad for tally in self.tallies)

    def __iter__(self) -> Iterator[Conversation]:
        left = self.data.limit
        for source in self.sources:
            if left == 0:
                break
            tally, reader = Tally(source.name), Reader(self.data.columns)
            self.tallies.append(tally)
            with self._readable():
                for line, record in source.records(reader.know):
                    tally.read += 1
                    try:
                        if isinstance(record, SampleError):
                            raise record
                        conversation = Conversation(reader.messages(record), line, source.name)
                    except SampleError as bad:
                        self._tell_bad(bad, f"{source.name}:{line}", record)
                        tally.bad += 1
                        continue
                    yield conversation
                    if left is not None:
                        left -= 1
                        if left == 0:
                            break
            self._seen |= reader.seen
        if self.read == self.bad:
            raise UserError(self._nothing())
        unused = columns_never_seen(self.data.columns, self._seen)
        if unused:
            found = visible(", ".join(self._seen))
            raise UserError(f"{self.name}: no sample has {unused}\nfound: {found}\ncheck the name, or leave the key null")

    def tally(self, source: str) -> Tally:
        """The tally of a source that has been read from."""
        last = self.tallies[-1]
        return last if last.source == source else next(tally for tally in self.tallies if tally.source == source)

    def refuse(self, conversation: Conversation, reason: str) -> None:
        """Counts a conversation as bad that has been read.

        Raises:
            UserError: bad lines are not to be skipped.
        """
        told = f"{conversation.place}: {reason}"
        if self.data.on_bad is OnBad.error:
            raise UserError(told)
        self.tally(conversation.source).bad += 1
        self._remember(" ".join(told.split()))

    def expected(self) -> int | None:
        """Samples in all, reckoned from the bytes read so far; None as long as nothing tells."""
        if not self.tallies:
            return None
        current, tally = self.sources[len(self.tallies) - 1], self.tallies[-1]
        if isinstance(current, HubSplit):
            known = current.size
        else:
            sizes = [source.stamp[0] for source in self.sources if isinstance(source, FileSamples)]
            done = len(self.tallies) - 1
            share = (sum(sizes[:done]) + sizes[done] * current.share(tally.read)) / max(1, sum(sizes))
            known = round(self.read / share) if share else None
        limit = self.data.limit
        return known if limit is None else min(limit, known or limit)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self.data.path
            where = f" {error.filename}" if error.filename and error.filename != path else ""
            raise UserError(f"{self.setting}={path}: cannot read{where}: {error.strerror or error}") from error

    def _tell_bad(self, bad: SampleError, place: str, record: Any) -> None:
        """Remembers a bad sample, or raises UserError for it."""
        told = f"{place}: {visible(str(bad))}"
        if self.data.on_bad is OnBad.skip and not bad.fatal:
            self._remember(told)
            return
        shown = bad.text or ""
        if bad.text is None and record is not bad:
            shown = json.dumps(record, ensure_ascii=False, default=str)
        start = f"\n  {visible(shown[:SHOWN])}{'…' if len(shown) > SHOWN else ''}" if shown else ""
        skip = "" if bad.fatal else "\nor leave bad lines out with data.on_bad=skip"
        raise UserError(f"{told}{start}\n{visible(bad.move)}{skip}")

    def _remember(self, told: str) -> None:
        if len(self.first_bad) < REMEMBERED:
            self.first_bad.append(told)

    def _nothing(self) -> str:
        if self.bad:
            return f"{self.name}: no sample could be read, {self.bad} were bad and skipped; the first:\n{self.first_bad[0]}"
        what = "is empty" if len(self.sources) == 1 else "are empty"
        return f"{self.name} {what}: 0 samples read, 0 dropped\nset {self.setting} to a file with samples"
