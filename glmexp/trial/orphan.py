"""No rank outlives the run it belongs to, however the run ends.

Three nets, since each has a hole: the kernel's parent-death signal reaches only direct children, the watchdog thread
needs Python's lock, and the guardian finds its prey by a tag in /proc/<pid>/environ. Both sides import this module, so
it stands on the standard library alone.
"""

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from glmexp.trial.record import PARENT_PID

TAG = "GLMEXP_TRIAL_TAG"
"""Environment variable that marks every process of one trial, whatever its session, group or parent."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ends this rank when the process named by GLMEXP_PARENT_PID is gone; does nothing for a rank started by hand.

    To be called first, from the main thread of the rank.
    """
    if PARENT_PID not in os.environ:
        return
    die_with_creator()
    die_with(int(os.environ[PARENT_PID]))


def die_with(pid: int) -> None:
    """Ends this process once another one of this machine is gone, whoever started it."""
    threading.Thread(target=_end_after, args=(pid,), name="parent watchdog", daemon=True).start()


def die_with_creator() -> None:
    """Lets the kernel end this process together with the thread that started it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def wear(tag: str) -> None:
    """Makes a forked process one of those with ``tag``: what its parent found as TAG when it started is written over.

    /proc/<pid>/environ shows the memory that the environment began in, whatever ``os.environ`` holds by now. To be called
    before TAG is set there.

    Raises:
        OSError: the parent had no TAG of this length.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(TAG.encode())
    if place is None or len(ctypes.string_at(place)) != len(tag):
        raise OSError(f"no room for {TAG} in the environment")
    ctypes.memmove(place, tag.encode(), len(tag))


def offer_to_the_kernel(pid: int) -> None:
    """When host memory runs out the kernel should take this process, not the one that called, which has to tell of it."""
    with contextlib.suppress(OSError, ValueError):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(1000, own + 300)))


def _end_after(parent: int) -> None:
    """Waits until ``parent`` has ended, then kills this process: nobody is left to read an exit message."""
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
    except (OSError, AttributeError):  # an old kernel, or a sandbox that forbids the call
        while is_alive(parent):
            time.sleep(1.0)
    else:
        select.select([handle], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether a process of this id exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def abandoned(folder: Path, names: str) -> list[Path]:
    """What processes that are no more left in a folder, such as a half-written file of one that was killed.

    Args:
        names: a regular expression of whole names, whose first group is the id of the process that wrote it.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    return [path for path in paths if (found := re.fullmatch(names, path.name)) and not is_alive(int(found[1]))]


def tagged(tag: str) -> Iterator[int]:
    """The pids of all live processes with this tag, the caller excepted."""
    wanted = f"{TAG}={tag}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        # A zombie's environment reads as empty, so the dead are not found.
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in path.read_bytes().split(b"\0"):
                yield pid


def end_tagged(tag: str, grace_seconds: float, kill_seconds: float = 5.0) -> list[int]:
    """SIGTERM, then SIGKILL after ``grace_seconds``, to all with this tag; the pids that even that did not end."""
    for number, wait in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, kill_seconds)):
        deadline = time.monotonic() + wait
        told: set[int] = set()
        while wait > 0:
            # Looked up again each time: a process may have started another between the scan and the signal.
            alive = set(tagged(tag))
            if not alive:
                return []
            for pid in alive - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            told |= alive
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    return sorted(tagged(tag))


class Guardian:
    """A small process of its own session that ends everything with the tag once its owner has died without a word."""

    def __init__(self, tag: str, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glmexp.trial.orphan", tag],
            env={name: value for name, value in environ.items() if name != TAG},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """Tells the guardian that all is well; it goes."""
        with contextlib.suppress(OSError):
            self.process.communicate(b"released", timeout=10)
        self.process.poll()


def guard(tag: str) -> None:
    """The guardian's life: the end of the pipe means that its owner is gone, whichever way."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != b"released":
        end_tagged(tag, grace_seconds=0.0)


if __name__ == "__main__":
    guard(sys.argv[1])
