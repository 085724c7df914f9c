"""What is measured: a line an optimizer step, and the figures of the whole run."""

import json
import logging
import math
import os
import re
import resource
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from glmexp.train.device import GIB, all_reduced
from glmexp.train.ranks import Ranks
from glmexp.trial.record import STEP_FIGURES

LOGGER = logging.getLogger(__name__)

SETTLING_STEPS = 3
"""Steps of a training run left out of its speed: allocators, autotuning and ZeRO-3's trace settle in them."""


@dataclass(frozen=True)
class StepFigures:
    """One line of ``metrics.jsonl``."""

    step: int
    loss: float
    """Mean over the target tokens of the global batch, in nats, before the update."""
    lr: float
    """What the update used; for a skipped step, what it would have used."""
    grad_norm: float | None
    """L2 norm before clipping; None where the gradients were not finite."""
    skipped: bool
    loss_scale: float
    """Scale that this step's backward pass used; 1.0 without fp16."""
    tokens: int
    """Input tokens without padding, over all ranks."""
    tokens_per_second: float
    peak_allocated_gib: float | None
    """Most GPU memory that PyTorch had allocated so far, on the fullest rank; None on the CPU."""
    step_seconds: float
    """Of the slowest rank; so are the four below, which together may take a little more."""
    data_seconds: float | None = None
    """Waiting for the samples."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    update_seconds: float | None = None
    """The optimizer step, and the communication before and after it."""
    padded_tokens: int | None = None
    """Input tokens with padding, over all ranks."""
    padded_tokens_per_second: float | None = None
    tflops_per_second: float | None = None
    """Model FLOPs (``glmexp.train.metrics.flops``) a rank and second, in 1e12, without padding and recomputation."""
    mfu: float | None = None
    """That over what the device can compute at most (``glmexp.train.metrics.peaks``); None where one of them is not known."""


class MetricsFile:
    """``metrics.jsonl``; ranks other than 0 write nothing.

    Args:
        kept: the lines up to this step that are there stay: those of the run that goes on here.
    """

    def __init__(self, path: Path, rank: int, kept: int = 0) -> None:
        if rank == 0:
            cut_back(path, kept)
        self._handle = path.open("ab", buffering=0) if rank == 0 else None
        self._waiting = b""

    def append(self, figures: StepFigures) -> None:
        """One whole line at once, so that a reader never sees half of it. Infinity and NaN, which JSON lacks, become null.

        What a full disk has no room for waits until there is some: the run goes on.
        """
        if self._handle is not None:
            line = json.dumps({key: finite(value) for key, value in asdict(figures).items()})
            self._waiting += line.encode() + b"\n"
            self._write(self._handle)

    def _write(self, handle: FileIO) -> None:
        while self._waiting:
            try:
                self._waiting = self._waiting[handle.write(self._waiting) :]
            except OSError as error:
                LOGGER.warning("%s: %s; %d lines wait", handle.name, error.strerror, self._waiting.count(b"\n"))
                return

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            self._write(self._handle)
            self._handle.close()


def cut_back(path: Path, step: int) -> None:
    """Takes the lines after ``step`` off a file of one JSON object a line, each with its ``step``, and a torn last one."""
    if not path.exists():
        return
    whole = 0
    with path.open("rb") as handle:
        for line in handle:
            try:
                if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                    break
            except (ValueError, KeyError, TypeError):
                break
            whole += len(line)
    os.truncate(path, whole)


def finite(value: Any) -> Any:
    """``value``, or None if it is a float that JSON has no way to write."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def peak_allocated_gib(device: torch.device) -> float | None:
    """Most memory that this rank's tensors took on its GPU so far, in GiB; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None


def reset_peak(device: torch.device) -> None:
    """Lets the peaks of GPU memory begin anew; what is allocated and reserved now counts in them."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def host_peak_gib() -> float:
    """Largest resident size of this process so far, in GiB; pages mapped from files count.

    Not getrusage's where the kernel tells it otherwise: that begins with the size of whoever started the process (exec_mmap in
    Linux's fs/exec.c).
    """
    told = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    kibibytes = int(told[1]) if told else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024 / GIB


def median(values: Sequence[float | None]) -> float | None:
    """Of the values that were measured; None if none was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def run_figures(
    steps: list[StepFigures],
    settling: int,
    samples_a_step: float,
    ranks: Ranks,
    device: torch.device,
    peak_tflops: float | None,
) -> dict[str, Any]:
    """The ``metrics`` of ``result.json``; called by all ranks together. A figure not measured is None.

    Args:
        steps: what counts, so without a warm-up.
        settling: the first of them that do not count for the speed.
        peak_tflops: what one device can compute at most, which ``mfu`` was reckoned with.
    """
    node = ranks.rank // ranks.local_world_size
    hosts = [0.0] * (ranks.world_size // ranks.local_world_size)
    hosts[node] = host_peak_gib()
    hosts = all_reduced(hosts, device)
    reserved = None
    if device.type == "cuda":
        reserved = all_reduced([torch.cuda.max_memory_reserved(device) / GIB], device, dist.ReduceOp.MAX)[0]
    # A skipped step does no update, so it would flatter the speed.
    settled = [line for line in steps[min(settling, len(steps) // 2) :] if not line.skipped] or steps
    clocked = [line.step_seconds for line in settled]
    seconds = median(clocked)
    return {
        **{name: median([getattr(line, name) for line in settled]) for name in STEP_FIGURES},
        "samples_per_second": samples_a_step / seconds if seconds else None,
        "step_seconds_spread": max(clocked) - min(clocked) if clocked else None,
        "peak_tflops_per_second": peak_tflops,
        "peak_allocated_gib": steps[-1].peak_allocated_gib if steps else None,
        "peak_reserved_gib": reserved,
        "host_peak_gib": max(hosts),
        "loss_first": finite(steps[0].loss) if steps else None,
        "loss_last": finite(steps[-1].loss) if steps else None,
        "skipped_steps": sum(line.skipped for line in steps),
        "steps": len(steps),
    }
