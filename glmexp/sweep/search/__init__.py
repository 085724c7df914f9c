"""Which trial of a sweep comes next: the whole grid, the largest batch that fits, or a sample of the grid."""

from glmexp.sweep.search.base import Search, Skip

__all__ = ["Search", "Skip"]
