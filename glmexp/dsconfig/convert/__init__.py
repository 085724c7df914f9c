"""From a DeepSpeed config of any project to overrides of glmexp."""

from glmexp.dsconfig.convert.expand import Expanded, expand
from glmexp.dsconfig.convert.overrides import Converted, Known, convert

__all__ = ["Converted", "Expanded", "Known", "convert", "expand"]
