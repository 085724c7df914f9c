"""Runs that are killed again and again end as the one that was left alone: python benchmarks/kill_and_resume.py [OVERRIDE ...]

A tiny run with ``train.resume=auto`` is ended by SIGKILL at random moments (its parent, one of its ranks, or all of it at once)
and started again with the same command until it is complete; when ``--kills`` are not reached by then, another one is begun.
Losses, learning rates, gradient norms and the exported weights must be equal to the bit to those of the run left alone. Prints
a table and writes ``kill_and_resume.json``; exit code 1 if anything differs.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from glmexp.trial.orphan import tagged
from glmexp.trial.record import METRICS, State, read_rank
from glmexp.trial.result import read_result
from glmexp.trial.resume import read_sessions
from glmexp.trial.saved import FOLDER, NAME, checkpoints

ROOT = Path(__file__).resolve().parent.parent
COMPARED = ("step", "loss", "lr", "grad_norm", "skipped", "loss_scale", "tokens")
"""Of a line of ``metrics.jsonl``: the others are times and memory."""
VICTIMS = ("all", "parent", "rank")
EARLY = 0.25
"""Share of the kills on the way to the first step of a session."""


class Runs:
    """The runs of one command in folders of their own."""

    def __init__(self, root: Path, overrides: list[str]) -> None:
        self.root = root
        self.overrides = overrides

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """The command in the folder ``name``; what it says is appended to ``log`` there."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "glmexp", *self.overrides],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def newest(self, name: str) -> Path | None:
        """The run's folder, once there is one that tells of itself."""
        found = [path.parent for path in (self.root / name).glob("outputs/*/*/run.json")]
        return max(found, key=lambda path: known.began if (known := read_sessions(path)) else 0.0, default=None)

    def is_stepping(self, name: str) -> bool:
        """Whether the session that runs has come to its optimizer steps."""
        folder = self.newest(name)
        record = read_rank(folder, 0) if folder else None
        return record is not None and record.pid in self.living(name) and record.resumed is not None

    def living(self, name: str) -> list[int]:
        """The processes of the run's ranks."""
        folder = self.newest(name)
        known = read_sessions(folder) if folder else None
        return list(tagged(known.tag)) if known else []


def kill(runs: Runs, name: str, parent: subprocess.Popen[bytes], victim: str) -> bool:
    """Ends a part of the run by SIGKILL; whether there was such a part."""
    ranks = runs.living(name)
    if parent.poll() is not None or (victim == "rank" and not ranks):
        return False
    chosen = {"all": [parent.pid, *ranks], "parent": [parent.pid], "rank": [random.choice(ranks)] if ranks else []}[victim]
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return True


def wait_for_moment(runs: Runs, name: str, parent: subprocess.Popen[bytes], longest: float) -> float:
    """Waits for a random moment: one in four anywhere on the way to the first step, the others once the steps have begun.

    Args:
        longest: seconds of either.

    Returns the seconds waited.
    """
    began = time.monotonic()
    if random.random() > EARLY:
        while parent.poll() is None and not runs.is_stepping(name):
            time.sleep(0.05)
    with suppress(subprocess.TimeoutExpired):
        parent.wait(random.uniform(0.0, longest))
    return time.monotonic() - began


def until_complete(runs: Runs, name: str, kills: int, longest: float) -> list[dict[str, Any]]:
    """Starts the run until it is complete, killing it up to ``kills`` times; what was done to it, in order.

    Raises:
        RuntimeError: a session ended in a way that no kill explains.
    """
    done: list[dict[str, Any]] = []
    while True:
        parent = runs.start(name)
        hit, wait, victim = False, 0.0, random.choice(VICTIMS)
        if len(done) < kills:
            wait = wait_for_moment(runs, name, parent, longest)
            hit = kill(runs, name, parent, victim)
        code = parent.wait()
        if code == 0:
            return done
        if not hit:
            said = (runs.root / name / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"a session that nobody killed ended with {code}:\n{said}")
        folder = runs.newest(name)
        saved = checkpoints(folder) if folder else []
        done.append({"victim": victim, "seconds": round(wait, 2), "checkpoint": saved[-1].step if saved else None})


def differences(alone: Path, killed: Path) -> list[str]:
    """What of a run that was killed is not as in the one that was left alone."""
    found = []
    result = read_result(killed)
    if result is None or result.state is not State.complete:
        found.append(f"state {result.state.value if result else None}")
    rows = [[json.loads(line) for line in (run / METRICS).read_text().splitlines()] for run in (alone, killed)]
    if len(rows[0]) != len(rows[1]):
        found.append(f"{len(rows[1])} rows, and not {len(rows[0])}")
    for one, other in zip(*rows, strict=False):
        found += [f"step {one['step']}: {key} {other[key]!r}, not {one[key]!r}" for key in COMPARED if one[key] != other[key]]
    for weights in sorted((alone / "export").glob("*.safetensors")):
        copy = killed / "export" / weights.name
        if not copy.is_file() or copy.read_bytes() != weights.read_bytes():
            found.append(f"{weights.name} differs")
    found += [
        f"{path.name} is left over" for path in (killed / FOLDER).iterdir() if path.is_dir() and not NAME.match(path.name)
    ]
    return found


def measure(runs: Runs, kills: int, longest: float) -> dict[str, Any]:
    """Kills until it is enough, each at a moment of ``wait_for_moment``; what was done and what differs."""
    began = time.monotonic()
    if until_complete(runs, "alone", 0, 0.0):
        raise RuntimeError("the run left alone was killed")
    seconds = time.monotonic() - began
    alone = runs.newest("alone")
    assert alone is not None
    done: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    while len(done) < kills:
        name = f"killed-{len(rounds) + 1}"
        here = until_complete(runs, name, kills - len(done), longest)
        folder = runs.newest(name)
        assert folder is not None
        rounds.append({"kills": len(here), "differences": differences(alone, folder), "left_alive": len(runs.living(name))})
        done += here
        print(
            f"{name}: {len(here)} kills, {len(done)} of {kills} in all, {rounds[-1]['differences'] or 'no difference'}",
            flush=True,
        )
    return {"seconds_alone": round(seconds, 1), "rounds": rounds, "kills": done}


def table(found: dict[str, Any]) -> str:
    """A row a victim."""
    lines = ["| killed | times | of these without a checkpoint yet | differences |", "| --- | --- | --- | --- |"]
    differ = sum(len(one["differences"]) + one["left_alive"] for one in found["rounds"])
    for victim in VICTIMS:
        chosen = [one for one in found["kills"] if one["victim"] == victim]
        lines.append(f"| {victim} | {len(chosen)} | {sum(one['checkpoint'] is None for one in chosen)} | |")
    lines.append(f"| in all | {len(found['kills'])}, in {len(found['rounds'])} runs | | {differ} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stage", type=int, choices=range(4), default=2)
    parser.add_argument("--method", default="full")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds from a start, or from the first step, to a kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--out", type=Path, default=Path("kill_and_resume.json"))
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    random.seed(asked.seed)
    overrides = [
        *("model=tiny", "tracker=none", "train.resume=auto", "checkpoint.every=1", "data.max_length=64"),
        *(
            f"train.max_steps={asked.steps}",
            f"zero=stage{asked.stage}",
            f"method={asked.method}",
            f"launch.ranks={asked.ranks}",
        ),
        *asked.overrides,
    ]
    root = Path(tempfile.mkdtemp(prefix="kill-and-resume-"))
    print(f"python -m glmexp {' '.join(overrides)}, in {root}", flush=True)
    found = {"overrides": overrides, **measure(Runs(root, overrides), asked.kills, asked.longest)}
    asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    failed = any(one["differences"] or one["left_alive"] for one in found["rounds"])
    if not failed:
        shutil.rmtree(root)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
