"""Where the time of an optimizer step goes."""

import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any

import torch


class Activity(str, Enum):
    """What an optimizer step is at, in order; with accumulation forward and backward alternate."""

    data = "data"
    """Waiting for the samples, and for the slowest rank to have them."""
    forward = "forward"
    backward = "backward"
    """With what DeepSpeed reduces of the gradients meanwhile, and activations computed again."""
    update = "update"
    """The optimizer step, and the communication before and after it."""


class HostEvent:
    """A moment as ``torch.cuda.Event`` has it, for work that is done when its call returns."""

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: "HostEvent") -> float:
        """Milliseconds from this one to ``end``."""
        return 1000 * (end.seconds - self.seconds)


class StepClock:
    """Splits a step into its parts; each second of it belongs to one.

    On a GPU the host runs ahead of the device: events are put between the kernels and read at the end of the step, where the
    loop waits for the device anyway, so that nothing waits for the sake of the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._new_event: Callable[[], Any] = HostEvent
        if device.type == "cuda":
            self._new_event = partial(torch.cuda.Event, enable_timing=True)
        self._marks: list[tuple[Activity | None, Any]] = []

    def enter(self, part: Activity | None) -> None:
        """From here on the time is this part's; None ends the step."""
        event = self._new_event()
        event.record()
        self._marks.append((part, event))

    def split(self) -> dict[Activity, float]:
        """Seconds of each part since the last call; the device must have done all that was queued before the last ``enter``."""
        seconds = dict.fromkeys(Activity, 0.0)
        for (part, began), (_, ended) in pairwise(self._marks):
            if part is not None:
                seconds[part] += began.elapsed_time(ended) / 1000
        self._marks.clear()
        return seconds
