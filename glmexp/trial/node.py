"""One parent a node: under an outer launcher the process with local rank 0 works, the others wait for its exit code.

They meet at a socket in Linux's abstract namespace, which is gone with its owner: no file can be left over or mistaken
for another run's.
"""

import contextlib
import hashlib
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from glmexp.config.errors import UserError
from glmexp.trial.launcher import Outer

MEET_SECONDS = 120.0
"""How long to wait for the process with local rank 0 to show up: it has only to import Python modules by then."""
GATHER_SECONDS = 30.0
"""How long a finished parent waits for processes that have not come yet to fetch the exit code."""


def new_run_id(node: int = 0) -> str:
    """The last part of a run folder's name: unlike any other's, even of two runs that start at the same instant.

    Further nodes of a run get a folder of their own, marked ``-node<k>``: there each node's parent keeps its ranks' files.
    """
    return secrets.token_hex(4) + (f"-node{node}" if node else "")


def once_a_node(work: Callable[[], int], outer: Outer | None) -> int:
    """Runs ``work`` if this process is the parent of its node, else waits for the one that is; the exit code of either.

    To be entered before anything slow. Without a launcher, or alone on its node, this is just ``work()``.
    """
    if outer is None or outer.local_world_size == 1:
        return work()
    if outer.local_rank > 0:
        return follow(outer)
    with _listen(outer) as server:
        code = 1
        try:
            code = work()
        except UserError:
            code = 2
            raise
        except KeyboardInterrupt:
            code = 130
            raise
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        finally:
            _tell(server, code, outer.local_world_size - 1)
    return code


def follow(outer: Outer) -> int:
    """Waits until the parent of this node has ended; its exit code, or 1 if it ended without telling one.

    Signals are the parent's to answer, which may save a checkpoint first: launchers send them to every process, and the first
    that went would take the others along.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        return _told(outer)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(outer: Outer) -> int:
    deadline = time.monotonic() + MEET_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        while True:
            try:
                client.connect(_address(outer))
                break
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > deadline:
                    print(f"glmexp: the {outer.name} process with local rank 0 did not start", file=sys.stderr)
                    return 1
                time.sleep(0.1)
        try:
            told = client.recv(1)
        except ConnectionError:
            return 1
    return told[0] if told else 1


def _address(outer: Outer) -> str:
    # Socket names are short (108 bytes), job names need not be.
    digest = hashlib.sha256(f"{outer.name} {outer.job}".encode()).hexdigest()[:32]
    return f"\0glmexp-{os.getuid()}-{digest}"


def _listen(outer: Outer) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + GATHER_SECONDS
    while True:
        try:
            server.bind(_address(outer))
            break
        except OSError:  # the parent of an earlier launch on the same port has not quite gone
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    server.listen(outer.local_world_size)
    return server


def _tell(server: socket.socket, code: int, waiting: int) -> None:
    """Hands ``code`` to as many processes as are ``waiting``; the kernel has kept their connections in the backlog."""
    deadline = time.monotonic() + GATHER_SECONDS
    while waiting > 0 and (left := deadline - time.monotonic()) > 0:
        if not select.select([server], [], [], left)[0]:
            break
        with contextlib.suppress(OSError), server.accept()[0] as client:
            client.sendall(bytes([code % 256]))
        waiting -= 1
