"""Config + machine -> the dict that DeepSpeed runs on."""

from glmexp.dsconfig.build import build
from glmexp.dsconfig.machine import Machine

__all__ = ["Machine", "build"]
