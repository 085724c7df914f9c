"""Which trial of a sweep comes next: the whole grid, the largest batch that fits, or a sample of the grid."""

from glmexp.sweep.search.base import Search, Skip
from glmexp.sweep.search.max_batch import Vary
from glmexp.sweep.search.select import select

__all__ = ["Search", "Skip", "Vary", "select"]
