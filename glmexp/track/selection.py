"""Which tracker a config asks for, and what must hold before anything is launched."""

from collections.abc import Callable, Mapping

from glmexp.config.choices import TrackerName
from glmexp.config.schema import TrackerConfig
from glmexp.track.background import BackgroundTracker
from glmexp.track.base import NullTracker, Tracker


def preflight(config: TrackerConfig, environ: Mapping[str, str]) -> list[str]:
    """Checks the tracker before a run, without a connection; returns lines to tell the user.

    Raises:
        UserError: the tracker's package is missing, or ``tracker.mode=online`` without a key.
    """
    if config.name is TrackerName.wandb:
        from glmexp.track.wandb import preflight as preflight_wandb

        return preflight_wandb(config, environ)
    return []


def tracker_for(config: TrackerConfig, environ: Mapping[str, str], warn: Callable[[str], None]) -> Tracker:
    """The tracker of ``config``; none of its methods raises. ``warn`` takes a line for the user."""
    if config.name is TrackerName.wandb:
        from glmexp.track.wandb import WandbTracker

        return BackgroundTracker(WandbTracker(config, environ, warn), warn)
    return NullTracker()
