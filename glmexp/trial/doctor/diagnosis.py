"""One line of ``doctor``: what was looked at, in which state it is, and the next move."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")

NOT_SEEN = "mend what else is told here and look again; report this line if it stays"


class State(str, Enum):
    ok = "ok"
    warn = "warn"
    """Some options do not work or are slow; runs without them go."""
    fail = "fail"
    """No run works, or none on this machine's GPUs."""


@dataclass(frozen=True)
class Diagnosis:
    state: State
    finding: str
    next: str | None = None
    """The next move; None where all is well."""


class NotSeenError(Exception):
    """A fact that a check needs could not be found out; the message says why."""


def ok(finding: str) -> Diagnosis:
    return Diagnosis(State.ok, finding)


def warn(finding: str, move: str) -> Diagnosis:
    return Diagnosis(State.warn, finding, move)


def fail(finding: str, move: str) -> Diagnosis:
    return Diagnosis(State.fail, finding, move)


class Look(Generic[T]):
    """Work on a thread that is left alone when time is up: a dead network disk or a hung driver never answers."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._done: list[T] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        self._started = time.monotonic()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._done.append(work())
        except BaseException as error:
            self._failed.append(error)

    def result(self, seconds: float) -> T:
        """What the work returned or raised, at most so long after its start; raises NotSeenError if there is nothing yet."""
        self._thread.join(max(0.0, self._started + seconds - time.monotonic()))
        if self._failed:
            raise self._failed[0]
        if not self._done:
            raise NotSeenError(f"no answer within {seconds:.0f} s")
        return self._done[0]


def diagnose(checks: Mapping[str, Callable[[], Diagnosis]], seconds: float) -> dict[str, Diagnosis]:
    """What each check finds, all looking at once; a warning for one that raises or takes longer than ``seconds``."""
    looks = {name: Look(check) for name, check in checks.items()}
    found = {}
    for name, look in looks.items():
        try:
            found[name] = look.result(seconds)
        except Exception as error:
            found[name] = warn(f"could not be looked at: {first_line(error)}", NOT_SEEN)
    return found


def first_line(error: BaseException) -> str:
    """The error in one line of at most 300 characters, with its kind unless it is ours."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    if isinstance(error, NotSeenError):
        return text
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")
