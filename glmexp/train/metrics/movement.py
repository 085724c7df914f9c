"""How far training has moved the weights: the check that the run did anything."""

import logging
import math

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero import GatheredParameters
from deepspeed.utils import safe_get_full_fp32_param
from torch import nn

from glmexp.train.failure import DivergedError

LOGGER = logging.getLogger(__name__)

TENSORS = 8
LARGEST = 4_000_000
"""Elements; a larger tensor is looked at only if there is no smaller one."""


class Movement:
    """Remembers some of the trainable tensors and later tells how far they are from where they began."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        chosen = _spread([p for p in engine.module.parameters() if p.requires_grad])
        self._before = [(parameter, _compute_copy(parameter)) for parameter in chosen]

    def relative(self) -> float:
        """L2 norm of the change over that of the beginning, of the fp32 master weights; all ranks call it together."""
        moved = whole = 0.0
        for parameter, before in self._before:
            now = safe_get_full_fp32_param(parameter)
            after = _compute_copy(parameter) if now is None else now.detach().float().cpu().reshape(before.shape)
            moved += float((after - before).double().square().sum())
            whole += float(before.double().square().sum())
        return float((moved / whole) ** 0.5) if whole else float(moved > 0)

    def tell(self, applied: int) -> None:
        """Logs the movement; a warning if there is none after ``applied`` updates.

        Raises:
            DivergedError: the last update broke the weights, which no loss has seen yet.
        """
        relative = self.relative()
        if not math.isfinite(relative):
            raise DivergedError(
                "the last update left weights that are not finite\nways out: a lower optimizer.lr, precision=bf16 or fp32"
            )
        if relative == 0.0 and applied:
            LOGGER.warning("the trainable weights have not moved at all in %d updates: is optimizer.lr too small?", applied)
        else:
            LOGGER.info("the trainable weights moved by %.2e (relative L2 of %d tensors)", relative, len(self._before))


def _spread(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """Up to TENSORS parameters, evenly spaced over the model."""
    small = [p for p in parameters if _size(p) <= LARGEST] or sorted(parameters, key=_size)[:1]
    count = min(TENSORS, len(small))
    return [small[index * len(small) // count] for index in range(count)]


def _size(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _compute_copy(parameter: nn.Parameter) -> torch.Tensor:
    """The whole tensor in fp32 on the host."""
    with GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
        return parameter.detach().float().cpu().clone()
