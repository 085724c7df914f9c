"""Where a run is recorded besides its own files: one small interface, dashboards behind it."""

from glmexp.track.base import NullTracker, RunInfo, Tracker
from glmexp.track.selection import preflight, tracker_for

__all__ = ["NullTracker", "RunInfo", "Tracker", "preflight", "tracker_for"]
