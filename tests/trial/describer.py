"""A worker that tells what kind of process it is: ``state<N>.json``."""

import faulthandler
import gc
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy
import torch

from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import RankWriter, State

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


def oom_score_adj(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def main():
    die_with_parent()
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    writer = RankWriter(folder, int(rank))
    state = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "leads_session": os.getsid(0) == os.getpid(),
        "environ": dict(os.environ),
        "arguments": sys.argv,
        "folder": os.getcwd(),
        "path": sys.path[0],
        "input": os.readlink("/proc/self/fd/0"),
        "outputs": [os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "handlers": [str(signal.getsignal(number)) for number in HANDLED],
        "wakes": signal.set_wakeup_fd(-1),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "faulthandler": faulthandler.is_enabled(),
        "collects": gc.isenabled(),
        "umask": os.umask(0o22),
        "offered": oom_score_adj(os.getpid()) - oom_score_adj(os.environ["GLMEXP_PARENT_PID"]),
        "threads": torch.get_num_threads(),
        "drawn": [random.random(), numpy.random.random(), torch.rand(1).item()],
        "main": sys.modules["__main__"].__file__,
    }
    (folder / f"state{rank}.json").write_text(json.dumps(state))
    print("said on stdout")
    print("said on stderr", file=sys.stderr)
    writer.finish(State.complete)


if __name__ == "__main__":
    main()
