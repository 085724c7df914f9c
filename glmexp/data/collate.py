"""Samples to padded tensors, and the run's batches in order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from glmexp.config.data_schema import DataConfig
from glmexp.data.order import LengthOrder, Order
from glmexp.data.packing import PackedOrder
from glmexp.data.store import IGNORED, Samples

Pair = tuple[np.ndarray, np.ndarray]
"""Token ids and labels of one sample: integer arrays of one length."""


@dataclass(frozen=True)
class Batch:
    """One micro batch, padded on the right to its longest row; every tensor is int64 of shape [micro, length]."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    """1 for a token, 0 for padding."""
    labels: torch.Tensor
    """Aligned with ``input_ids`` (the loss shifts); -100 where nothing is learnt."""
    tokens: int
    """Tokens that are not padding."""
    lengths: list[int]
    """Tokens of each sample, without padding."""
    position_ids: torch.Tensor | None = None
    """Where rows hold several samples: each token's place in its own sample, from 0. None where it is the column."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on ``device``."""
        places = self.position_ids
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            attention_mask=self.attention_mask.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            position_ids=None if places is None else places.to(device, non_blocking=True),
        )


def collate(rows: list[Pair], pad_id: int) -> Batch:
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
    lengths = [len(ids) for ids, _ in rows]
    return Batch(torch.from_numpy(input_ids), torch.from_numpy(mask), torch.from_numpy(labels), sum(lengths), lengths)


def collate_packed(rows: list[list[Pair]], pad_id: int) -> Batch:
    """Puts the samples of each row one after another and pads the rows to the longest of them.

    Nothing is learnt across a border: the first token of a sample has no label, since it would be predicted from another
    sample. Positions begin at 0 with each sample, and once more with the padding. By such restarts, and without an attention
    mask, transformers tells samples apart and lets none see another (masking_utils.find_packed_sequence_indices).
    """
    joined = []
    for row in rows:
        labels = [np.concatenate([[IGNORED], target[1:]]) for _, target in row]
        joined.append((np.concatenate([ids for ids, _ in row]), np.concatenate(labels)))
    batch = collate(joined, pad_id)
    lengths = [[len(ids) for ids, _ in row] for row in rows]
    width = batch.input_ids.shape[1]
    places = [np.concatenate([np.arange(n) for n in (*row, width - sum(row))]) for row in lengths]
    return replace(batch, lengths=[n for row in lengths for n in row], position_ids=torch.from_numpy(np.stack(places)))


def order_of(samples: Samples, data: DataConfig, seed: int | None, total: int) -> Order:
    """In which order, and in which rows, a run with global batches of ``total`` rows reads its samples.

    ``seed`` None takes them as they are stored, or the fullest rows first.
    """
    if data.packing:
        return PackedOrder(samples.lengths, data.max_length, seed)
    if data.group_by_length and seed is not None:
        return LengthOrder(samples.lengths, seed, total)
    return Order(len(samples), seed)


def batches(
    samples: Samples,
    order: Order,
    *,
    micro: int,
    accumulation: int,
    rank: int,
    world: int,
    pad_id: int,
    steps: int,
    first_step: int = 0,
) -> Iterator[list[Batch]]:
    """For each optimizer step from ``first_step`` to ``steps`` - 1, the rank's ``accumulation`` micro batches.

    ``glmexp.data.order`` states which samples these are.
    """
    for step in range(first_step, steps):
        chosen = order.step(step, micro, accumulation, rank, world)
        rows = [[[samples.sample(index) for index in order.row(row)] for row in part] for part in chosen]
        if order.packed:
            yield [collate_packed(part, pad_id) for part in rows]
        else:
            yield [collate([sample for row in part for sample in row], pad_id) for part in rows]
