"""Trials side by side, each on GPUs of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from glmexp.config.errors import UserError
from glmexp.sweep.jobs import Job
from glmexp.trial.machine import Gpu
from glmexp.trial.placement import Placement


@dataclass(frozen=True)
class Slot:
    """Where one trial runs."""

    placement: Placement
    environ: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    """GPUs that are taken from the others meanwhile."""


class Slots:
    """``sweep.slots`` trials at once."""

    def __init__(self, count: int, gpus: tuple[Gpu, ...]) -> None:
        self.count = count
        self._taken = 0
        self._free = list(gpus)

    def take(self, job: Job) -> Slot | None:
        """A slot for this trial, None while there is none."""
        if self._taken == self.count:
            return None
        placement = job.placement
        if self.count == 1 or placement.machine.device == "cpu":
            self._taken += 1
            return Slot(placement, os.environ, ())
        if len(self._free) < placement.ranks:
            return None
        gpus = tuple(self._free[: placement.ranks])
        del self._free[: placement.ranks]
        self._taken += 1
        # By UUID: indices would be counted among the GPUs that an outer CUDA_VISIBLE_DEVICES leaves.
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}
        return Slot(replace(placement, gpus=gpus), environ, gpus)

    def give(self, slot: Slot) -> None:
        self._taken -= 1
        self._free = sorted([*self._free, *slot.gpus], key=lambda gpu: gpu.index)


def check_slots(count: int, jobs: list[Job], gpus: tuple[Gpu, ...]) -> None:
    """Raises UserError if so many trials at once do not fit this machine."""
    ranks = max((job.placement.ranks for job in jobs if job.placement.machine.device == "gpu"), default=0)
    if count > 1 and ranks * count > len(gpus) and ranks:
        fit = max(1, len(gpus) // ranks)
        raise UserError(
            f"sweep.slots={count}: so many trials of {ranks} rank(s) need {count * ranks} GPUs, and {len(gpus)} can be seen\n"
            f"set sweep.slots={fit}, or fewer launch.ranks"
        )
