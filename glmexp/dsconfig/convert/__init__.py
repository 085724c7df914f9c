"""From a DeepSpeed config of any project to overrides of glmexp."""

from glmexp.dsconfig.convert.expand import Expanded, expand
from glmexp.dsconfig.convert.overrides import Composed, Converted, convert

__all__ = ["Composed", "Converted", "Expanded", "convert", "expand"]
