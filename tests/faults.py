"""Faults for whole runs, planted from outside: glmexp itself has no hook for them."""

from pathlib import Path

HOOK = """
import sys

import glmexp.train.ranks as ranks

_found = ranks.from_environment


def from_environment():
    place = _found()
    begin(place, sys.argv[1])
    return place


ranks.from_environment = from_environment
"""


def plant(folder: Path, begin: str) -> Path:
    """Writes a ``sitecustomize.py`` that runs ``begin`` in every rank as it starts; returns the folder for PYTHONPATH.

    Args:
        begin: source of a function ``begin(place, folder)`` with the rank's ``Ranks`` and trial folder. What differs by trial
            it has to tell from these or from ``config.yaml`` there.

    Python runs a sitecustomize once a process, and with warm starts that is the server that ranks are forked from, long before
    there is a trial. So it replaces what each rank calls first (``from_environment``); that works for cold ranks alike. A
    fault that differed by an environment variable would make a server of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"{begin}\n{HOOK}")
    return folder
