"""What of a machine decides the DeepSpeed dict."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Machine:
    world_size: int
    """Ranks over all nodes."""
    device: Literal["gpu", "cpu"]
