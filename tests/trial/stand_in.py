"""A worker that trains nothing: what each rank does is written in STAND_IN as {"<rank>": "<deed>"}."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import METRICS, Phase, RankWriter, State

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def fail(deed: str, writer: RankWriter) -> None:
    """The deeds that end a rank before its work is done."""
    if deed in {"oom", "oom_host", "invalid", "diverged"}:
        writer.finish(State(deed), f"the words of {deed}")
    elif deed == "raise":
        writer.finish(State.failed, "ValueError: bad shape")
    elif deed == "lost":
        time.sleep(1.0)  # the peer's end is noticed later than it happens
        writer.finish(State.failed, "RuntimeError: Connection closed by peer")
    elif deed == "memory":
        raise MemoryError("no words in the record")
    elif deed == "exit3":
        os._exit(3)
    elif deed == "leave":
        os._exit(0)
    elif deed == "SIGUSR1":  # as from a scheduler, to a rank that has no use for it
        os.kill(os.getpid(), signal.SIGUSR1)
        return
    elif deed in {"SIGKILL", "SIGSEGV", "SIGTERM"}:
        os.kill(os.getpid(), signal.Signals[deed])
        time.sleep(60)
    else:
        return
    os._exit(1)


def save_when_asked(folder: Path, writer: RankWriter, seconds: float) -> None:
    """Trains on until SIGTERM, then saves for some seconds and ends, as a rank does that saves checkpoints."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    (folder / f"ready{writer.record.rank}").touch()
    while not asked:
        time.sleep(0.02)
    writer.progress(Phase.saving, 0, 2)
    time.sleep(seconds)
    (folder / f"saved{writer.record.rank}").touch()
    writer.record.signal = asked[0]
    writer.finish(State.interrupted, "ended by SIGTERM; saved checkpoint step-000002")
    os._exit(1)


def go_on(folder: Path, writer: RankWriter) -> None:
    """A later session of a run, from the checkpoint of step 1 to step 3."""
    time.sleep(0.5)  # the parent must not take the rows of the earlier session for new ones
    rows = (folder / METRICS).read_text().splitlines(keepends=True)
    (folder / METRICS).write_text(rows[0])
    writer.resume(1)
    with (folder / METRICS).open("a") as metrics:
        metrics.writelines(
            json.dumps({"step": step, "loss": 0.5, "tokens_per_second": 7.0, "skipped": True}) + "\n" for step in (2, 3)
        )
    told = {"steps": 2, "loss_first": 0.5, "loss_last": 0.5, "skipped_steps": 2, "tokens_per_second": 7.0}
    writer.finish(State.complete, metrics=told)
    os._exit(0)


def linger(deed: str, folder: Path) -> None:
    """The deeds that leave something running."""
    if deed == "hang":
        time.sleep(600)
    elif deed == "slow":  # told of by the record alone, then by the rows alone, 1.8 seconds each
        writer = RankWriter(folder, 0, every_seconds=0.0)
        for step in range(1, 7):
            time.sleep(0.3)
            writer.progress(Phase.training, step, 12)
        for step in range(7, 13):
            time.sleep(0.3)
            with (folder / METRICS).open("a") as metrics:
                metrics.write(json.dumps({"step": step}) + "\n")
    elif deed == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "deaf").touch()
        time.sleep(600)
    elif deed == "orphan":
        # In a session of its own and without a parent, as a compiler started by a launcher may be.
        subprocess.Popen(SLEEP, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elif deed == "hanging orphan":
        subprocess.Popen(SLEEP, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(600)


def meet() -> None:
    """What a real rank needs of its launcher: a process group over gloo."""
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([distributed.get_rank() + 1])
    distributed.all_reduce(total)
    assert total.item() == sum(range(1, distributed.get_world_size() + 1))
    distributed.destroy_process_group()


def main() -> None:
    die_with_parent()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    deed = json.loads(os.environ.get("STAND_IN", "{}")).get(str(rank), "work")
    if deed == "leave":
        os._exit(0)
    writer = RankWriter(folder, rank)
    (folder / f"parent{rank}").write_text(str(os.getppid()))
    (folder / f"environ{rank}.json").write_text(json.dumps(dict(os.environ)))
    writer.progress(Phase.training, 1, 2)
    if deed == "meet":
        meet()
    if deed.startswith("save"):
        save_when_asked(folder, writer, seconds=float(deed.removeprefix("save")))
    if deed == "go on":
        go_on(folder, writer)
    fail(deed, writer)
    linger(deed, folder)
    if rank == 0:
        rows = [{"step": step, "loss": 4.0 / step, "tokens_per_second": 10.0 * step, "skipped": False} for step in (1, 2)]
        (folder / METRICS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    print(f"rank {rank} is done")
    writer.finish(State.complete, metrics={"steps": 2, "host_peak_gib": float("nan")} if rank == 0 else None)


if __name__ == "__main__":
    main()
