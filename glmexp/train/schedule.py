"""The learning rate of each optimizer step."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from glmexp.config.choices import Schedule
from glmexp.config.schema import SchedulerConfig


def lr_factor(step: int, total: int, scheduler: SchedulerConfig) -> float:
    """Share of ``optimizer.lr`` that applied step ``step`` (from 1) of ``total`` runs at.

    Step k of the warm-up runs at k / warmup_steps, so that no step runs at 0 (DeepSpeed's own WarmupLR runs its first two
    there). The peak is the last warm-up step; from there the decay reaches ``min_lr_ratio`` exactly at the last step.
    """
    if step < scheduler.warmup_steps:
        return step / scheduler.warmup_steps
    peak = max(scheduler.warmup_steps, 1)
    if scheduler.name is Schedule.constant or step <= peak:
        return 1.0
    progress = min((step - peak) / max(total - peak, 1), 1.0)
    left = 1.0 - progress if scheduler.name is Schedule.linear else 0.5 * (1.0 + math.cos(math.pi * progress))
    return scheduler.min_lr_ratio + (1.0 - scheduler.min_lr_ratio) * left


def lr_at(step: int, total: int, lr: float, scheduler: SchedulerConfig) -> float:
    """Learning rate of applied step ``step`` (from 1) of ``total``."""
    return lr * lr_factor(step, total, scheduler)


def lr_scheduler(total: int, scheduler: SchedulerConfig, calls_a_step: int = 1) -> Callable[[Optimizer], LambdaLR]:
    """What ``deepspeed.initialize`` takes as ``lr_scheduler``: the engine steps it once an applied optimizer step.

    With ZenFlow the engine steps it after each micro batch (runtime/zenflow/engine.py, zenflow_step): ``calls_a_step`` times.
    A callable gets the basic optimizer at every ZeRO stage; a scheduler built beforehand is refused from stage 1 on.
    """

    def build(optimizer: Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, lambda calls: lr_factor(calls // calls_a_step + 1, total, scheduler))

    return build
