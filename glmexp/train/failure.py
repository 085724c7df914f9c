"""How a rank that cannot go on tells why."""

import sys
import traceback
from dataclasses import dataclass

from glmexp.config.choices import OffloadDevice
from glmexp.config.errors import UserError
from glmexp.config.memory import Holds, less_gpu_memory
from glmexp.config.schema import Config
from glmexp.trial.record import Phase, State

GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "cudaErrorMemoryAllocation", "CUBLAS_STATUS_ALLOC_FAILED")
HOST_MEMORY = ("DefaultCPUAllocator", "Cannot allocate memory", "std::bad_alloc", "not enough memory: you tried to allocate")


ACTIVITIES = {"forward": "forward pass", "backward": "backward pass", "update": "optimizer step"}
"""What a step is at, as a message calls it."""
EVALUATION, SAVING = "evaluation", "saving a checkpoint"
"""What is done between two steps."""
MOST_MOVES = 5
"""Things to try that a message names."""


class DivergedError(Exception):
    """The numbers have left the finite range for good; the message gives the step and the ways out."""


class EndedOnRequestError(Exception):
    """A signal asked the run to end, and it has saved what it could; the message tells how to go on."""


class PeerEndedError(Exception):
    """Another rank has ended and has told why, so this one has nothing to tell."""


@dataclass
class Where:
    """What the worker is at, for messages."""

    phase: Phase = Phase.starting
    step: int = 0
    """Optimizer step, from 1; 0 before the first."""
    activity: str | None = None
    """What the step is at: data, forward, backward or update (``glmexp.train.metrics.clock``), or what is done after it."""
    micro: int = 0
    """Samples in the micro batch at hand; 0 before the first."""
    length: int = 0
    """Tokens of the longest of them."""
    peak_allocated_gib: float | None = None
    world_size: int = 1

    def note_peak(self) -> None:
        """Asks PyTorch, if it is there, for the most GPU memory so far."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.peak_allocated_gib = torch.cuda.max_memory_allocated() / 2**30


def describe(error: BaseException, config: Config | None, where: Where) -> tuple[State, str]:
    """State and message for the rank record."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UserError):
        return State.invalid, str(error)
    if isinstance(error, DivergedError):
        return State.diverged, str(error)
    if isinstance(error, EndedOnRequestError):
        return State.interrupted, str(error)
    if isinstance(error, MemoryError) or any(mark in text for mark in HOST_MEMORY) or _pins_memory(error):
        return State.oom_host, _out_of_host_memory(error, config, where)
    if type(error).__name__ == "OutOfMemoryError" or any(mark in text for mark in GPU_MEMORY):
        return State.oom, _out_of_gpu_memory(error, config, where)
    if isinstance(error, KeyboardInterrupt):
        return State.interrupted, f"interrupted ({_place(where)})"
    return State.failed, f"{_place(where)}: {type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:400]


def _place(where: Where) -> str:
    """``loading``, ``training, step 1, first forward pass`` or ``evaluation after step 7``."""
    if where.phase is not Phase.training or not where.step:
        return where.phase.value
    if where.activity in (EVALUATION, SAVING):
        return f"{where.activity} after step {where.step}"
    doing = ACTIVITIES.get(where.activity or "")
    first = "first " if where.step == 1 else ""
    return f"training, step {where.step}" + (f", {first}{doing}" if doing else "")


def _pins_memory(error: BaseException) -> bool:
    """CUDA reports page-locked host memory that cannot be had as its own out of memory."""
    frames = traceback.extract_tb(error.__traceback__)
    return "CUDA error: out of memory" in str(error) and any("pin_memory" in (frame.line or "") for frame in frames)


def _out_of_gpu_memory(error: BaseException, config: Config | None, where: Where) -> str:
    lines = [f"out of GPU memory ({_place(where)}): {_first_line(str(error))}"]
    if config is None:
        return lines[0]
    facts, holds = [], _fills_memory(where)
    if holds is Holds.answers:
        facts.append(f"eval.micro={config.eval.micro or config.batch.micro}")
    elif where.micro and where.phase is Phase.training and where.activity != SAVING:
        facts += [f"batch.micro={where.micro}", f"{where.length} tokens a sample"]
    if where.peak_allocated_gib is not None:
        facts.append(f"peak {where.peak_allocated_gib:.2f} GiB")
    if facts:
        lines.append(", ".join(facts))
    moves = less_gpu_memory(config, where.world_size, holds)
    return "\n".join([*lines, "try " + ", ".join(moves[:MOST_MOVES])])


def _fills_memory(where: Where) -> Holds:
    """What the run was at when there was no room left; by the update the activations are freed already."""
    if where.phase in (Phase.starting, Phase.loading):
        return Holds.weights
    if where.phase is Phase.evaluating or where.activity == EVALUATION:
        return Holds.answers
    if where.phase is not Phase.training or where.activity in ("update", SAVING) or not where.step:
        return Holds.states
    return Holds.activations


def _out_of_host_memory(error: BaseException, config: Config | None, where: Where) -> str:
    lines = [f"out of host memory ({_place(where)}): {_first_line(str(error) or type(error).__name__)}"]
    if config is not None:
        advice = []
        if config.offload.pin_memory:
            advice.append("offload.pin_memory=false (pinned buffers are rounded up)")
        if config.offload.device is not OffloadDevice.none:
            advice.append("offload=none")
        if config.zero.stage < 3:
            advice.append("zero=stage3 (each rank loads its part only)")
        advice.append("fewer launch.ranks")
        lines.append("try " + ", ".join(advice))
    return "\n".join(lines)
