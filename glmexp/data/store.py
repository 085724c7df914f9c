"""The tokenised data set on disk: written once by one process, mapped into memory by every rank.

``FOLDER/tokens/`` holds ``input_ids.npy`` (int32, all samples one after another), ``learnt.npy`` (bool, the same length),
``offsets.npy`` (int64, sample i is [offsets[i], offsets[i + 1])) and ``counts.json``. Validation samples, if there are any, lie
in ``tokens/validation/`` in the same form, with ``questions.jsonl``: for each of them the prompt that it is asked with and the
answer that is wanted. The folder is built under another name and renamed when it is whole, so that its presence means that it
is ready: no rank has to wait for it in a collective, whose time limit a large data set would exceed.
"""

import json
import os
import re
import shutil
import socket
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from glmexp.trial.orphan import abandoned

TOKENS = "tokens"
VALIDATION = "validation"
COUNTS = "counts.json"
QUESTIONS = "questions.jsonl"
STALE = ".stale"
SOURCES_SHOWN = 20
"""Files of which it is told what became of their samples."""
IGNORED = -100
"""Label of a position that is not learnt (PyTorch's ``ignore_index``)."""


@dataclass
class Counts:
    """What became of the samples. read = kept + held_out + unused + the sum of dropped + bad."""

    read: int = 0
    kept: int = 0
    cut: int = 0
    """Kept, but shortened."""
    turns_cut: int = 0
    """Oldest turns that were left out of samples that are kept."""
    held_out: int = 0
    """Taken away for validation, under ``data.eval_share``."""
    unused: int = 0
    """Left out because others are enough, under ``measure.samples=longest`` or ``data.eval_limit``."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> samples left out."""
    bad: int = 0
    """Lines that could not be read, under ``data.on_bad=skip``."""
    first_bad: list[str] = field(default_factory=list)
    """The messages of the first few bad lines."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of how the files were read."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Of several files, what became of the samples of each: ``source`` and the counts of ``glmexp.data.read.Tally``."""
    tokens: int = 0
    targets: int = 0
    """Tokens that are learnt."""
    longest: int = 0
    """Tokens of the longest sample kept."""

    def describe(self) -> str:
        """One line such as ``336 samples read, 330 kept (2 cut), 6 dropped: 6 longer than data.max_length``."""
        turns = f", {self.turns_cut} oldest turns left out" if self.turns_cut else ""
        text = f"{self.read} samples read, {self.kept} kept" + (f" ({self.cut} cut{turns})" if self.cut else "")
        if self.held_out:
            text += f", {self.held_out} held out for validation"
        if self.unused:
            text += f", {self.unused} left out, as the others are enough"
        if self.dropped:
            reasons = "; ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            text += f", {sum(self.dropped.values())} dropped: {reasons}"
        if self.bad:
            text += f", {self.bad} bad and skipped"
        return text

    def details(self) -> list[str]:
        """How the files were read, and of several what became of each: a line each, for so many as a screen takes."""
        shown = [
            f"{tally['source']}: {tally['read']} read"
            + "".join(f", {tally[fate]} {fate}" for fate in ("cut", "dropped", "bad") if tally[fate])
            for tally in self.sources
        ]
        more = [f"and {len(shown) - SOURCES_SHOWN} files more"] if len(shown) > SOURCES_SHOWN else []
        return [*self.notes, *shown[:SOURCES_SHOWN], *more]


@dataclass(frozen=True)
class Question:
    """What a validation sample asks the model, and what it should answer."""

    ids: list[int]
    """The prompt, as one asks with it."""
    question: str
    """The last message before the answer."""
    reference: str
    """The answer of the data, whole."""


class Tokens:
    """Encoded samples in memory, one after another."""

    def __init__(self) -> None:
        self._ids = array("i")
        self._learnt = bytearray()
        self._offsets = array("q", [0])
        self._cut = bytearray()
        self._turns_cut = array("i")

    def __len__(self) -> int:
        return len(self._cut)

    def add(self, ids: Sequence[int], learnt: Sequence[int], cut: bool = False, turns_cut: int = 0) -> None:
        """Adds one sample: its token ids and, for each, whether it is learnt; what it lost."""
        self._ids.extend(ids)
        self._learnt.extend(learnt)
        self._offsets.append(len(self._ids))
        self._cut.append(cut)
        self._turns_cut.append(turns_cut)

    def chosen(self, numbers: Iterable[int]) -> "Tokens":
        """The samples of these numbers, in that order."""
        taken = Tokens()
        for number in numbers:
            part = slice(self._offsets[number], self._offsets[number + 1])
            taken.add(self._ids[part], self._learnt[part], bool(self._cut[number]), self._turns_cut[number])
        return taken

    def count_into(self, counts: Counts) -> None:
        """Sets the counts of what is kept."""
        counts.kept, counts.tokens = len(self), len(self._ids)
        counts.cut, counts.turns_cut = sum(self._cut), sum(self._turns_cut)
        # The first token of a sample has nothing before it to be predicted from.
        counts.targets = self._learnt.count(1) - sum(self._learnt[start] for start in self._offsets[:-1])
        counts.longest = max((stop - start for start, stop in pairwise(self._offsets)), default=0)

    def largest_id(self) -> int:
        """The largest token id, or -1."""
        return int(np.asarray(self._ids).max(initial=-1))

    def save(self, folder: Path, counts: Counts, **more: str) -> None:
        """Writes the arrays, and the counts with what goes with them."""
        folder.mkdir(parents=True)
        np.save(folder / "input_ids.npy", np.frombuffer(self._ids, np.int32))
        np.save(folder / "learnt.npy", np.frombuffer(self._learnt, np.bool_))
        np.save(folder / "offsets.npy", np.frombuffer(self._offsets, np.int64))
        content = {**more, **asdict(counts)}
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / COUNTS).write_text(text, encoding="utf-8", errors="backslashreplace")  # stray bytes in a file's name


@dataclass
class Part:
    """Training or validation samples on their way to the disk."""

    tokens: Tokens
    counts: Counts
    questions: Iterable[Question] = ()
    """Of validation samples: one a sample."""


def publish(folder: Path, key: str, training: Part, validation: Part | None = None) -> None:
    """Writes the tokens of a trial folder and makes them visible at once.

    Args:
        folder: the trial folder.
        key: names what the tokens are made from. If another process has put tokens of this key there, those stand; tokens of
            another key are replaced.
    """
    here = f".{TOKENS}.{socket.gethostname()}."
    building = folder / f"{here}{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    for left in abandoned(folder, rf"{re.escape(here)}(\d+)({re.escape(STALE)})?"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        training.tokens.save(building, training.counts, key=key)
        if validation is not None:
            validation.tokens.save(building / VALIDATION, validation.counts)
            with (building / VALIDATION / QUESTIONS).open("w", encoding="utf-8") as handle:
                for question in validation.questions:
                    handle.write(json.dumps(asdict(question), ensure_ascii=False) + "\n")
        _rename(building, folder, key)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _rename(building: Path, folder: Path, key: str) -> None:
    target = folder / TOKENS
    while not is_ready(folder, key):
        try:
            os.rename(building, target)
        except OSError:
            if not target.exists():
                raise
            # Left from an earlier run of this folder with other data: a rank that mapped it keeps its own view.
            stale = building.with_name(building.name + STALE)
            with suppress(FileNotFoundError):  # another process may have moved it just now
                os.rename(target, stale)
            shutil.rmtree(stale, ignore_errors=True)


def is_ready(folder: Path, key: str) -> bool:
    """Whether the trial folder holds whole tokens of ``key``."""
    try:
        return bool(json.loads((folder / TOKENS / COUNTS).read_text(encoding="utf-8"))["key"] == key)
    except (OSError, ValueError, KeyError):
        return False


class Samples:
    """The tokenised samples, mapped into memory: ranks of one node share the pages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = json.loads((folder / COUNTS).read_text(encoding="utf-8"))
        content.pop("key", None)
        self.counts = Counts(**content)
        self._ids, self._learnt = (np.load(folder / name, mmap_mode="r") for name in ("input_ids.npy", "learnt.npy"))
        self._offsets: NDArray[np.int64] = np.load(folder / "offsets.npy")

    @overload
    @classmethod
    def open(cls, folder: Path) -> "Samples": ...
    @overload
    @classmethod
    def open(cls, folder: Path, part: Literal["validation"]) -> "Samples | None": ...
    @classmethod
    def open(cls, folder: Path, part: str = "") -> "Samples | None":
        """The samples of a trial folder whose tokens are ready: to train on, or the ``validation`` ones if there are any."""
        found = folder / TOKENS / part
        return cls(found) if not part or found.is_dir() else None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample."""
        return np.diff(self._offsets)

    def sample(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids and labels of one sample, both int32 of its length; a label is the token's own id, or -100."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = slice(int(self._offsets[index]), int(self._offsets[index + 1]))
        ids = np.asarray(self._ids[part])
        return ids, np.where(self._learnt[part], ids, np.int32(IGNORED))

    def question(self, index: int) -> Question:
        """What validation sample ``index`` asks."""
        return self._questions[index]

    @cached_property
    def _questions(self) -> list[Question]:
        with (self._folder / QUESTIONS).open(encoding="utf-8") as handle:
            return [Question(**json.loads(line)) for line in handle]
