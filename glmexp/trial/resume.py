"""One run in several sessions: which run ``train.resume=auto`` goes on with, who may, and what is known of one before its end.

``RUN/run.json`` is written before the ranks start, so that a run that is killed is known by its hash; ``RUN/.lock`` is held for
the life of the parent, and the kernel frees it with that, whichever way the parent ends.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from glmexp.config.errors import UserError
from glmexp.config.files import leaves, settings, to_values, typed
from glmexp.config.schema import Config
from glmexp.trial.config_hash import NOT_HASHED
from glmexp.trial.orphan import end_tagged
from glmexp.trial.record import CONFIG, RESULT, RUN, State, write_json
from glmexp.trial.result import MetricsTail, Result, read_result
from glmexp.trial.saved import checkpoints, folders

LOCK = ".lock"
MOST_SETTINGS = 3
OTHERWISE = " (of the same settings: the ranks, the device, a file of the data or the model, torch or DeepSpeed is another)"


@dataclass
class Sessions:
    """The content of ``run.json``."""

    config_hash: str
    began: float
    """Seconds since the epoch: when the first session started."""
    tag: str
    """Marks the processes of the last session (``trial.orphan``)."""
    sessions: list[dict[str, Any]] = field(default_factory=list)
    """Oldest first: ``started`` (ISO 8601 with time zone), ``overrides``, ``from_step`` and ``stop_after``; of those before the
    last also the ``state``, ``reason`` and ``seconds`` of their ``result.json``, if they came to write one."""


@dataclass(frozen=True)
class Decision:
    """What ``train.resume=auto`` comes to."""

    folder: Path
    """Where the run takes place."""
    words: str
    """For the user."""
    going_on: bool = False
    """Whether the folder holds an earlier session of this run."""
    done: bool = False
    """Whether nothing is left to do there."""


def decide(config: Config, digest: str, folder: Path, given: bool) -> Decision:
    """Which run to go on with: the newest with this hash that can be, if it is not finished.

    Args:
        digest: ``config_hash`` of the run that was asked for.
        folder: the folder that Hydra made for it, ``ROOT/<date>/<name>``, or the one of ``hydra.run.dir``.
        given: whether it is that of ``hydra.run.dir``; then it alone is looked at, else all runs below ROOT.

    Raises:
        UserError: the run is still going on in another process, or the given folder holds another run.
    """
    root = folder if given else folder.parent.parent
    without: Path | None = None
    for run, known in _runs(root, digest, given):
        if known.config_hash != digest:
            raise UserError(
                f"hydra.run.dir={shown(run)} holds another run{_difference(config, run)}\n"
                "name another folder, or give the settings of that run"
            )
        if is_running(run):
            raise UserError(f"{shown(run)} is still going on in another process\nwait for its end, or end it first")
        if (words := nothing_left(config, run, known)) is not None:
            return Decision(run, words, done=True)
        if saved := checkpoints(run):
            again = _done_again(run, saved[-1].step)
            return Decision(run, f"resuming {shown(run)} from step {saved[-1].step}{again}", going_on=True)
        without = without or run
    if without is None:
        nothing = f"nothing to resume {'in' if given else 'under'} {shown(root)}/: a fresh run"
        return Decision(folder, nothing if given else nothing + _unlike(config, digest, root))
    why = "all its checkpoints are damaged" if folders(without) else "it has saved no checkpoint"
    return Decision(folder, f"{shown(without)} cannot be resumed, {why}: a fresh run", going_on=given)


def _runs(root: Path, digest: str, given: bool) -> list[tuple[Path, Sessions]]:
    """The runs to look at, the one that was begun last first."""
    known = _known([root] if given else [path.parent for path in root.glob(f"*/*/{RUN}")])
    return [(run, sessions) for run, sessions in known if given or sessions.config_hash == digest]


def _known(folders: Iterable[Path]) -> list[tuple[Path, Sessions]]:
    """Those of the folders that hold a run, the one that was begun last first."""
    found = [(folder, sessions) for folder in folders if (sessions := read_sessions(folder)) is not None]
    return sorted(found, key=lambda item: item[1].began, reverse=True)


def _unlike(config: Config, digest: str, root: Path) -> str:
    """By what the newest run differs, if it is of another configuration and was left unfinished: it may have been meant."""
    run, known = next(iter(_known(path.parent for path in root.glob(f"*/*/{RUN}"))), (root, None))
    if known is None or known.config_hash == digest or nothing_left(config, run, known) is not None or not checkpoints(run):
        return ""
    return f"; {shown(run)}, which is not finished, is another{_difference(config, run)}"


def nothing_left(config: Config, run: Path, known: Sessions) -> str | None:
    """Why there is nothing to go on with: the run has all its steps, or those that ``train.stop_after`` asks for."""
    result, saved = read_result(run), checkpoints(run)
    if result is not None and result.state is State.complete:
        steps = result.metrics.get("steps")
        if stopped_at(known, result) in (None, config.train.max_steps):
            words = f"{shown(run)} is complete ({steps} steps): nothing is left to do"
            if config.train.save_weights and saved and not (run / "export").is_dir():  # as after a disk that was full
                words += f"; it has no export/, and `python -m glmexp export {shown(run)}` writes step {saved[-1].step}"
            return words
    stop_after = config.train.stop_after
    if stop_after is not None and saved and saved[-1].step >= stop_after:
        return f"{shown(run)} is at step {saved[-1].step} already: train.stop_after={stop_after} leaves nothing to do"
    return None


def stopped_at(known: Sessions, result: Result) -> int | None:
    """The step at which ``train.stop_after`` ended a run that is complete; None for one that came to its own end."""
    stop: int | None = known.sessions[-1].get("stop_after") if known.sessions else None
    return None if stop != result.metrics.get("steps") else stop


def is_to_go_on(config: Config, run: Path, result: Result) -> bool:
    """Whether a run that is complete was ended by ``train.stop_after`` before the step at which ``config`` ends."""
    known = read_sessions(run)
    stopped = None if known is None or result.state is not State.complete else stopped_at(known, result)
    last = config.train.stop_after or config.train.max_steps
    return stopped is not None and (last is None or stopped < last)


def _done_again(run: Path, step: int) -> str:
    """What is said of the steps after the newest checkpoint, which dashboards have seen already."""
    tail = MetricsTail(run)
    tail.fresh()
    last = max((int(row.get("step") or 0) for row in tail.rows), default=0)
    if last <= step:
        return ""
    return f"; step {last} is done again" if last == step + 1 else f"; steps {step + 1} to {last} are done again"


def begin(folder: Path, digest: str, tag: str, overrides: Sequence[str], config: Config, going_on: bool) -> None:
    """Writes ``run.json`` for a session that starts now; ``going_on`` with the one that the folder holds.

    What is left of that one's processes is ended first, and what it told of its ranks and its end is taken away, so that nobody
    takes it for the new one's.
    """
    now = time.time()
    earlier = read_sessions(folder) if going_on else None
    known = earlier or Sessions(digest, now, tag)
    if earlier is not None:
        end_tagged(earlier.tag, grace_seconds=0.0)  # ranks may outlive a parent that was killed, by a moment
    if known.sessions and (result := read_result(folder)) is not None:
        told = {"state": result.state.value, "reason": result.reason, "seconds": result.times.get("seconds")}
        known.sessions[-1] |= told
    saved = checkpoints(folder)
    known.sessions.append(
        {
            "started": datetime.fromtimestamp(now).astimezone().isoformat(timespec="milliseconds"),
            "overrides": list(overrides),
            "from_step": saved[-1].step if saved else 0,
            "stop_after": config.train.stop_after,
        }
    )
    write_json(folder / RUN, asdict(Sessions(digest, known.began, tag, known.sessions)))
    for path in (folder / RESULT, *folder.glob("rank*.json")):
        path.unlink(missing_ok=True)


def read_sessions(folder: Path) -> Sessions | None:
    """The content of a folder's ``run.json``, or None if there is none that can be read."""
    try:
        known = Sessions(**json.loads((folder / RUN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = isinstance(known.config_hash, str) and isinstance(known.tag, str) and isinstance(known.began, int | float)
    listed = isinstance(known.sessions, list) and all(isinstance(session, dict) for session in known.sessions)
    return known if texts and listed else None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the folder of a run for this process. Raises UserError if another one has it."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(f"a run is going on in {shown(folder)}\nwait for its end, or name another folder") from error
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def is_running(folder: Path) -> bool:
    """Whether another process is at the run in this folder."""
    try:
        with held(folder):
            return False
    except UserError:
        return True


def shown(folder: Path) -> str:
    """A folder as the user would type it."""
    relative = os.path.relpath(folder)
    return str(folder) if relative.startswith("..") else relative


def other_data(config: Config, run: Path, samples: int) -> str | None:
    """A line if the run that wrote the checkpoint read other data or in another order, as far as its ``config.yaml`` tells.

    Args:
        samples: how many of the order are behind the checkpoint, at the present batch.
    """
    told = _differing(config, run)
    told = {key: words for key, words in told.items() if key.startswith(("data.", "train.seed")) and ".eval_" not in key}
    if not told:
        return None
    return (
        f"the checkpoint's run had other data, or another order{_listed(told)}: this one goes on at sample {samples} of its own"
    )


def _difference(config: Config, run: Path) -> str:
    """`` (zero.stage=2 there, 3 now)``: by what the run in the folder differs, as far as its ``config.yaml`` tells."""
    told = _differing(config, run)
    return _listed(told) if told else OTHERWISE


def _listed(told: Mapping[str, str]) -> str:
    words = list(told.values())
    return f" ({'; '.join(words[:MOST_SETTINGS])}{'; ...' if words[MOST_SETTINGS:] else ''})"


def _differing(config: Config, run: Path) -> dict[str, str]:
    """Setting -> ``zero.stage=2 there, 3 now`` for each that differs from the ``config.yaml`` of a run and counts."""
    there = settings(run / CONFIG)
    return {
        key: f"{key}={typed(there[key])} there, {typed(value)} now"
        for key, value in leaves(to_values(config))
        if key in there and there[key] != value and not {key, key.split(".")[0]} & set(NOT_HASHED)
    }
