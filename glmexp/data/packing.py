"""Packing: several samples in one row, so that little of what the model reads is padding.

Which lengths share a row is worked out once, by best fit from the longest to the shortest: each sample goes into the row with
the least room that is enough. So every epoch has the same number of rows, and an epoch counts in rows what it counts in samples
otherwise. In each epoch the samples of one length change places at random, and the rows come in another order.
"""

import numpy as np
from numpy.typing import NDArray

from glmexp.data.order import IN_ROWS, Order, generator


class PackedOrder(Order):
    """The stream of rows. Row ``number`` is row ``number % len(order)`` of epoch ``number // len(order)``.

    Args:
        lengths: tokens of each sample, none above ``max_length``.
        max_length: tokens that a row holds.
        seed: as for ``Order``. None takes the fullest rows first, over and over.
    """

    packed = True

    def __init__(self, lengths: NDArray[np.int64], max_length: int, seed: int | None) -> None:
        rows = best_fit(lengths, max_length)
        filled = [int(lengths[row].sum()) for row in rows]
        rows = [rows[number] for number in np.argsort(-np.array(filled), kind="stable").tolist()]
        super().__init__(len(rows), seed)
        self.lengths = lengths
        self.max_length = max_length
        self._starts = np.cumsum([0, *map(len, rows)])
        self._filled = np.concatenate([np.asarray(row, np.int64) for row in rows])
        """A sample of the right length for each place, row by row."""
        self._by_length = np.argsort(lengths[self._filled], kind="stable")
        self._samples_epoch = -1
        self._samples: NDArray[np.int64] = self._filled

    def note(self) -> str:
        """``data.packing: 336 samples packed into 41 rows of 512 tokens, 97 % full; ...``."""
        full = 100 * int(self.lengths.sum()) / (len(self) * self.max_length)
        count = f"{len(self)} row{'s' if len(self) > 1 else ''}"
        rows = f"{len(self.lengths)} samples packed into {count} of {self.max_length} tokens, {full:.0f} % full"
        return f"data.packing: {rows}; batch.micro and batch.total count rows"

    def permutation(self, seed: int, epoch: int) -> NDArray[np.int64]:
        return super().permutation(seed, epoch) + epoch * len(self)

    def row(self, number: int) -> list[int]:
        epoch, row = divmod(number, len(self))
        start, stop = self._starts[row], self._starts[row + 1]
        return self.samples_of(epoch)[start:stop].tolist()  # type: ignore[no-any-return]

    def samples_of(self, epoch: int) -> NDArray[np.int64]:
        """The sample in each place, row by row."""
        if self.seed is None:
            return self._filled
        if epoch != self._samples_epoch:
            drawn = generator(self.seed, IN_ROWS, epoch).permutation(len(self.lengths))
            placed = np.empty_like(self._filled)
            placed[self._by_length] = drawn[np.argsort(self.lengths[drawn], kind="stable")]
            self._samples_epoch, self._samples = epoch, placed
        return self._samples


def best_fit(lengths: NDArray[np.int64], max_length: int) -> list[list[int]]:
    """The sample numbers in each row; no row holds more than ``max_length`` tokens.

    The rows with room for n tokens lie on stack n; bit n of ``open_rooms`` is set where stack n is not empty.
    """
    rows: list[list[int]] = []
    stacks: list[list[int]] = [[] for _ in range(max_length + 1)]
    open_rooms = 0
    order = np.argsort(-lengths, kind="stable")
    for sample, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = open_rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = stacks[room].pop()
            if not stacks[room]:
                open_rooms ^= 1 << room
        else:
            room, row = max_length, len(rows)
            rows.append([])
        rows[row].append(sample)
        room -= length
        open_rooms |= 1 << room
        stacks[room].append(row)
    return rows
