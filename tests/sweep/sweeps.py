"""Sweeps as processes of their own, with faults in chosen trials: started, killed, resumed, and looked through for orphans."""

import csv
import fcntl
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

from glmexp.trial.launcher import cleaned
from tests.faults import plant

ROOT = Path(__file__).parent.parent.parent
MARK = "TEST_SWEEP_MARK"
"""In the environment of a sweep, and so of every process that comes of it."""

TINY = ("model=tiny", "launch.device=cpu", "measure.warmup_steps=1", "measure.steps=1", "data.max_length=16")

COUNT = """
import os
import re
import signal
import time
from pathlib import Path


def begin(place, folder):
    text = Path(folder, "config.yaml").read_text()
    seed, stage, micro = (int(re.search(rf"^  {key}: (\\d+)", text, re.M)[1]) for key in ("seed", "stage", "micro"))
    with open(COUNTER, "a") as ran:
        ran.write(f"{Path(folder).name} {stage} {seed} {place.rank}\\n")
    act(place, Path(folder), planned(stage, seed, micro))
"""
"""Each rank tells that it runs; ``act(place, folder, deed)`` follows, with what ``planned(stage, seed, micro)`` says."""

BY_SEED = """

def planned(stage, seed, micro):
    return DEEDS.get((stage, seed)) or DEEDS.get(seed)
"""

REAL = """
def act(place, folder, deed):
    if deed is None:
        return
    from glmexp.train.loop import Loop

    accumulate = Loop.accumulate

    def faulty(loop, parts, targets):
        import resource

        import torch

        if deed == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if deed == "oom_host":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
            torch.ones(1 << 28)
        if deed == "raise":
            raise ValueError("a bad shape")
        if deed == "exit3":
            os._exit(3)
        if deed == "hang":
            time.sleep(600)
        if deed in ("SIGKILL", "SIGSEGV"):
            os.kill(os.getpid(), getattr(signal, deed))
            time.sleep(60)
        loss = accumulate(loop, parts, targets)
        return float("nan") if deed == "nan" else loss

    Loop.accumulate = faulty
"""
"""The trial is a real one, in whose first step the deed is done."""

LIGHT = """
def act(place, folder, deed):
    import json

    from glmexp.trial.record import METRICS, Phase, RankWriter, State

    writer = RankWriter(folder, place.rank)
    writer.progress(Phase.training, 1, 2)
    if deed in ("oom", "oom_host", "diverged"):
        writer.finish(State(deed), f"the words of {deed}")
        os._exit(1)
    if deed == "raise":
        writer.finish(State.failed, "ValueError: a bad shape")
        os._exit(1)
    if deed in ("exit once", "hang once"):
        if not (folder / "attempt1").exists():
            time.sleep(600) if deed == "hang once" else os._exit(3)
    elif deed == "exit3":
        os._exit(3)
    elif deed in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, deed))
        time.sleep(60)
    elif deed is not None:  # "hang", or a time
        time.sleep(600 if deed == "hang" else deed)
    if place.rank == 0:
        (folder / METRICS).write_text(json.dumps({"step": 1, "loss": 1.0, "tokens_per_second": 100.0}) + "\\n")
    print(f"rank {place.rank} of {folder.name} is done", flush=True)
    writer.finish(State.complete, metrics={"steps": 1, "host_peak_gib": 0.1, "tokens_per_second": 100.0})
    os._exit(0)
"""
"""The trial does nothing but the deed, and imports no torch unless it is forked."""

LIGHT_SERVER = """
import sys

if "glmexp" in sys.orig_argv:
    from glmexp.trial import warm

    warm.SERVER = "light_server"
"""
"""In the parent: warm starts by a server that imports torch alone."""

STATES = {
    "oom": "oom",
    "oom_host": "oom_host",
    "diverged": "diverged",
    "nan": "diverged",
    "raise": "failed",
    "exit3": "failed",
    "SIGSEGV": "failed",
    "SIGKILL": "killed",
    "hang": "timeout",
}
"""Deed -> the state that it has to give."""


class Sweep:
    """One sweep folder and the command that works on it."""

    def __init__(self, root, *arguments, deeds=None, real=False, name="s", **environ):
        self.root, self.name = root, name
        self.folder = root / "multirun" / name
        self.counter = root / "ran.txt"
        stand_in = REAL if real else LIGHT + LIGHT_SERVER
        source = f"COUNTER = {str(self.counter)!r}\nDEEDS = {deeds or {}!r}\n{COUNT}{BY_SEED}{stand_in}"
        hooks = plant(root / "hooks", source)
        self.mark = uuid.uuid4().hex
        self.environ = {
            **cleaned(os.environ),
            "PYTHONPATH": os.pathsep.join(map(str, (hooks, ROOT / "tests" / "trial", ROOT))),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            MARK: self.mark,
            **environ,
        }
        self.environ.pop("WANDB_API_KEY", None)
        self.arguments = [*(() if any(text.startswith("model=") for text in arguments) else TINY), *arguments]

    def start(self, *more, **options):
        arguments = ["-m", *self.arguments, *more]
        if not any(text.startswith(("sweep.name=", "hydra.sweep.dir=")) for text in arguments):
            arguments.append(f"sweep.name={self.name}")
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            **options,
        }
        return subprocess.Popen([sys.executable, "-m", "glmexp", *arguments], env=self.environ, cwd=self.root, **options)

    def run(self, *more, timeout=280):
        """(exit code, what it said)."""
        process = self.start(*more)
        try:
            said = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"still running: {process.communicate()[0]}") from None
        return process.returncode, said

    def resume(self, *more, timeout=280):
        return self.run("sweep.resume=true", *more, timeout=timeout)

    @property
    def results(self):
        """Folder name -> the content of result.json."""
        return {path.parent.name: json.loads(path.read_text()) for path in sorted(self.folder.glob("*/result.json"))}

    @property
    def states(self):
        return Counter(result["state"] for result in self.results.values())

    @property
    def stamps(self):
        """Folder name -> what changes when a result is written anew."""
        return {path.parent.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in self.folder.glob("*/result.json")}

    @property
    def ran(self):
        """Folder name -> how often its rank 0 has begun."""
        lines = self.counter.read_text().splitlines() if self.counter.exists() else []
        return Counter(line.split()[0] for line in lines if line.endswith(" 0"))

    def rows(self):
        with (self.folder / "report.csv").open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))

    def alive(self):
        """Command lines of all processes that came of this sweep and live."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        return found

    def gone(self, seconds=15.0):
        """Waits until nobody is left of this sweep; those that are, if any."""
        deadline = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def litter(self):
        """Halves of files that somebody who was killed has left in the sweep's own folder."""
        return [path.name for path in self.folder.glob(".*.*") if not path.name.endswith(".lock")]

    def reporting(self):
        """Whether the report is being built right now."""
        try:
            with (self.folder / ".report.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


def finished_earlier(said):
    """How many trials a sweep has told of as finished in an earlier session."""
    return len([line for line in said.splitlines() if line.startswith("[") and "earlier" in line])


def until(found, seconds=60.0, pause=0.02, process=None):
    """What ``found()`` gives once it gives something; stops early when ``process`` has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := found():
            return result
        if process is not None and process.poll() is not None:
            break
        time.sleep(pause)
    said = process.communicate()[0] if process is not None and process.poll() is not None else ""
    raise AssertionError(f"nothing after {seconds} seconds\n{said}")


def ended(process, number, timeout=40):
    """Sends a signal; (exit code, what was said)."""
    process.send_signal(number)
    said = process.communicate(timeout=timeout)[0]
    return process.returncode, said


__all__ = ["ROOT", "STATES", "TINY", "Sweep", "ended", "finished_earlier", "until"]
