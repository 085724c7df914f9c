"""What is known of a run's checkpoints without reading tensors: names, wholeness, which is newest, which is best.

``RUN/checkpoints/step-000120/`` holds DeepSpeed's files and ``state.json``. The folder is built under a hidden name and renamed
when all of it is on the disk: one that is there is whole, unless something happened to it since. Both sides import this
module, so it stands on the standard library and the configuration alone.
"""

import json
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.config.choices import OptimizerType
from glmexp.config.errors import UserError
from glmexp.config.schema import Config

FOLDER = "checkpoints"
STATE = "state.json"
BEST = "best.json"
"""In ``checkpoints/``: ``{"tag": "step-000120", "score": "rouge-l", "value": 41.2, "step": 120}``."""
NAME = re.compile(r"step-(\d{6,})$")
FORMAT = 1
"""Of ``state.json`` and of what is added to DeepSpeed's files."""


@dataclass(frozen=True)
class Saved:
    """One checkpoint."""

    path: Path
    """Its folder, absolute."""
    step: int
    """Optimizer steps done, skipped ones included."""
    state: dict[str, Any]
    """The content of ``state.json``: ``step``, ``applied``, ``skipped``, ``world_size``, ``zero_stage``, ``method`` and more
    (``train.checkpoint``); ``files`` maps each file's name to its size in bytes."""


def tag(step: int) -> str:
    """Name of the checkpoint after optimizer step ``step``; names of fewer than seven digits sort as steps do."""
    return f"step-{step:06d}"


def folders(run: Path) -> list[Path]:
    """The folders of a run's checkpoints, oldest first, damaged ones included."""
    try:
        found = [path for path in (run / FOLDER).iterdir() if NAME.match(path.name) and path.is_dir()]
    except OSError:
        return []
    return sorted(found, key=step_of)


def checkpoints(run: Path) -> list[Saved]:
    """The whole checkpoints of a run, oldest first."""
    return [_read(path) for path in folders(run) if is_whole(path)]


def is_whole(path: Path) -> bool:
    """Whether ``state.json`` can be read and every file that it lists is there in its size."""
    return damage(path) is None


def damage(path: Path) -> str | None:
    """What is wrong with the checkpoint ``path``, as far as names and sizes tell; None if nothing is."""
    try:
        saved = _read(path)
        files = {str(name): int(size) for name, size in saved.state["files"].items()}
    except FileNotFoundError:
        return f"{STATE} is not there"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{STATE} cannot be read"
    for name, size in files.items():
        try:
            found = (path / name).stat().st_size
        except OSError:
            return f"{name} is not there"
        if found != size:
            return f"{name} has {found} bytes and should have {size}"
    return None


def corruption(file: Path) -> str | None:
    """What is wrong with the content of one file of a checkpoint; None if nothing is. Reads all of it.

    PyTorch's files are zip archives that hold a CRC-32 of every tensor, which ``torch.load`` does not look at.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        return f"{file.name} cannot be read: {error}"
    return None if bad is None else f"{file.name} is not what was written (checksum of {bad})"


def find(path: Path) -> Saved:
    """The checkpoint that ``path`` means: a checkpoint's folder, or a run's for its newest. Raises UserError."""
    if not path.is_dir():
        move = f"give a checkpoint (RUN/{FOLDER}/{tag(100)}) or the folder of a run"
        if NAME.match(path.name) and (there := checkpoints(path.parent.parent)):
            move = f"what is kept there: {', '.join(saved.path.name for saved in there)}"
        raise UserError(f"{path}: no such folder\n{move}")
    chosen = path
    if NAME.match(path.name) is None and not (path / STATE).is_file():
        run = path.parent if path.name == FOLDER else path
        listed = folders(run)
        if not listed:
            raise UserError(f"{path} holds no checkpoint\ncheckpoint.every=N makes a run save one every N optimizer steps")
        chosen = listed[-1]
    wrong = damage(chosen)
    if wrong is None:
        return _read(chosen)
    others = [saved.path for saved in checkpoints(chosen.parent.parent) if saved.path.name != chosen.name]
    move = f"the newest whole one beside it is {others[-1]}" if others else "there is no whole one beside it"
    raise UserError(f"{chosen} is damaged: {wrong}\n{move}")


def unchanging(config: Config) -> dict[str, str]:
    """What must be as it was when the checkpoint was written: a part of ``state.json``."""
    return {"method": config.method.name.value, "optimizer": config.optimizer.type.value}


def check_same(found: Saved, config: Config) -> None:
    """Raises UserError for a checkpoint of another format, method or optimizer, from which no run of ``config`` can go on."""
    state = found.state
    if state.get("format") != FORMAT:
        raise UserError(
            f"{found.path} is of format {state.get('format')}, another version's, and this glmexp reads format {FORMAT}"
            "\nresume it with the version that wrote it"
        )
    for name, is_now in unchanging(config).items():
        was = state.get(name, is_now)
        if was != is_now:
            option = str(was).lower()  # as the group's option is called
            raise UserError(
                f"{found.path} was written with {name}={option}, and this run has {is_now.lower()}\n"
                f"set {name}={option}, or leave train.resume out"
            )
    stages = {state.get("zero_stage", config.zero.stage), config.zero.stage}
    if config.optimizer.type is OptimizerType.Muon and len(stages) > 1 and stages != {1, 2}:
        raise UserError(
            f"{found.path} was written at zero=stage{state['zero_stage']}, and Muon's momentum differs between the stages\n"
            f"resume it with zero=stage{state['zero_stage']}"
        )


def best(run: Path) -> dict[str, Any] | None:
    """The content of ``checkpoints/best.json``; None without one that can be read and whose checkpoint is whole."""
    try:
        content = json.loads((run / FOLDER / BEST).read_text(encoding="utf-8"))
        known = is_whole(run / FOLDER / str(content["tag"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if known else None


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    found = NAME.match(path.name)
    return int(found[1]) if found else -1


def _read(path: Path) -> Saved:
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    return Saved(path.absolute(), int(state["step"]), state)
