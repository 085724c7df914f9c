"""Which sample is read when: one permutation an epoch, cut into global batches that any rank count shares alike.

The stream of samples is the concatenation of one seeded permutation an epoch, or of the samples as they are stored.
Optimizer step s takes positions [s x total, (s + 1) x total) of it, so a global batch may reach into the next epoch, and the
last one of a run is filled from there.
Within the global batch, micro batch a of rank r takes the positions [(a x world + r) x micro, (a x world + r + 1) x micro): the
set of samples of a step depends on ``total`` alone and not on how it is split over ranks and accumulation.
"""

from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray


def total_steps(samples: int, epochs: float, total: int) -> int:
    """Optimizer steps of ``epochs`` passes over ``samples`` with a global batch of ``total`` samples, rounded up."""
    return ceil(Fraction(repr(epochs)) * samples / total)


class Order:
    """The stream of sample numbers.

    Args:
        samples: how many samples there are, at least 1.
        seed: ``train.seed``. The same seed gives the same stream; each epoch has an order of its own. None takes the samples
            as they are stored, over and over.
    """

    def __init__(self, samples: int, seed: int | None) -> None:
        if samples < 1:
            raise ValueError("an order needs at least one sample")
        self.samples = samples
        self.seed = seed
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.empty(0, np.int64)

    def epoch(self, number: int) -> NDArray[np.int64]:
        """The permutation of epoch ``number`` (from 0)."""
        if self.seed is None:
            return np.arange(self.samples)
        if number != self._epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, number])))
            self._permutation = generator.permutation(self.samples)
            self._epoch = number
        return self._permutation

    def slice(self, start: int, stop: int) -> NDArray[np.int64]:
        """Sample numbers at the stream's positions [start, stop)."""
        parts = []
        while start < stop:
            number, offset = divmod(start, self.samples)
            part = self.epoch(number)[offset : offset + stop - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def step(self, step: int, micro: int, accumulation: int, rank: int, world: int) -> list[list[int]]:
        """The sample numbers of each micro batch that ``rank`` reads in optimizer step ``step`` (from 0)."""
        total = micro * accumulation * world
        whole = self.slice(step * total, (step + 1) * total)
        return [row[rank].tolist() for row in whole.reshape(accumulation, world, micro)]
