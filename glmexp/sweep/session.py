"""The sweep that this process runs. Hydra makes its launcher and callbacks itself, so that is where they find it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from glmexp.config.compose import Composed, from_composition
from glmexp.dsconfig.convert import Expanded
from glmexp.sweep.folder import SweepFolder


class SweepRefusedError(BaseException):
    """A user's error found before the first trial; Hydra turns plain exceptions of a callback into warnings."""


@dataclass
class Session:
    """One ``--multirun``, from the command line to its exit code."""

    expanded: Expanded
    folder: SweepFolder | None = None
    signal: int | None = None
    """The signal that ended the sweep."""
    ran: list[Path] = field(default_factory=list)

    def compose(self, task: DictConfig) -> Composed:
        """What Hydra composed for one trial, checked, with the files that values came from; raises UserError."""
        composed = from_composition(task, task.hydra)
        sources: Mapping[str, str] = self.expanded.relabel(composed.sources)
        return Composed(composed.config, dict(sources))


_sessions: list[Session] = []


def begin(session: Session) -> None:
    _sessions.append(session)


def current() -> Session:
    """The session of this process; a launcher's own worker process has none and gets an empty one."""
    if not _sessions:
        begin(Session(Expanded([], [], {})))
    return _sessions[-1]
