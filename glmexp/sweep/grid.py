"""All trials that were asked for: those that can run, those that a rule refuses, and those that are one and the same."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from glmexp.sweep.execute import outline
from glmexp.sweep.folder import NEVER_RAN, Finished, SweepFolder
from glmexp.sweep.jobs import Invalid, Job
from glmexp.sweep.overrides import asked
from glmexp.trial.record import RESULT, State


@dataclass
class Grid:
    """The trials of one batch, in the order of the command line."""

    made: list[Job | Invalid]
    ran: Mapping[str, Finished] = field(default_factory=dict)
    """What an earlier session ran, by hash: each keeps its folder, in whatever order the trials are now."""
    jobs: list[Job] = field(init=False)
    """One for each effective configuration."""
    twins: dict[str, tuple[Job, Job]] = field(init=False)
    """Folder name -> (a trial that would repeat another, that other)."""
    invalid: dict[str, Invalid] = field(init=False)
    """Folder name -> a trial that a rule refuses."""

    def __post_init__(self) -> None:
        self.invalid = {}
        for item in self.made:
            if isinstance(item, Invalid):
                self.invalid[item.name if item.name not in self.invalid else f"{item.name}-{item.number}"] = item
        valid = [item for item in self.made if isinstance(item, Job)]
        leaders: dict[str, Job] = {}
        for item in valid:
            leader = leaders.setdefault(item.config_hash, item)
            if item.name == self._where(leader) != leader.name:
                leaders[item.config_hash] = item
        self.jobs = list(leaders.values())
        self.twins = {}
        for item in valid:
            leader = leaders[item.config_hash]
            if leader is not item:
                name = item.name if item.name != leader.name and item.name not in self.twins else f"{item.name}-{item.number}"
                self.twins[name] = (item, leader)

    def _where(self, job: Job) -> str:
        """Name of the folder that has, or will have, the result of this configuration."""
        earlier = self.ran.get(job.config_hash)
        return job.name if earlier is None else earlier.folder.name

    def record_what_cannot_run(self, folder: SweepFolder, tell: Callable[[str, State, str], None]) -> None:
        """Writes the rows of refused trials and of twins; ``tell`` takes (name, state, reason) of each."""
        self._forget_earlier_rows(folder)
        for name, refused in self.invalid.items():
            result = outline(refused, State.invalid, refused.reason)
            folder.record(name, result)
            tell(name, State.invalid, result.reason)
        for name, (twin, leader) in self.twins.items():
            reason = f"the same effective configuration as {self._where(leader)}"
            folder.record(name, outline(twin, State.skipped, reason))
            tell(name, State.skipped, reason)

    def _forget_earlier_rows(self, folder: SweepFolder) -> None:
        """What an earlier session refused or skipped of these very trials is decided anew; a try that was made is kept."""
        these = [asked(item.overrides) for item in self.made]
        for finished in folder.results():
            if finished.result.state in NEVER_RAN and asked(finished.result.overrides) in these:
                (finished.folder / RESULT).unlink()
                with suppress(OSError):
                    finished.folder.rmdir()
