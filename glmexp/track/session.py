"""What the trials of one sweep share of a tracker: whether its server can be reached."""

import threading
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


class Session:
    """Finds out once whether the server answers, so that one out of reach costs its timeout once. Threads may share it.

    Until the first attempt has ended others wait for it. Once the server is lost it stays so: every later trial is recorded
    offline at once, and nothing more is said about it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._reached: bool | None = None

    def connect(self, attempt: Callable[[], Made]) -> Made | None:
        """What ``attempt`` makes, or None if the server is lost; raises the error of the attempt that lost it."""
        if self._reached is None:
            with self._lock:
                if self._reached is None:
                    return self._attempt(attempt)
        return self._attempt(attempt)

    def _attempt(self, attempt: Callable[[], Made]) -> Made | None:
        if self._reached is False:
            return None
        try:
            made = attempt()
        except Exception:
            if self.lose():
                raise
            return None
        with self._lock:
            # Another trial may have lost the server meanwhile, and has told so.
            self._reached = self._reached is not False
        return made

    def lose(self) -> bool:
        """Records that the server does not answer; whether that is news."""
        with self._lock:
            news = self._reached is not False
            self._reached = False
        return news
