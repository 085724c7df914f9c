"""Trials that an earlier session left in the folder and that the grid of today does not ask for."""

from collections.abc import Iterable, Sequence
from typing import Any

from glmexp.config.files import leaves, settings, to_values, typed
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.jobs import Job
from glmexp.trial.config_hash import NOT_HASHED
from glmexp.trial.record import CONFIG

MOST_SETTINGS = 3


def not_of_this_grid(folder: SweepFolder, jobs: Sequence[Job], searched: Sequence[str]) -> str | None:
    """A line that counts them and names the settings by which they differ; None if there are none.

    Args:
        jobs: all trials of today.
        searched: keys to which a search gives values of its own.
    """
    today = gathered(pair for job in jobs for pair in leaves(to_values(job.composed.config)))
    hashes = {job.config_hash for job in jobs}
    differences = [
        [(key, value) for key, value in settings(finished.folder / CONFIG).items() if value not in today.get(key, [value])]
        for digest, finished in folder.ran().items()
        if digest not in hashes
    ]
    ignored = (*NOT_HASHED, *searched)
    differences = [[(key, value) for key, value in one if not {key, key.split(".")[0]} & set(ignored)] for one in differences]
    if searched:  # the search itself made those that differ in nothing else
        differences = [one for one in differences if one]
    if not differences:
        return None
    told = [
        f"{key}={shown(values)} there, {shown(today[key])} now"
        for key, values in gathered(pair for one in differences for pair in one).items()
    ]
    why = f" ({'; '.join(told[:MOST_SETTINGS])}{'; ...' if len(told) > MOST_SETTINGS else ''})" if told else ""
    count = len(differences)
    trials = "1 earlier trial in this folder is" if count == 1 else f"{count} earlier trials in this folder are"
    return f"{trials} not of this grid{why}; the report shows all"


def gathered(settings: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Key -> its values, each once."""
    found: dict[str, list[Any]] = {}
    for key, value in settings:
        if value not in (values := found.setdefault(key, [])):
            values.append(value)
    return found


def shown(values: Sequence[Any]) -> str:
    return ",".join(map(typed, values))
