"""The processes that look with torch: one at the packages and the compilers, and the ranks of an all-reduce beside it.

They get the environment that a run's ranks would have, so that what they meet is what a run would meet.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.config.choices import Backend
from glmexp.dsconfig.machine import Machine
from glmexp.trial.commands import Command, commands, rank_environment
from glmexp.trial.doctor.diagnosis import NotSeenError
from glmexp.trial.machine import Gpu, cpu_count
from glmexp.trial.placement import Placement
from glmexp.trial.processes import POLL_SECONDS, Processes, Signals, new_tag
from glmexp.trial.redact import redact

EXAMINER = "glmexp.train.doctor"
"""Looks at one thing after the other and keeps ``facts.json`` up to date: thing -> {value, error}."""
RANK = "glmexp.train.all_reduce"
"""One rank of the all-reduce; tells in ``all_reduce<rank>.json``."""
CPU_RANKS = 2


@dataclass(frozen=True)
class Facts:
    """What the processes have found out."""

    found: Mapping[str, Any]
    """``facts.json``."""
    ranks: Sequence[Mapping[str, Any] | None]
    """``all_reduce<rank>.json``, None where it was not written."""
    trouble: str
    """Why the rest was not found out."""
    device: str

    def __getitem__(self, name: str) -> Any:
        """Raises NotSeenError with the reason if the thing could not be looked at."""
        entry = self.found.get(name)
        if entry is None:
            raise NotSeenError(self.trouble)
        if entry["error"] is not None:
            raise NotSeenError(entry["error"])
        return entry["value"]

    def error(self, name: str) -> str | None:
        """What went wrong as the thing was looked at, None if nothing did."""
        try:
            self[name]
        except NotSeenError as error:
            return str(error)
        return None


def examine(gpus: Sequence[Gpu], environ: Mapping[str, str], seconds: float) -> Facts:
    """Starts the processes and gathers what they have told when all have ended or time is up.

    Nothing stays, neither a process nor a file; SIGINT and SIGTERM end it with SystemExit(130) and (143).
    """
    ranks = len(gpus) or CPU_RANKS
    device = "gpu" if gpus else "cpu"
    placement = Placement(Machine(ranks, "gpu" if gpus else "cpu"), ranks, gpus=tuple(gpus), cpus=cpu_count())
    tag = new_tag()
    environment, _ = rank_environment(environ, placement, tag, os.getpid())
    # A rank that cannot reach its peers says why on this level, and nothing otherwise.
    environment.setdefault("NCCL_DEBUG", "WARN")
    with tempfile.TemporaryDirectory(prefix="glmexp-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment["TMPDIR"] = name  # what a process that had to be killed has left is removed with the folder
        started = [
            Command([sys.executable, "-m", EXAMINER, name], environment, None),
            *commands(placement, Backend.spawn, folder, environment, RANK),
        ]
        with Signals() as signals, Processes(started, folder / "log", tag) as processes:
            deadline = time.monotonic() + seconds
            while None in processes.codes().values() and time.monotonic() < deadline:
                if signals.received:
                    raise SystemExit(128 + signals.received[0])
                time.sleep(POLL_SECONDS)
            codes = processes.codes()
            processes.end(grace_seconds=0.0)
        trouble = redact(_trouble(codes, seconds, folder / "log"), environ)
        found = _read(folder / "facts.json") or {}
        told = [_read(folder / f"all_reduce{rank}.json") for rank in range(ranks)]
    return Facts(found, told, trouble, device)


def _trouble(codes: Mapping[int | None, int | None], seconds: float, log: Path) -> str:
    """Why a process has not told all: still at it, or dead."""
    if None in codes.values():
        return f"no answer within {seconds:.0f} s"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = (line for line in lines if "NCCL WARN" in line or "Fatal Python error" in line)
    last = next(telling, lines[-1] if lines else "it said nothing")
    bad = next((code for code in codes.values() if code), 0)
    return f"the process ended {f'on signal {-bad}' if bad and bad < 0 else f'with code {bad}'}: {last[:200]}"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
