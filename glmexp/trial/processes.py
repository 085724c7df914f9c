"""The processes of one run: start them, watch them, and leave none behind."""

import contextlib
import errno
import math
import os
import secrets
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from glmexp.trial.commands import Command
from glmexp.trial.orphan import Guardian, end_tagged, tagged
from glmexp.trial.record import Phase, RankRecord, State
from glmexp.trial.starter import COLD, RankProcess, Starter

POLL_SECONDS = 0.1
PEER_SECONDS = 5.0
"""How long the others may go on after one rank has failed: time to say why they, too, cannot."""
FAREWELL_SECONDS = 60.0
"""How long a process may take to exit once every rank has told its outcome."""
TOGETHER_SECONDS = 0.5
"""Signals within this are one."""
GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""


def new_tag() -> str:
    """A name for the processes of one run that no other run has."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Ending:
    """How the processes ended, before anything is read into it."""

    codes: dict[int | None, int | None]
    """Rank -> exit code (negative: the signal), None for one that had to be ended; key None is an inner launcher."""
    stop: State | None
    """Set if it was we who stopped the run: timeout or interrupted."""
    signal_number: int | None
    """The signal that interrupted the run."""
    hung: bool = False
    """The timeout was that of progress, not that of the whole run."""


@dataclass(frozen=True)
class Limits:
    """Seconds after which a run is ended; None has no limit."""

    run_seconds: float | None = None
    """For the whole run."""
    progress_seconds: float | None = None
    """Without news of any rank: a change of its record or a row of ``metrics.jsonl``."""


class Signals:
    """Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 while a run is going on, so that it is ended and recorded first.

    Python delivers signals to the main thread only; in another one this catches nothing. A second signal cuts the grace; those
    that come at once are one, since launchers send them to each process and to their group.
    SIGUSR1 is how schedulers tell that the time is almost up: it ends a run that saves a checkpoint first, and no other.

    Args:
        saves: whether a run saves a checkpoint when it is asked to end.
    """

    CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self, saves: bool = False) -> None:
        self.saves = saves
        self.received: list[int] = []
        self._last = -math.inf
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in self.CAUGHT:
                # nohup ignores SIGHUP so that a run survives its terminal: leave it so. SIGUSR1 is ignored until here.
                if number == signal.SIGUSR1 or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1 and not self.saves:
            with contextlib.suppress(OSError):  # not print(): this may have come in the middle of one
                os.write(2, b"glmexp: SIGUSR1 has no effect without checkpoint.every or train.resume=auto; the run goes on\n")
            return
        if number == signal.SIGHUP:
            let_go_of_terminal()
        now = time.monotonic()
        if now - self._last > TOGETHER_SECONDS:
            self._last = now
            self.received.append(number)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def let_go_of_terminal() -> None:
    """What is still said to a terminal that is gone goes nowhere, instead of ending the run by an error of its own."""
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # hung up; what never was a terminal gives ENOTTY
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream)


class Processes:
    """The processes of one run on this node. As a context manager it leaves none alive."""

    def __init__(self, commands: Sequence[Command], log: Path, tag: str, starter: Starter = COLD) -> None:
        self.commands = commands
        self.log = log
        self.tag = tag
        self.starter = starter
        self.running: list[RankProcess] = []
        self.guardian: Guardian | None = None

    def __enter__(self) -> "Processes":
        try:
            self.guardian = Guardian(self.tag, self.commands[0].environ)
            for command in self.commands:
                self.running.append(self.starter.start(command, self.log))
        except BaseException:
            self.end(grace_seconds=0.0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(grace_seconds=0.0 if kind else GRACE_SECONDS)

    def codes(self) -> dict[int | None, int | None]:
        """Rank -> exit code, None while it runs."""
        return {command.rank: process.poll() for command, process in zip(self.commands, self.running, strict=False)}

    def pause(self, seconds: float) -> None:
        """Waits so long, or until the first process that still runs has ended."""
        running = next((process for process in self.running if process.poll() is None), None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if running is not None:
                running.wait(timeout=seconds)

    def end(self, grace_seconds: float) -> None:
        """Ends whatever of this run is still alive, in whichever session it hides, and reaps it."""
        end_tagged(self.tag, grace_seconds)
        for process in self.running:
            process.kill()  # one that was asked for may not have come to life yet
            # What SIGKILL did not end is stuck in the kernel; it cannot be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
        if self.guardian is not None:
            self.guardian.release()
            self.guardian = None


def watch(
    processes: Processes,
    observe: Callable[[], tuple[list[RankRecord], int]],
    ranks: int,
    signals: Signals,
    limits: Limits,
    ask: Callable[[Sequence[RankRecord]], bool] = lambda records: False,
) -> Ending:
    """Waits until the run has ended, or ends it: at a signal, at a limit, or some seconds after a rank has failed.

    Args:
        observe: called every tenth of a second; shows what is new and returns the ranks' records and the rows of
            ``metrics.jsonl`` so far.
        ranks: ranks on this node.
        ask: at the first signal or the run's time limit, asks the ranks to save and to end by themselves, and returns whether
            they will; a further signal, or no progress for too long, ends the run at once.
    """
    started = news_at = time.monotonic()
    news: tuple[list[RankRecord], int] = ([], 0)
    leave_by: float | None = None
    stop: State | None = None
    asked: State | None = None
    answered = 0
    """Signals that the ranks were asked for."""
    hung = False
    while True:
        codes = processes.codes()
        latest = observe()
        now = time.monotonic()
        if latest != news:
            news, news_at = latest, now
        if all(code is not None for code in codes.values()):
            break
        hung = limits.progress_seconds is not None and now - news_at > limits.progress_seconds
        if len(signals.received) > answered:
            stop = State.interrupted
        elif hung or (asked is None and limits.run_seconds is not None and now - started > limits.run_seconds):
            stop = State.timeout
        if stop is not None and asked is None and not hung and ask(latest[0]):
            asked, stop, answered = stop, None, len(signals.received)
        if stop is not None:
            break
        if leave_by is None and (patience := _patience(codes, latest[0], ranks)) is not None:
            leave_by = now + patience
        if leave_by is not None and now > leave_by:
            break
        processes.pause(POLL_SECONDS)
    _end(processes, signals, grace_seconds=GRACE_SECONDS if asked is None else 0.0)
    records, _ = observe()
    if asked is not None and [record.outcome for record in records].count(State.complete) < ranks:
        stop = State.interrupted if signals.received else asked
    return Ending(codes, stop, signals.received[0] if stop is State.interrupted else None, hung)


def ask_to_save(tag: str, records: Sequence[RankRecord]) -> bool:
    """Passes a SIGTERM on to the ranks of this node if they have something to save; whether they have."""
    phases = list(Phase)
    if not records or any(phases.index(record.phase) < phases.index(Phase.training) for record in records):
        return False
    ours = set(tagged(tag))
    for record in records:
        if record.outcome is None and record.pid in ours:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(record.pid, signal.SIGTERM)
    return True


def _patience(codes: dict[int | None, int | None], records: list[RankRecord], ranks: int) -> float | None:
    """Seconds after which processes that still run are ended, None while nothing is wrong."""
    outcomes = {record.rank: record.outcome for record in records if record.outcome is not None}
    if State.invalid in outcomes.values():
        return 0.5  # the user waits for a message that is already written
    # Ranks that were asked to save and end have a code of their own, and one of them may be tidying up still.
    failed = [rank for rank, code in codes.items() if code and (rank is None or outcomes.get(rank) is not State.interrupted)]
    if failed or any(outcome not in (State.complete, State.interrupted) for outcome in outcomes.values()):
        return PEER_SECONDS
    return FAREWELL_SECONDS if len(outcomes) == ranks or State.interrupted in outcomes.values() else None


def _end(processes: Processes, signals: Signals, grace_seconds: float) -> None:
    """SIGTERM and the grace on a thread of their own, so that a second Ctrl-C can cut the grace short."""
    known = len(signals.received)
    ending = threading.Thread(target=processes.end, args=(grace_seconds,))
    ending.start()
    while ending.is_alive():
        ending.join(POLL_SECONDS)
        if len(signals.received) > max(1, known):
            end_tagged(processes.tag, grace_seconds=0.0)
    ending.join()
