"""A launcher's worker does not outlive the sweep that it works for.

joblib, submitit and Ray leave their workers running when the process that started the sweep is killed, and those would go on
with trials that nobody waits for. glmexp's own launcher has no workers.
"""

import os
import socket
from functools import cache

from glmexp.trial.orphan import die_with

PARENT = "GLMEXP_SWEEP_PARENT"
"""Environment variable with host and pid of the process that holds the sweep's folder."""


def this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@cache  # once a process: a worker may run many trials
def follow_parent() -> None:
    """Lets this worker end when the sweep's parent does. On another machine there is no way to tell."""
    host, _, pid = os.environ.get(PARENT, "").rpartition(":")
    if host == socket.gethostname() and int(pid) != os.getpid():
        die_with(int(pid))
