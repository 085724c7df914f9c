"""The id by which a dashboard knows a run, kept in the run's folder so that a later session goes on with it."""

import json
from pathlib import Path


def keep(folder: Path, tracker: str, identity: str) -> None:
    """Writes ``FOLDER/<tracker>/run.json``."""
    place = folder / tracker
    place.mkdir(exist_ok=True)
    (place / "run.json").write_text(json.dumps({"id": identity}), encoding="utf-8")


def kept(folder: Path, tracker: str) -> str | None:
    """What ``keep`` wrote; None where nothing was recorded yet, or nothing can be read."""
    try:
        identity = json.loads((folder / tracker / "run.json").read_text(encoding="utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(identity)
