"""Steps whose gradients were not finite: which are normal, and when to give up."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmexp.config.choices import Dtype
from glmexp.config.schema import Config
from glmexp.train.failure import DivergedError

LOGGER = logging.getLogger(__name__)

PATIENCE = 10
"""Skipped steps in a row that end a run whose loss scale cannot fall any further."""


@dataclass
class Skips:
    """Counts skipped steps and ends the run when more of them would change nothing."""

    config: Config
    in_a_row: int = 0
    total: int = 0
    applied: int = 0

    @property
    def dynamic(self) -> bool:
        """Whether the loss scale moves by itself."""
        return self.config.precision.dtype is Dtype.fp16 and self.config.scaler.loss_scale == 0

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Counts on from a checkpoint's ``state.json``."""
        self.in_a_row, self.total, self.applied = state["skipped_in_a_row"], state["skipped"], state["applied"]

    def record(self, step: int, skipped: bool, scale: float, next_scale: float) -> None:
        """Tells of a skipped step in one line. Raises DivergedError if skipping leads nowhere.

        Args:
            scale: the loss scale that the step used.
            next_scale: the one that the next step will use.
        """
        if not skipped:
            self.in_a_row = 0
            self.applied += 1
            return
        self.in_a_row += 1
        self.total += 1
        if self.dynamic:
            moved = f"{scale:g} -> {next_scale:g}" if next_scale != scale else f"stays {scale:g} (hysteresis)"
            normal = "" if self.applied else "; normal at the start, while the scale finds its level"
            LOGGER.info("step %d skipped: fp16 overflow, loss scale %s%s", step, moved, normal)
            if next_scale < scale or next_scale > (self.config.scaler.min_loss_scale or 1):
                return
        else:
            LOGGER.info("step %d skipped: its gradients were not finite; weights left as they were", step)
        if self.in_a_row >= PATIENCE:
            raise self.given_up(step, next_scale)

    def at_floor(self, step: int, scale: float) -> DivergedError:
        """For DeepSpeed's own end: the scale is at its floor and the gradients still overflow."""
        self.in_a_row += 1
        self.total += 1
        return self.given_up(step, scale)

    def given_up(self, step: int, scale: float) -> DivergedError:
        """The end of a run whose steps are all skipped."""
        lr = f"a lower optimizer.lr (now {self.config.optimizer.lr:g})"
        if self.config.precision.dtype is not Dtype.fp16:
            return DivergedError(
                f"step {step}: gradients were not finite for {self.in_a_row} steps in a row, so none was applied\n"
                f"ways out: {lr}, or look at the data of these steps"
            )
        stands = "the loss scale is at its floor" if self.dynamic else "the loss scale is static at"
        return DivergedError(
            f"step {step}: fp16 overflow; {stands} {scale:g} and {self.in_a_row} steps in a row were skipped "
            f"({self.total} in all)\nways out: precision=bf16 (where the device has it), or {lr}"
        )

    def refuse_loss(self, step: int, loss: float, scale: float) -> None:
        """Raises DivergedError for a loss that is not finite, before its gradients reach the weights."""
        if math.isfinite(loss):
            return
        ways = [f"a lower optimizer.lr (now {self.config.optimizer.lr:g})", "more scheduler.warmup_steps"]
        if not self.config.train.grad_clip:
            ways.append("train.grad_clip=1.0")
        state = ""
        if self.config.precision.dtype is Dtype.fp16:
            ways.insert(0, "precision=bf16 (where the device has it)")
            state = f" in fp16 (loss scale {scale:g}, {self.in_a_row} steps skipped before it)"
        raise DivergedError(
            f"step {step}: the loss is {loss}{state}; the weights were not touched by this step\nways out: {', '.join(ways)}"
        )

    def summary(self) -> str | None:
        """A line for the end of the run, or None if nothing was skipped."""
        if not self.total:
            return None
        return f"{self.total} of {self.total + self.applied} steps were skipped and {self.applied} applied"
