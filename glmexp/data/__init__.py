"""Data for the worker: read, tokenise once, map into memory, and hand out padded batches in a seeded order.

``prepare`` is for one process of a node; the others may ``Samples.open(folder)`` when it has returned. ``batches`` gives each
rank its micro batches of every optimizer step, in the order that ``order_of`` gives.
"""

from glmexp.data.collate import Batch, batches, collate, order_of
from glmexp.data.order import total_steps
from glmexp.data.prepare import prepare
from glmexp.data.store import Counts, Samples

__all__ = ["Batch", "Counts", "Samples", "batches", "collate", "order_of", "prepare", "total_steps"]
