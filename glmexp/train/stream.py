"""What a rank reads: which samples in which order, in how many steps."""

import logging
from collections.abc import Iterator
from itertools import chain

from glmexp.config.batch import Batch as BatchNumbers
from glmexp.config.choices import Task
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.data import Batch, Samples, batches, order_of, total_steps
from glmexp.data.order import padding_share
from glmexp.train.ranks import Ranks

LOGGER = logging.getLogger(__name__)


def samples_needed(config: Config, total: int) -> int | None:
    """Samples that the longer of warm-up and measurement reads; None takes them all, as packing does to fill its rows.

    ``total`` is the global batch.
    """
    few = config.task is Task.measure and not config.data.packing
    return max(config.measure.warmup_steps, config.measure.steps) * total if few else None


class Stream:
    """The micro batches of this rank. Rows that hold several samples count as ``batch`` counts samples otherwise."""

    def __init__(self, samples: Samples, config: Config, batch: BatchNumbers, ranks: Ranks) -> None:
        self.samples = samples
        self.batch = batch
        sharing = sequence_parallel_size(config)
        self.rank, self.world = ranks.rank // sharing, ranks.world_size // sharing
        measuring = config.task is Task.measure
        self.warmup = config.measure.warmup_steps if measuring else 0
        self.order = order_of(samples, config.data, None if measuring else config.train.seed, batch.total)
        self.steps = config.train.max_steps or total_steps(len(self.order), config.train.epochs, batch.total)
        """Optimizer steps of the run."""
        self.samples_a_step = batch.total * len(samples) / len(self.order)
        """On an average, where rows hold several."""

    def batches(self, done: int) -> Iterator[list[Batch]]:
        """For each optimizer step after the first ``done``, this rank's micro batches.

        What is measured begins with the first rows again, which are the longest: they fill the memory most.
        """
        micro, accumulation = self.batch.micro, self.batch.accumulation
        return chain.from_iterable(
            batches(
                self.samples,
                self.order,
                micro=micro,
                accumulation=accumulation,
                rank=self.rank,
                world=self.world,
                pad_id=0,
                steps=stretch,
                first_step=done,
            )
            for stretch in (self.warmup, self.steps - self.warmup)
        )

    def tell(self) -> str | None:
        """Logs how many epochs the steps are and how much is padding; returns what the user should know of the rows."""
        order, counts, total = self.order, self.samples.counts, self.batch.total
        what, epochs = "rows" if order.packed else "samples", self.steps * total / len(order)
        LOGGER.info("%d optimizer steps over %d %s (%.2f epochs)", self.steps, len(order), what, epochs)
        padding = padding_share(order, self.samples.lengths, self.batch.micro, total, self.steps)
        LOGGER.info("%d tokens, %d of them learnt; %.1f %% padding", counts.tokens, counts.targets, 100 * padding)
        return order.note()
