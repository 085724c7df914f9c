"""Where a run is recorded besides its own files: one small interface, dashboards behind it."""

from glmexp.track.base import NullTracker, RunInfo, SweepInfo, Tracker
from glmexp.track.selection import overview, preflight, tracker_for
from glmexp.track.session import Session

__all__ = ["NullTracker", "RunInfo", "Session", "SweepInfo", "Tracker", "overview", "preflight", "tracker_for"]
