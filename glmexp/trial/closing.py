"""The table at the end of a run: how it ended, what it measured, where it lies, and what to do next."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from glmexp.config.checkpoint import resume_path, resumes_itself
from glmexp.config.choices import Dtype, OffloadDevice, Task
from glmexp.config.memory import less_gpu_memory
from glmexp.config.schema import Config
from glmexp.trial.evaluations import shown
from glmexp.trial.record import LOG, State
from glmexp.trial.saved import Saved, checkpoints

STYLES = {State.complete: "bold green", State.skipped: "bold yellow", State.interrupted: "bold yellow"}
MOST_PERCENT = 1000


def closing(result: Mapping[str, Any], folder: Path, config: Config | None = None, tracked: str | None = None) -> Text:
    """The table as text that keeps paths whole: print it with ``soft_wrap=True``.

    Args:
        result: content of ``result.json``.
        folder: the trial folder.
        config: decides the rows that a task has, and leaves out advice that is followed already.
        tracked: address or folder where a tracker shows the run.
    """
    state = State(result["state"])
    reason = printable(result.get("reason") or "")
    # A rank that knows what went wrong ends its reason with what to try, which is closer to the case than what stands here.
    advised = reason.rpartition("\n")[2].startswith(("try ", "ways out"))
    moves = [None if advised else next_move(state, folder, config, int(result.get("world_size") or 1))]
    saved = checkpoints(folder)
    if saved:
        moves.append(how_it_goes_on(state, saved[-1], folder, config))
    advice = "\n".join(move for move in moves if move) or None
    rows: list[tuple[str, str | None]] = [("reason", reason)]
    rows += measured(result.get("metrics") or {}, config)
    rows += [("weights", str(folder / "export") if (folder / "export").is_dir() else None)]
    rows += [("saved", f"{saved[-1].path}{f' and {len(saved) - 1} older' if saved[1:] else ''}" if saved else None)]
    rows += [("folder", str(folder)), ("tracked", tracked), ("next", advice)]
    text = Text()
    text.append(f"{'state':<9}").append(state.value, style=STYLES.get(state, "bold red"))
    for name, value in rows:
        if value:
            text.append(f"\n{name:<9}").append(value.replace("\n", "\n" + " " * 9))
    return text


def measured(metrics: Mapping[str, Any], config: Config | None = None) -> list[tuple[str, str | None]]:
    """Rows of what was measured; a figure that is null is left out. ``measure`` has more of speed and memory, and no loss."""

    def form(pattern: str, name: str) -> str | None:
        value = metrics.get(name)
        return pattern.format(value) if isinstance(value, int | float) else None

    def row(*parts: str | None) -> str | None:
        return ", ".join(part for part in parts if part) or None

    mfu, time = metrics.get("mfu"), shares(metrics)
    efficiency = f"MFU {100 * mfu:.1f} %" if isinstance(mfu, int | float) else None
    steps, skipped = form("{:.0f}", "steps"), form("{:.0f} skipped", "skipped_steps")
    if steps and metrics.get("skipped_steps"):
        steps = f"{steps} ({skipped})"
    if config is not None and config.task is Task.measure:
        steps = f"{steps}, after a warm-up of {config.measure.warmup_steps}" if steps else None
        seconds, spread = form("{:.3g} s a step (medians)", "step_seconds"), form("spread {:.2g} s", "step_seconds_spread")
        speed = row(form("{:,.0f} tokens/s", "tokens_per_second"), seconds, spread, efficiency)
        gpu, reserved = form("GPU {:.2f} GiB peak", "peak_allocated_gib"), form("{:.2f} GiB reserved", "peak_reserved_gib")
        memory = row(gpu, reserved, form("host {:.1f} GiB", "host_peak_gib"))
        return [("steps", steps), ("speed", speed), ("time", time), ("memory", memory)]
    first, last = metrics.get("loss_first"), metrics.get("loss_last")
    loss = form("{:.4f}", "loss_last")
    if isinstance(first, int | float) and isinstance(last, int | float):
        # Beyond a factor of ten, as from a first loss of nearly 0, a percentage says nothing that the two numbers do not.
        percent = (last / first - 1) * 100 if first else math.inf
        change = f" ({percent:+.0f} %)" if abs(percent) <= MOST_PERCENT else ""
        loss = f"{first:.4f} -> {last:.4f}{change}"
    seconds = form("{:.3g} s a step (medians)", "step_seconds")
    speed = row(form("{:,.0f} tokens/s", "tokens_per_second"), seconds, efficiency)
    memory = row(form("GPU {:.1f} GiB peak", "peak_allocated_gib"), form("host {:.1f} GiB", "host_peak_gib"))
    validation = shown(metrics, "eval_") or None
    return [("steps", steps), ("loss", loss), ("eval", validation), ("speed", speed), ("time", time), ("memory", memory)]


def shares(metrics: Mapping[str, Any]) -> str | None:
    """``data 1 %, forward 31 %, backward 61 %, update 7 %; 18 % of the tokens computed are padding``, if it was measured."""
    spent = {name: metrics.get(f"{name}_seconds") or 0.0 for name in ("data", "forward", "backward", "update")}
    whole = sum(spent.values())
    if not whole:
        return None
    text = ", ".join(f"{name} {100 * seconds / whole:.0f} %" for name, seconds in spent.items())
    tokens, padded = metrics.get("tokens_per_second"), metrics.get("padded_tokens_per_second")
    padding = round(100 * (1 - tokens / padded)) if tokens and padded else 0
    return f"{text}; {padding} % of the tokens computed are padding" if padding else text


def next_move(state: State, folder: Path, config: Config | None = None, world_size: int = 1) -> str | None:
    """What to try after a run that did not complete, in override words."""
    if state is State.oom:
        return " or ".join(less_gpu_memory(config, world_size)) if config else "a smaller batch.micro"
    if state is State.oom_host:
        if config and config.offload.device is not OffloadDevice.none:
            return "offload=none, fewer launch.ranks, or a machine with more memory"
        return "fewer launch.ranks, or a machine with more memory"
    if state is State.diverged:
        return slower(config)
    if state is State.timeout:
        now = f" (now {config.launch.timeout_minutes:g})" if config and config.launch.timeout_minutes else ""
        steps = "fewer measure.steps" if config and config.task is Task.measure else "a smaller train.max_steps"
        return f"a larger launch.timeout_minutes{now}, null for no limit, or {steps}"
    if state is State.invalid:
        return "correct what the reason names and start again; nothing was trained"
    if state in (State.failed, State.killed):
        return f"read the end of {folder / LOG}"
    return None


def how_it_goes_on(state: State, newest: Saved, folder: Path, config: Config | None) -> str | None:
    """How a run that did not come to its end goes on from its newest checkpoint."""
    if config is None or (state is State.complete and newest.step != config.train.stop_after):
        return None
    if state is State.complete and config.train.stop_after == config.train.max_steps:
        return None
    where = f"from step {newest.step}"
    if state in (State.oom, State.oom_host, State.diverged):  # other settings make it another run
        return f"with train.resume={folder} the new run begins {where}"
    changes = ["without train.stop_after"] if state is State.complete else []
    if resume_path(config) is not None:
        changes.append(f"with train.resume={folder}")
        where += ", in a new run"
    elif not resumes_itself(config):
        changes.append("with train.resume=auto")
    return " ".join(["the same command", *([" and ".join(changes)] if changes else []), "goes on", where])


def slower(config: Config | None) -> str:
    """The way out of a run that diverged; fp16 diverges by its range before anything else."""
    rate = f"a lower optimizer.lr (now {config.optimizer.lr:g})" if config else "a lower optimizer.lr"
    if config and config.precision.dtype is Dtype.fp16:
        return f"precision=bf16, or {rate}"
    return f"{rate}, or more scheduler.warmup_steps"


def duration(seconds: float) -> str:
    """``h:mm:ss``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def printable(text: str) -> str:
    """Text from data, paths and errors without control characters, which could move the cursor or colour the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
