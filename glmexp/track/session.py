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
        self._tried = False
        self._lost = False

    def connect(self, attempt: Callable[[], Made]) -> Made | None:
        """What ``attempt`` makes, or None if the server is lost; raises the error of the attempt that lost it."""
        if not self._tried:
            with self._lock:
                if not self._tried:
                    try:
                        return self._connect(attempt)
                    finally:
                        self._tried = True
        return self._connect(attempt)

    def _connect(self, attempt: Callable[[], Made]) -> Made | None:
        if self._lost:
            return None
        try:
            return attempt()
        except Exception:
            if self.lose():
                raise
            return None

    def lose(self) -> bool:
        """Records that the server does not answer; whether that is news."""
        with self._lock:
            news, self._lost = not self._lost, True
        return news
