"""How the processes of a run come to life: each from nothing, or (``glmexp.trial.warm``) forked from one that is warm."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from glmexp.trial.commands import Command
from glmexp.trial.orphan import offer_to_the_kernel


class RankProcess(Protocol):
    """What is needed of a process that was started, in the words of ``subprocess.Popen``."""

    def poll(self) -> int | None:
        """The exit code (negative: the signal), None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        ...

    def kill(self) -> None:
        """Ends it by SIGKILL, or keeps it from starting; does nothing if it has ended."""
        ...


class Starter(Protocol):
    def start(self, command: Command, log: Path) -> RankProcess:
        """Starts a command in a session of its own, its output appended to ``log``; raises OSError."""
        ...


@contextmanager
def spared() -> Iterator[None]:
    """Holds SIGUSR1 back from processes that are started meanwhile, whose end it would be, until they can answer it.

    A scheduler sends it to every process of a job; a rank that saves lets it come (``train.requests``).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ColdStarter:
    """A fresh interpreter for each command."""

    def start(self, command: Command, log: Path) -> RankProcess:
        with log.open("ab") as output, spared():
            process = subprocess.Popen(
                command.arguments,
                env=command.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for the parent, which ends the ranks in order.
                start_new_session=True,
            )
        offer_to_the_kernel(process.pid)
        return process


COLD = ColdStarter()
