"""Ranks forked from a server that has imported what they need: the parent's side of ``glmexp.train.server``."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from glmexp.trial.commands import Command
from glmexp.trial.orphan import TAG
from glmexp.trial.record import PARENT_PID
from glmexp.trial.starter import COLD, RankProcess, spared

SERVER = "glmexp.train.server"
PLACEHOLDER = "-" * 32
"""What a server has for a tag: its children write theirs over it, so it is as long as one."""
PER_RANK = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", PARENT_PID, TAG),
)
"""Variables that nothing reads while it is imported, or that a child makes good: they need no server of their own."""
SLOWEST_START = 60.0
"""Seconds that a server may take to import what it must; it takes 5 to 20."""
SERVER_LOST = re.compile(r"^the server that ranks are forked from \(sweep\.warm_start\) .*$", re.MULTILINE)
"""What ``train.log`` says of ranks that their server has taken along."""


class WarmStarter:
    """Has ranks forked from a server that has imported torch and DeepSpeed: ``glmexp.train.server``.

    There is one server for each environment that trials differ in, started when it is first needed, and a new one if it dies.
    Where none can be had the ranks are started cold. A context manager, which ends the servers; safe in threads.

    Args:
        warn: takes one line for the user; called from any thread.
    """

    def __init__(self, warn: Callable[[str], None] = lambda line: print(f"warning: {line}", file=sys.stderr)) -> None:
        self._warn = warn
        self._lock = threading.Lock()
        self._servers: dict[frozenset[tuple[str, str]], _Server] = {}

    def __enter__(self) -> "WarmStarter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            for server in self._servers.values():
                server.hang_up()
            for server in self._servers.values():
                server.join()
            self._servers.clear()

    def start(self, command: Command, log: Path) -> RankProcess:
        if command.rank is None:
            return COLD.start(command, log)
        environ = {name: value for name, value in command.environ.items() if name not in PER_RANK}
        if not command.environ.get("OMP_NUM_THREADS", "1").isdecimal():  # a list, which only OpenMP itself can read
            environ["OMP_NUM_THREADS"] = command.environ["OMP_NUM_THREADS"]
        key = frozenset(environ.items())
        with self._lock:
            server = self._servers.get(key)
            if server is None or server.lost:
                server = self._servers[key] = _Server(environ, self._warn)
        return server.start(command, log)


class _Server:
    """The parent's side of one server. Its thread starts the process, since the kernel ends a server with that thread."""

    def __init__(self, environ: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._environ = {
            "OMP_NUM_THREADS": "1",  # so that no library starts threads, which would not survive a fork
            **environ,
            TAG: PLACEHOLDER,
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a process that has asked CUDA itself cannot fork users of it
        }
        self._warn = warn
        self.changed = threading.Condition()
        self._ready = self._ended = self._closed = self._too_slow = False
        self._begun = time.monotonic()
        self._numbers = itertools.count()
        self._ranks: dict[int, _WarmRank] = {}
        """Those that have not ended, by the number of their order."""
        self._waiting: dict[int, bytes] = {}
        """Orders that came before the server was ready."""
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._keep, name="warm start server", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether it has worked, and is gone: worth another one, unlike one that could not start."""
        with self.changed:
            return self._ready and self._ended

    def start(self, command: Command, log: Path) -> "_WarmRank":
        number = next(self._numbers)
        order = {
            "id": number,
            "arguments": command.arguments[command.arguments.index("-m") + 1 :],
            "environ": command.environ,
            "log": str(log.absolute()),
            "folder": os.getcwd(),
        }
        with self.changed:
            rank = _WarmRank(self, number, command, log)
            rank.lost = self._ended
            self._ranks[number] = rank
            if self._ready:
                self._send(_line(order))
            else:
                self._waiting[number] = _line(order)
        return rank

    def kill(self, rank: "_WarmRank") -> None:
        with self.changed:
            waited = self._waiting.pop(rank.number, None) is not None
            if waited and not self._ended and time.monotonic() - self._begun > SLOWEST_START:
                self._too_slow = True  # it hangs, and would cost each trial its time
                self._shut()
            if rank.code is None and not rank.forked:
                rank.code = -signal.SIGKILL  # for good, whatever the server is still to say of it
            if self._ready and rank.number in self._ranks:
                self._send(_line({"kill": rank.number}))

    def _send(self, lines: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone: the thread is about to notice
            self._ours.sendall(lines)

    def hang_up(self) -> None:
        """Lets the server end its ranks and itself."""
        self._closed = True
        self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        self._thread.join(timeout=10)

    def _keep(self) -> None:
        how = "could not be heard any more"
        try:
            how = self._live()
        finally:
            self._end(how)

    def _live(self) -> str:
        """The server's life as its thread sees it; how it ended."""
        with self._ours, tempfile.TemporaryFile() as output:
            try:
                with self._theirs, spared():
                    process = subprocess.Popen(
                        [sys.executable, "-m", SERVER, str(self._theirs.fileno())],
                        env=self._environ,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        pass_fds=[self._theirs.fileno()],
                        start_new_session=True,
                    )
            except OSError as error:
                return f"could not be started: {error}"
            with contextlib.suppress(OSError), self._ours.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    self._hear(json.loads(line))
            if self._closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
            process.kill()
            code = process.wait()
            if self._too_slow:
                return f"was not ready after {time.monotonic() - self._begun:.0f} seconds"
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
            return f"ended with code {code}" if self._ready else f"ended with code {code}: {_last_line(output)}"

    def _hear(self, told: Mapping[str, Any]) -> None:
        with self.changed:
            if told.get("ready"):
                self._ready = True
                self._send(b"".join(self._waiting.values()))
                self._waiting.clear()
                return
            rank = self._ranks[told["id"]]
            rank.forked = rank.forked or "pid" in told
            rank.lost = "error" in told
            if rank.code is None:
                rank.code = told.get("code")
            if "pid" not in told:
                del self._ranks[rank.number]
            self.changed.notify_all()

    def _end(self, how: str) -> None:
        """Tells the ranks that their server is gone: those that it had forked died with it, the others are started cold."""
        with self.changed:
            self._ended = True
            running = [rank for rank in self._ranks.values() if rank.code is None]
            self._ranks.clear()
            for rank in running:
                rank.lost = not rank.forked
                rank.code = -signal.SIGKILL if rank.forked else None
            for log in {rank.log for rank in running if rank.forked}:
                with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as lines:
                    lines.write(f"the server that ranks are forked from (sweep.warm_start) {how}\n")
            self.changed.notify_all()
        if not self._ready and not self._closed:
            self._warn(f"trials are started cold: the server that ranks are forked from (sweep.warm_start) {how}")


class _WarmRank:
    """A rank that a server was asked for."""

    def __init__(self, server: _Server, number: int, command: Command, log: Path) -> None:
        self.server = server
        self.number = number
        self.command = command
        self.log = log
        self.forked = False
        self.lost = False
        """The server will not fork it: to be started cold."""
        self.code: int | None = None
        self._cold: RankProcess | None = None

    def poll(self) -> int | None:
        # Started cold here and not by the server's thread: the kernel ends a rank with the thread that started it.
        if self.lost and self.code is None and self._cold is None:
            self._cold = COLD.start(self.command, self.log)
        return self.code if self._cold is None else self._cold.poll()

    def wait(self, timeout: float | None = None) -> int:
        if self._cold is not None:
            return self._cold.wait(timeout)
        with self.server.changed:
            self.server.changed.wait_for(lambda: self.code is not None or self.lost, timeout)
        if self.code is None:
            raise subprocess.TimeoutExpired(self.command.arguments, timeout or 0.0)
        return self.code

    def kill(self) -> None:
        if self._cold is not None:
            self._cold.kill()
        self.server.kill(self)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
