"""What is measured: a line an optimizer step, and the figures of the whole run."""

import json
import math
import resource
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from glmexp.train.device import GIB, all_reduced
from glmexp.train.ranks import Ranks

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


class MetricsFile:
    """``metrics.jsonl``; ranks other than 0 write nothing."""

    def __init__(self, path: Path, rank: int) -> None:
        self._handle = path.open("w", encoding="utf-8") if rank == 0 else None

    def append(self, figures: StepFigures) -> None:
        """One whole line at once, so that a reader never sees half of it. Infinity and NaN, which JSON lacks, become null."""
        if self._handle is not None:
            self._handle.write(json.dumps({key: finite(value) for key, value in asdict(figures).items()}) + "\n")
            self._handle.flush()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            self._handle.close()


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
    """Largest resident size of this process so far, in GiB; pages mapped from files count."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def run_figures(
    steps: list[StepFigures], settling: int, samples_a_step: int, ranks: Ranks, device: torch.device
) -> dict[str, Any]:
    """The ``metrics`` of ``result.json``; called by all ranks together. A figure not measured is None.

    Args:
        steps: what counts, so without a warm-up.
        settling: the first of them that do not count for the speed.
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
    seconds = statistics.median(clocked) if clocked else None
    speed = statistics.median(line.tokens_per_second for line in settled) if settled else None
    return {
        "tokens_per_second": speed,
        "samples_per_second": samples_a_step / seconds if seconds else None,
        "step_seconds": seconds,
        "step_seconds_spread": max(clocked) - min(clocked) if clocked else None,
        "mfu": None,
        "peak_allocated_gib": steps[-1].peak_allocated_gib if steps else None,
        "peak_reserved_gib": reserved,
        "host_peak_gib": max(hosts),
        "loss_first": finite(steps[0].loss) if steps else None,
        "loss_last": finite(steps[-1].loss) if steps else None,
        "skipped_steps": sum(line.skipped for line in steps),
        "steps": len(steps),
    }
