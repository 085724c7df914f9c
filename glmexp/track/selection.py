"""Which tracker a config asks for, and what must hold before anything is launched."""

from collections.abc import Callable, Mapping

from glmexp.config.choices import TrackerName
from glmexp.config.schema import TrackerConfig
from glmexp.track.background import BackgroundTracker
from glmexp.track.base import NullTracker, SweepInfo, Tracker
from glmexp.track.session import Session


def preflight(config: TrackerConfig, environ: Mapping[str, str]) -> list[str]:
    """Checks the tracker before a run or a sweep, without a connection; returns lines to tell the user.

    Raises:
        UserError: a package is missing, or ``tracker.mode=online`` without a key.
    """
    if config.name is TrackerName.wandb:
        from glmexp.track.wandb import preflight as preflight_wandb

        return preflight_wandb(config, environ)
    if config.name is TrackerName.swanlab:
        from glmexp.track.swanlab import preflight as preflight_swanlab

        return preflight_swanlab(config, environ)
    if config.name is TrackerName.tensorboard:
        from glmexp.track.tensorboard import preflight as preflight_tensorboard

        return preflight_tensorboard()
    return []


def tracker_for(
    config: TrackerConfig, environ: Mapping[str, str], warn: Callable[[str], None], session: Session | None = None
) -> Tracker:
    """The tracker of ``config`` for one run; none of its methods raises.

    Args:
        warn: takes a line for the user.
        session: shared by the trials of a sweep, so that a server out of reach is waited for once.
    """
    session = session or Session()
    if config.name is TrackerName.wandb:
        from glmexp.track.wandb import WandbTracker

        return BackgroundTracker(WandbTracker(config, environ, warn, session), warn)
    if config.name is TrackerName.swanlab:
        from glmexp.track.swanlab import SwanlabTracker

        return BackgroundTracker(SwanlabTracker(config, environ, warn, session), warn)
    if config.name is TrackerName.tensorboard:
        from glmexp.track.tensorboard import TensorboardTracker

        return BackgroundTracker(TensorboardTracker(warn), warn)
    return NullTracker()


def overview(
    config: TrackerConfig,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    sweep: SweepInfo,
    session: Session | None = None,
) -> str | None:
    """Shows a whole sweep in the tracker, as far as it has a place for that; the address or folder of it.

    Never raises, and takes no longer than the tracker's longest wait. A sweep that was resumed calls it again.
    """
    tracker = tracker_for(config, environ, warn, session)
    tracker.overview(sweep)
    return tracker.where
