"""Samples to padded tensors, and the run's batches in order."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from glmexp.data.order import Order
from glmexp.data.store import IGNORED, Samples


@dataclass(frozen=True)
class Batch:
    """One micro batch, padded on the right to its longest sample; every tensor is int64 of shape [micro, length].

    Position ids are not needed: with padding on the right each token's position is its column.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    """1 for a token, 0 for padding."""
    labels: torch.Tensor
    """Aligned with ``input_ids`` (the loss shifts); -100 where nothing is learnt."""
    tokens: int
    """Tokens that are not padding."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample, without padding."""
        return self.attention_mask.sum(dim=1).tolist()  # type: ignore[no-any-return]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on ``device``."""
        return Batch(
            self.input_ids.to(device, non_blocking=True),
            self.attention_mask.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            self.tokens,
        )


def collate(rows: list[tuple[np.ndarray, np.ndarray]], pad_id: int) -> Batch:
    """Pads (input_ids, labels) pairs to the longest of them.

    Args:
        rows: one pair of equally long integer arrays a sample.
        pad_id: the id written as padding; it is masked and never learnt, so any valid id will do.
    """
    length = max(len(ids) for ids, _ in rows)
    input_ids = np.full((len(rows), length), pad_id, np.int64)
    labels = np.full((len(rows), length), IGNORED, np.int64)
    mask = np.zeros((len(rows), length), np.int64)
    for row, (ids, target) in enumerate(rows):
        input_ids[row, : len(ids)] = ids
        labels[row, : len(target)] = target
        mask[row, : len(ids)] = 1
    return Batch(torch.from_numpy(input_ids), torch.from_numpy(mask), torch.from_numpy(labels), int(mask.sum()))


def batches(
    samples: Samples,
    *,
    micro: int,
    accumulation: int,
    rank: int,
    world: int,
    seed: int | None,
    pad_id: int,
    steps: int,
    first_step: int = 0,
) -> Iterator[list[Batch]]:
    """For each optimizer step from ``first_step`` to ``steps`` - 1, the rank's ``accumulation`` micro batches.

    ``glmexp.data.order`` states which samples these are.
    """
    order = Order(len(samples), seed)
    for step in range(first_step, steps):
        chosen = order.step(step, micro, accumulation, rank, world)
        yield [collate([samples.sample(index) for index in indices], pad_id) for indices in chosen]
