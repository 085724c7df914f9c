"""The tokenised data set on disk: written once by one process, mapped into memory by every rank.

``FOLDER/tokens/`` holds ``input_ids.npy`` (int32, all samples one after another), ``learnt.npy`` (bool, the same length),
``offsets.npy`` (int64, sample i is [offsets[i], offsets[i + 1])) and ``counts.json``. The folder is built under another name
and renamed when it is whole, so that its presence means that it is ready: no rank has to wait for it in a collective, whose
time limit a large data set would exceed.
"""

import json
import os
import shutil
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TOKENS = "tokens"
COUNTS = "counts.json"
IGNORED = -100
"""Label of a position that is not learnt (PyTorch's ``ignore_index``)."""


@dataclass
class Counts:
    """What became of the samples. read = kept + unused + the sum of dropped + bad."""

    read: int = 0
    kept: int = 0
    cut: int = 0
    """Kept, but shortened."""
    unused: int = 0
    """Left out because longer ones are enough, under ``measure.samples=longest``."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> samples left out."""
    bad: int = 0
    """Lines that could not be read, under ``data.on_bad=skip``."""
    first_bad: list[str] = field(default_factory=list)
    """The messages of the first few bad lines."""
    tokens: int = 0
    targets: int = 0
    """Tokens that are learnt."""
    longest: int = 0
    """Tokens of the longest sample kept."""

    def describe(self) -> str:
        """One line such as ``336 samples read, 330 kept (2 cut), 6 dropped: 6 longer than data.max_length``."""
        text = f"{self.read} samples read, {self.kept} kept" + (f" ({self.cut} cut)" if self.cut else "")
        if self.unused:
            text += f", {self.unused} shorter ones left out"
        if self.dropped:
            reasons = "; ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            text += f", {sum(self.dropped.values())} dropped: {reasons}"
        if self.bad:
            text += f", {self.bad} bad and skipped"
        return text


class TokenWriter:
    """Collects encoded samples and writes the folder in one go.

    Args:
        folder: the trial folder.
        key: names what the tokens are made from; tokens of another key that are there are replaced.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self._ids = array("i")
        self._learnt = bytearray()
        self._offsets = array("q", [0])

    def add(self, ids: Sequence[int], learnt: Sequence[bool]) -> None:
        """Adds one sample: its token ids and, for each, whether it is learnt."""
        self._ids.extend(ids)
        self._learnt.extend(learnt)
        self._offsets.append(len(self._ids))

    def largest_id(self) -> int:
        """The largest token id so far, or -1."""
        return int(np.frombuffer(self._ids, np.int32).max()) if self._ids else -1

    def close(self, counts: Counts) -> None:
        """Writes the files and makes them visible at once. If another process was faster, its tokens stand."""
        building = self.folder / f".{TOKENS}.{socket.gethostname()}.{os.getpid()}"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            np.save(building / "input_ids.npy", np.frombuffer(self._ids, np.int32))
            np.save(building / "learnt.npy", np.frombuffer(bytes(self._learnt), np.bool_))
            np.save(building / "offsets.npy", np.frombuffer(self._offsets, np.int64))
            content = {"key": self.key, **asdict(counts)}
            (building / COUNTS).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
            self._publish(building)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _publish(self, building: Path) -> None:
        target = self.folder / TOKENS
        while not is_ready(self.folder, self.key):
            try:
                os.rename(building, target)
            except OSError:
                if not target.exists():
                    raise
                # Left from an earlier run of this folder with other data: a rank that mapped it keeps its own view.
                stale = building.with_name(building.name + ".stale")
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

    def __init__(self, ids: NDArray[np.int32], learnt: NDArray[np.bool_], offsets: NDArray[np.int64], counts: Counts) -> None:
        self._ids, self._learnt, self._offsets = ids, learnt, offsets
        self.counts = counts

    @classmethod
    def open(cls, folder: Path) -> "Samples":
        """The samples of a trial folder whose tokens are ready."""
        tokens = folder / TOKENS
        content = json.loads((tokens / COUNTS).read_text(encoding="utf-8"))
        content.pop("key")
        ids, learnt = (np.load(tokens / name, mmap_mode="r") for name in ("input_ids.npy", "learnt.npy"))
        return cls(ids, learnt, np.load(tokens / "offsets.npy"), Counts(**content))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def sample(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids and labels of one sample, both int32 of its length; a label is the token's own id, or -100."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = slice(int(self._offsets[index]), int(self._offsets[index + 1]))
        ids = np.asarray(self._ids[part])
        return ids, np.where(self._learnt[part], ids, np.int32(IGNORED))
