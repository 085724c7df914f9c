"""A sweep's folder: one sweep at a time, what is finished in it, and where the next trial goes.

The trials' own ``result.json`` files are the only record, so that a parent killed at any moment loses the trial in flight at
most, and a trial can be taken away by deleting its folder or its result.
"""

import fcntl
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.config.choices import Retry
from glmexp.config.errors import UserError
from glmexp.trial.record import CONFIG, DS_CONFIG, RESULT, State, write_json
from glmexp.trial.result import Result, read_result, write_result

SETTINGS = "sweep.json"
LOCK = ".lock"
HASHED = re.compile(r"-[0-9a-f]{8}$")
"""How the name of a trial's folder ends."""
ATTEMPT = re.compile(r"attempt(\d+)")
NEVER_RAN = (State.invalid, State.skipped)
"""Decided anew in each session, since it costs nothing."""


@dataclass(frozen=True)
class Finished:
    """A trial that has a result."""

    folder: Path
    result: Result

    def stands(self, retry: Iterable[Retry]) -> bool:
        """Whether how it ended is final: ``sweep.retry`` does not name it."""
        return self.result.state not in {State(state.value) for state in retry}


class SweepFolder:
    """``multirun/<name>/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def name(self) -> str:
        return self.path.name

    def open(self, resume: bool) -> None:
        """Takes the folder for this process until it ends, whichever way: the kernel frees the lock with it.

        Raises:
            UserError: another sweep runs there, what is there is no sweep's, or trials are there and ``resume`` is not set.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UserError(
                f"{self.path} cannot be the sweep's folder: a file is in its way\n"
                "give another sweep.name, or hydra.sweep.dir=PATH"
            ) from error
        lock = self.path / LOCK
        new = not lock.exists()
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise UserError(
                f"another sweep is running in {self.path}\nwait for its end, or name another folder: sweep.name=NAME"
            ) from error
        self._lock = handle
        if (refusal := self._refusal(resume)) is not None:
            if new:
                lock.unlink(missing_ok=True)
            self.close()
            raise UserError(refusal)

    def _refusal(self, resume: bool) -> str | None:
        """Why no sweep can begin among what is there already."""
        another = "name another folder: sweep.name=NAME, or hydra.sweep.dir=PATH"
        if run := [name for name in (RESULT, CONFIG, DS_CONFIG) if (self.path / name).exists()]:
            return f"{self.path} is the folder of a single run: {', '.join(run)}\n{another}"
        if resume:
            return None
        if trials := list(self.trials()):
            start = f"{self.path} holds {len(trials)} trial(s) already"
            return f"{start}\nadd sweep.resume=true to go on with them, or give a new sweep.name"
        others = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
        if others and not (self.path / SETTINGS).exists():
            return f"{self.path} holds other files: {', '.join(others[:3])}{', ...' if others[3:] else ''}\n{another}"
        return None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def abandon(self) -> None:
        """Takes the folder away again if no trial came to it."""
        if any(self.trials()):
            return
        for name in (SETTINGS, "multirun.yaml", LOCK):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # something else lies there
            self.path.rmdir()

    def trials(self) -> Iterator[Path]:
        """The trial folders, finished or not; a link to one counts."""
        for path in sorted(self.path.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and is_trial(path):
                yield path

    def results(self) -> list[Finished]:
        """Every trial that has a result, in the order of the folders' names."""
        found = ((path, read_result(path)) for path in self.trials())
        return [Finished(path, result) for path, result in found if result is not None]

    def ran(self) -> dict[str, Finished]:
        """The trials that ran, by the hash of what they were."""
        return {
            finished.result.config_hash: finished
            for finished in self.results()
            if finished.result.config_hash is not None and finished.result.state not in NEVER_RAN
        }

    def of_this_session(self, finished: Finished) -> bool:
        """Whether the trial ended after this session's start, which has written the settings."""
        try:
            return (finished.folder / RESULT).stat().st_mtime_ns >= (self.path / SETTINGS).stat().st_mtime_ns
        except OSError:
            return False

    def place(self, name: str, digest: str) -> Path:
        """The folder for a trial: of an earlier session that got no further, whatever it was called then, or a new one."""
        for path in self.trials():
            if path.name.endswith(f"-{digest[:8]}"):
                result = read_result(path)
                if result is None or (result.config_hash == digest and result.state not in NEVER_RAN):
                    return path
        return self._free(name)

    def _free(self, name: str) -> Path:
        """Where a trial of this name goes: elsewhere if something that is no folder is in its way."""
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        return next(path for path in map(self.path.joinpath, names) if path.is_dir() or not os.path.lexists(path))

    def record(self, name: str, result: Result) -> None:
        """The row of a trial that was not run; a try that was made before is kept in ``attempt<N>/``."""
        folder = self._free(name)
        earlier = read_result(folder)
        if earlier is not None and (earlier.state, earlier.reason) == (result.state, result.reason):
            return
        if earlier is not None and earlier.state not in NEVER_RAN:
            set_aside(folder)
        folder.mkdir(exist_ok=True)
        write_result(result, folder)

    def save_settings(self, settings: dict[str, Any]) -> None:
        write_json(self.path / SETTINGS, settings)

    def settings(self) -> dict[str, Any]:
        """What ``save_settings`` wrote; empty where nothing can be read."""
        try:
            content = json.loads((self.path / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def is_trial(folder: Path) -> bool:
    """Whether it is the folder of a trial, by what is in it or by its name; an empty one is nothing yet."""
    named = HASHED.search(folder.name) and any(folder.iterdir())
    return bool(named) or any((folder / name).exists() for name in (RESULT, CONFIG))


def set_aside(folder: Path) -> int:
    """Moves an earlier try of this trial into ``attempt<N>/``; the number of tries that are there then.

    One rename a file: whoever is killed in between finds the rest at the next start.
    """
    if not folder.is_dir():
        return 0
    numbers = [int(found[1]) for path in folder.iterdir() if (found := ATTEMPT.fullmatch(path.name))]
    earlier = [path for path in folder.iterdir() if not ATTEMPT.fullmatch(path.name)]
    if not earlier:
        return len(numbers)
    target = folder / f"attempt{max(numbers, default=0) + 1}"
    target.mkdir()
    # The result last: until then a reader finds the earlier try where it was.
    for path in sorted(earlier, key=lambda path: path.name == RESULT):
        os.replace(path, target / path.name)
    return len(numbers) + 1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process holds this lock; the kernel frees that of one that dies."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def claimed(sweep: Path, digest: str) -> AbstractContextManager[None]:
    """Waits until no other process is at the trial with this hash, where a launcher runs several at once."""
    folder = sweep / ".claims"
    folder.mkdir(exist_ok=True)
    return locked(folder / digest)
