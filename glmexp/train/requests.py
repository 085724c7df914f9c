"""A request to end from outside: a signal, as schedulers send them before they take a machine away."""

import signal
from types import FrameType, TracebackType


class EndRequests:
    """Notes the signals while it is entered, so that the run can save before it ends.

    More of them change nothing: a launcher may send one to each process and to their group.
    """

    CAUGHT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.received: int | None = None
        self._before: dict[int, object] = {}
        self._mask: set[int] = set()

    def __enter__(self) -> "EndRequests":
        if self.wanted:
            self._before = {number: signal.signal(number, self._receive) for number in self.CAUGHT}
            self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # one that came earlier was held back
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.wanted:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
