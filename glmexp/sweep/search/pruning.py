"""Skips what must run out of memory, because a trial that needs no more has.

Only relations that hold on any model and machine count:

- a larger ``batch.micro``, with the gradients kept from one forward pass to the next (accumulation above 1) as before or newly.
  Where a larger micro batch brings the accumulation down to 1 at a constant total, nothing is kept, and it may fit after all;
- a larger ``data.max_length`` where every sample is as long as that (synthetic tokens), or the longest come first;
- ``activation=none`` after ``activation=checkpoint``, unless DeepCompile decides itself what is kept;
- a larger ``method.rank``, ``method.prefix_length`` or ``method.last_layers``.

ZeRO stage, method, precision and bucket sizes are none of them: on one GPU stages 1 and 2 need more than stage 3 and than none,
and LoRA keeps activations that full training does not. Of host memory beside a GPU the only one is ``offload.parameters``.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from glmexp.config.batch import solve
from glmexp.config.choices import OffloadDevice, Source, Task
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.sweep.jobs import Job
from glmexp.sweep.search.base import Search, Skip
from glmexp.trial.record import State
from glmexp.trial.result import Result

NO_MEMORY = ("tracker", "launch", "lint", "sweep", "lang")
"""Groups that take no memory; of ``launch`` ranks, nodes and device do, and are compared as they turned out."""


@dataclass(frozen=True)
class Knob:
    """A setting that can only need more memory the higher its level is."""

    key: str
    value: object
    level: int


@dataclass(frozen=True)
class Need:
    """The knobs of one trial, and all else that decides how much memory it takes."""

    knobs: tuple[Knob, ...]
    rest: str

    def at_least(self, other: "Need") -> bool:
        """Whether this one needs as much memory as ``other`` or more, for certain."""
        return self.rest == other.rest and all(
            mine.level >= theirs.level for mine, theirs in zip(self.knobs, other.knobs, strict=True)
        )

    def told_apart_from(self, other: "Need") -> str:
        """The values of this one that differ, as overrides."""
        pairs = zip(self.knobs, other.knobs, strict=True)
        return " ".join(f"{mine.key}={mine.value}" for mine, theirs in pairs if mine.value != theirs.value)


def gpu_need(job: Job) -> Need:
    """Of the memory that training takes: the GPU's, on the CPU the host's."""
    config, machine = job.composed.config, job.placement.machine
    values = _values(job)
    batch = solve(config.batch, machine.world_size, sequence_parallel_size(config))
    given = config.batch.total is not None
    del values["batch"]
    knobs = [
        Knob("batch.micro", batch.micro, batch.micro),
        # At a constant total the accumulation follows from the micro batch, and is not told of.
        Knob("batch.accumulation", None if given else batch.accumulation, min(batch.accumulation, 2)),
    ]
    if config.task is Task.measure or config.data.source is Source.synthetic:
        knobs.append(Knob("data.max_length", config.data.max_length, values["data"].pop("max_length")))
    if not config.kernels.deepcompile:
        option = "checkpoint" if config.activation.checkpoint else "none"
        knobs.append(Knob("activation", option, int(not values["activation"].pop("checkpoint"))))
    for name in ("rank", "prefix_length", "last_layers"):
        knobs.append(Knob(f"method.{name}", getattr(config.method, name), values["method"].pop(name) or 0))
    return Need(tuple(knobs), json.dumps(values, sort_keys=True))


def host_need(job: Job) -> Need:
    """Of the host's memory."""
    if job.placement.machine.device == "cpu":
        return gpu_need(job)
    values = _values(job)
    knobs = []
    if job.composed.config.offload.device is OffloadDevice.cpu:
        parameters = values["offload"].pop("parameters")
        knobs.append(Knob("offload.parameters", str(parameters).lower(), int(parameters)))
    return Need(tuple(knobs), json.dumps(values, sort_keys=True))


def _values(job: Job) -> dict[str, Any]:
    """All that decides how much memory a trial takes, as plain values."""
    values = {name: value for name, value in asdict(job.composed.config).items() if name not in NO_MEMORY}
    placement = job.placement
    return {**values, "ranks": placement.machine.world_size, "nodes": placement.nodes, "device": placement.machine.device}


@dataclass(frozen=True)
class Ended:
    """A trial that ran out of memory."""

    job: Job
    need: Need
    result: Result


class Pruned:
    """Another search, without the trials that must run out of memory.

    The other search is told of such a trial with state ``skipped``.

    Args:
        slots: trials at once. They share the host's memory, so with several of them running out of it says nothing about one.
    """

    def __init__(self, search: Search, slots: int) -> None:
        self._search = search
        self._slots = slots
        self._out_of_gpu: list[Ended] = []
        self._out_of_host: list[Ended] = []

    def ask(self) -> Job | Skip | None:
        job = self._search.ask()
        if not isinstance(job, Job):
            return job
        for memory, need_of, ended in (("GPU", gpu_need, self._out_of_gpu), ("host", host_need, self._out_of_host)):
            need = need_of(job)
            cause = next((other for other in ended if need.at_least(other.need)), None)
            if cause is not None:
                what = cause.need.told_apart_from(need) or "the same"
                reason = f"{what} ran out of {memory} memory with all else equal (trial {cause.job.name})"
                self._search.tell(job, replace(cause.result, state=State.skipped, reason=reason))
                return Skip(job, reason)
        return job

    def tell(self, job: Job, result: Result) -> None:
        if result.state is State.oom:
            self._out_of_gpu.append(Ended(job, gpu_need(job), result))
        elif result.state is State.oom_host and self._slots == 1:
            self._out_of_host.append(Ended(job, host_need(job), result))
        self._search.tell(job, result)

    @property
    def done(self) -> bool:
        return self._search.done

    def summary(self) -> list[str]:
        return self._search.summary()
