"""All trials that were asked for: those that can run, those that a rule refuses, and those that are one and the same."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

from glmexp.sweep.execute import outline
from glmexp.sweep.folder import NEVER_RAN, SweepFolder
from glmexp.sweep.jobs import Invalid, Job, asked
from glmexp.trial.record import State


@dataclass
class Grid:
    """The trials of one batch, in the order of the command line."""

    made: list[Job | Invalid]
    jobs: list[Job] = field(init=False)
    """One for each effective configuration."""
    twins: dict[str, tuple[Job, Job]] = field(init=False)
    """Folder name -> (a trial that would repeat another, that other)."""

    def __post_init__(self) -> None:
        leaders: dict[str, Job] = {}
        self.twins = {}
        for item in self.made:
            if isinstance(item, Invalid):
                continue
            leader = leaders.setdefault(item.config_hash, item)
            if leader is not item:
                name = item.name if item.name != leader.name and item.name not in self.twins else f"{item.name}-{item.number}"
                self.twins[name] = (item, leader)
        self.jobs = list(leaders.values())

    @property
    def invalid(self) -> list[Invalid]:
        return [item for item in self.made if isinstance(item, Invalid)]

    def record_what_cannot_run(self, folder: SweepFolder, tell: Callable[[str, State, str], None]) -> None:
        """Writes the rows of refused trials and of twins; ``tell`` takes (name, state, reason) of each."""
        self._forget_earlier_rows(folder)
        for item in self.invalid:
            folder.record(item.name, outline(item, State.invalid, item.reason))
            tell(item.name, State.invalid, item.reason)
        for name, (twin, leader) in self.twins.items():
            reason = f"the same effective configuration as {leader.name}"
            folder.record(name, outline(twin, State.skipped, reason))
            tell(name, State.skipped, reason)

    def _forget_earlier_rows(self, folder: SweepFolder) -> None:
        """What an earlier session refused or skipped of these very trials is decided anew."""
        these = [asked(item.overrides) for item in self.made]
        for finished in folder.results():
            if finished.result.state in NEVER_RAN and asked(finished.result.overrides) in these:
                shutil.rmtree(finished.folder)
