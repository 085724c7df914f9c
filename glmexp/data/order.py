"""Which sample is read when: one permutation an epoch, cut into global batches that any rank count shares alike.

The stream of samples is the concatenation of one seeded permutation an epoch, or of the samples as they are stored.
Optimizer step s takes positions [s x total, (s + 1) x total) of it, so a global batch may reach into the next epoch, and the
last one of a run is filled from there.
Within the global batch, micro batch a of rank r takes the positions [(a x world + r) x micro, (a x world + r + 1) x micro): the
set of samples of a step depends on ``total`` alone and not on how it is split over ranks and accumulation.

``LengthOrder`` brings samples of like length together and keeps that. What is ordered may also be rows of several samples each
(``glmexp.data.packing``).
"""

from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

LOOKED_AT = 200
"""Optimizer steps by which the share of padding is estimated."""

HELD_OUT, BY_LENGTH, IN_ROWS = 0, 1, 2
"""Purposes of random numbers besides the order of an epoch, which are drawn with ``train.seed``, too."""


def total_steps(samples: int, epochs: float, total: int) -> int:
    """Optimizer steps of ``epochs`` passes over ``samples`` with a global batch of ``total`` samples, rounded up."""
    return ceil(Fraction(repr(epochs)) * samples / total)


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """A stream of random numbers for one purpose; numpy keeps PCG64's and ``permutation``'s numbers from release to release."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=purpose)))


class Order:
    """The stream of sample numbers.

    Args:
        samples: how many samples there are, at least 1.
        seed: ``train.seed``. The same seed gives the same stream; each epoch has an order of its own. None takes the samples
            as they are stored, over and over.
    """

    packed = False
    """Whether a row holds several samples."""

    def __init__(self, samples: int, seed: int | None) -> None:
        if samples < 1:
            raise ValueError("an order needs at least one sample")
        self.samples = samples
        self.seed = seed
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Rows of one epoch, which ``batch.micro`` and ``batch.total`` count."""
        return self.samples

    def note(self) -> str | None:
        """What the user should know of the rows, if they are more than samples."""
        return None

    def row(self, number: int) -> list[int]:
        """The samples in row ``number`` of the stream."""
        return [number]

    def epoch(self, number: int) -> NDArray[np.int64]:
        """The permutation of epoch ``number`` (from 0)."""
        if self.seed is None:
            return np.arange(self.samples)
        if number != self._epoch:
            self._permutation = self.permutation(self.seed, number)
            self._epoch = number
        return self._permutation

    def permutation(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The sample numbers of one epoch, drawn anew."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(self.samples)

    def slice(self, start: int, stop: int) -> NDArray[np.int64]:
        """Sample numbers at the stream's positions [start, stop)."""
        parts = []
        while start < stop:
            number, offset = divmod(start, self.samples)
            part = self.epoch(number)[offset : offset + stop - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def global_batch(self, step: int, total: int) -> NDArray[np.int64]:
        """The sample numbers of optimizer step ``step`` (from 0), in the order in which micro batches take them."""
        return self.slice(step * total, (step + 1) * total)

    def step(self, step: int, micro: int, accumulation: int, rank: int, world: int) -> list[list[int]]:
        """The sample numbers of each micro batch that ``rank`` reads in optimizer step ``step`` (from 0)."""
        whole = self.global_batch(step, micro * accumulation * world)
        return [row[rank].tolist() for row in whole.reshape(accumulation, world, micro)]


class LengthOrder(Order):
    """Samples of like length share a global batch, and within it a micro batch; ranks read micro batches of like length.

    Each epoch's permutation is cut into stretches of up to 50 global batches. A stretch is sorted by length and cut into global
    batches, and all of an epoch's are shuffled. Samples that share a global batch with another epoch's are left as they come.

    Args:
        lengths: tokens of each sample.
        total: the global batch, of which alone the set of samples of a step depends here, too.
    """

    stretch = 50
    """Global batches that are sorted together; fewer in a small data set, so that there are at least four stretches."""

    def __init__(self, lengths: NDArray[np.int64], seed: int, total: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths = lengths
        self.total = total

    def permutation(self, seed: int, epoch: int) -> NDArray[np.int64]:
        drawn = super().permutation(seed, epoch)
        begun = min(-epoch * self.samples % self.total, self.samples)
        whole = (self.samples - begun) // self.total
        body = drawn[begun : begun + whole * self.total]
        together = self.total * max(1, min(self.stretch, whole // 4))
        stretches = [self.longest_first(body[start : start + together]) for start in range(0, len(body), together)]
        batches = np.concatenate([*stretches, body[:0]]).reshape(whole, self.total)
        shuffled = batches[generator(seed, BY_LENGTH, epoch).permutation(whole)]
        return np.concatenate([drawn[:begun], shuffled.reshape(-1), drawn[begun + len(body) :]])

    def global_batch(self, step: int, total: int) -> NDArray[np.int64]:
        return self.longest_first(super().global_batch(step, total))

    def longest_first(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """These samples, sorted by length."""
        return numbers[np.argsort(-self.lengths[numbers], kind="stable")]


def padding_share(order: Order, lengths: NDArray[np.int64], micro: int, total: int, steps: int) -> float:
    """Share of what the model reads that is padding, over the first steps of a run; every micro batch has its own width.

    Args:
        lengths: tokens of each sample.
        micro, total: rows of a micro batch and of a global batch.
    """
    tokens = columns = 0
    for step in range(min(steps, LOOKED_AT)):
        for rows in order.global_batch(step, total).reshape(-1, micro).tolist():
            filled = [int(lengths[order.row(row)].sum()) for row in rows]
            tokens += sum(filled)
            columns += micro * max(filled)
    return 1 - tokens / columns
