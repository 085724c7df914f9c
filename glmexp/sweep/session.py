"""The sweep that this process runs. Hydra makes its launcher and callbacks itself, so that is where they find it."""

from dataclasses import dataclass, replace

from omegaconf import DictConfig

from glmexp.config.compose import Composed, from_composition
from glmexp.dsconfig.convert import Expanded
from glmexp.sweep.folder import SweepFolder


class SweepRefusedError(BaseException):
    """What went wrong before the first trial; Hydra turns plain exceptions of a callback into warnings."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Session:
    """One ``--multirun``, from the command line to its exit code."""

    expanded: Expanded
    folder: SweepFolder | None = None
    signal: int | None = None
    """The signal that ended the sweep."""
    concluded: bool = False
    """Whether the user has been told what came out."""

    def compose(self, task: DictConfig, hydra: DictConfig) -> Composed:
        """What Hydra composed for one trial, checked, with the files that values came from; raises UserError."""
        composed = from_composition(task, hydra)
        return replace(composed, sources=self.expanded.relabel(composed.sources))

    def abandon(self) -> None:
        """Leaves nothing of a sweep that was refused before its first trial."""
        if self.folder is not None:
            self.folder.abandon()

    def exit_code(self) -> int:
        """Of the sweep, once Hydra is through; 0 where none was begun, as after ``--cfg job``."""
        from glmexp.sweep.ending import conclude, exit_code

        if self.folder is None:
            return 0
        if not self.concluded:  # by a launcher that is not glmexp's own
            conclude(self.folder, [], print)
        return exit_code([finished.result for finished in self.folder.results()], self.signal)


_sessions: list[Session] = []


def begin(expanded: Expanded) -> Session:
    _sessions.append(Session(expanded))
    return _sessions[-1]


def current() -> Session:
    """The session of this process; a launcher's own worker process has none and gets an empty one."""
    return _sessions[-1] if _sessions else begin(Expanded([]))
