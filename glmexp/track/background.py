"""A tracker on a thread of its own: a slow or broken dashboard neither delays nor fails the trial."""

import queue
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from glmexp.track.base import RunInfo, SweepInfo, Tracker


class BackgroundTracker(Tracker):
    """Hands each call to ``inner`` in order on one thread and returns at once; ``finish`` waits for the rest.

    The first failure is remembered in ``error`` and told once; what follows is dropped. ``warn`` is called on the
    caller's thread only, with the next ``log`` or ``finish``.
    """

    def __init__(self, inner: Tracker, warn: Callable[[str], None], finish_seconds: float = 90.0) -> None:
        super().__init__(warn)
        self.inner = inner
        self.finish_seconds = finish_seconds
        """Longest wait for what is still to be sent when the trial has ended."""
        self._consequence = "tracking stopped, the run itself goes on"
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A daemon: a dashboard that hangs must not keep the process alive after its trial.
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        inner.warn = self._lines.put

    def start(self, run: RunInfo) -> None:
        self._thread.start()
        self._calls.put(lambda: self.inner.start(run))

    def go_on(self, step: int) -> None:
        self._calls.put(lambda: self.inner.go_on(step))

    def log(self, row: Mapping[str, Any]) -> None:
        self._calls.put(lambda: self.inner.log(row))
        self._tell()

    def finish(self, result: Mapping[str, Any]) -> None:
        if self._thread.is_alive():
            self._end(lambda: self.inner.finish(result))

    def overview(self, sweep: SweepInfo) -> None:
        self._consequence = "the tracker shows no whole overview of the sweep"
        self._thread.start()
        self._end(lambda: self.inner.overview(sweep))

    def _end(self, call: Callable[[], None]) -> None:
        """Waits for the last call and all before it, but not for ever."""
        self._calls.put(call)
        self._calls.put(None)
        self._thread.join(self.finish_seconds)
        if self._thread.is_alive():
            self._fail(f"the tracker was not done {self.finish_seconds:g} seconds after the end of the run")
        self._tell()

    def _work(self) -> None:
        # A scheduler's notice to every process of a job would end those that a dashboard's package starts here.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        while (call := self._calls.get()) is not None:
            if self.error is not None:
                continue
            try:
                call()
            except Exception as error:
                self._fail(_one_line(error))
            self.where = self.inner.where

    def _fail(self, error: str) -> None:
        if self.error is None:
            self.error = error
            self._lines.put(f"{self._consequence}: {error}")

    def _tell(self) -> None:
        while not self._lines.empty():
            self.warn(self._lines.get())


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
