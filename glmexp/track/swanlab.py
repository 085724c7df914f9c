"""SwanLab: online with a key, offline without one, and never a question.

As for W&B, what it sends is what the run's own files hold: the checked config, the DeepSpeed dict, the versions, the metrics.
The package itself runs in a process of its own, one a run (``swanlab_process``).
"""

import contextlib
import json
import netrc
import os
import select
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glmexp.config.schema import TrackerConfig
from glmexp.track import identity
from glmexp.track.base import RunInfo, Tracker, curves, figures, plain, run_config
from glmexp.track.online import goes_offline, goes_online, refuse_missing, refuse_without_key
from glmexp.track.session import Session

DEFAULT_PROJECT = "glmexp"
START_SECONDS = 60.0
"""For the process to start and to open a run offline."""
SERVER_SECONDS = 20.0
"""For the same online; the package itself would try for a minute."""
FINISH_SECONDS = 45.0
PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


def preflight(config: TrackerConfig, environ: Mapping[str, str]) -> list[str]:
    """Checks the package and the key without importing swanlab or opening a connection; returns lines for the user.

    Raises:
        UserError: swanlab is not installed, or ``tracker.mode=online`` has no key.
    """
    refuse_missing("swanlab", "'glmexp[swanlab]'")
    key = has_key(environ)
    refuse_without_key(config, key, "SwanLab key found, neither in SWANLAB_API_KEY nor from `swanlab login`", "swanlab")
    if goes_offline(config, key):
        return ["SwanLab: no key found, so the run is recorded offline; `swanlab sync <run folder>/swanlab/run-*` uploads it."]
    return []


def is_online(config: TrackerConfig, environ: Mapping[str, str]) -> bool:
    """Whether the run goes to the server: as asked, else (auto) if there is a key and SWANLAB_MODE does not say no."""
    return goes_online(config, has_key(environ), environ.get("SWANLAB_MODE", "online") in ("online", "cloud"))


def has_key(environ: Mapping[str, str]) -> bool:
    """Whether SwanLab can log in by itself: a key in the environment or one that `swanlab login` has kept."""
    if environ.get("SWANLAB_API_KEY"):
        return True
    home = Path(environ.get("HOME") or Path.home())
    kept = Path(environ.get("SWANLAB_ROOT") or environ.get("SWANLAB_SAVE_DIR") or home / ".swanlab")
    return any(_holds_key(folder / ".netrc") for folder in (Path.cwd() / ".swanlab", kept))


def _holds_key(path: Path) -> bool:
    try:
        return any(password for _, _, password in netrc.netrc(path).hosts.values())
    except (OSError, netrc.NetrcParseError):
        return False


class SwanlabTracker(Tracker):
    """One SwanLab run for one trial. Its methods block and may raise: give it to ``BackgroundTracker``."""

    def __init__(
        self, config: TrackerConfig, environ: Mapping[str, str], warn: Callable[[str], None], session: Session | None = None
    ) -> None:
        super().__init__(warn)
        self.config = config
        self.environ = environ
        self.session = session or Session()
        self._process: _Process | None = None

    def start(self, run: RunInfo) -> None:
        """Opens the run; if the server cannot be reached in time or refuses, offline with one warning."""
        if is_online(self.config, self.environ):
            try:
                self._process = self.session.connect(lambda: self._open(run, "online", SERVER_SECONDS))
            except Exception as error:
                reason = textwrap.shorten(str(error), 160, placeholder=" …")
                self.warn(f"SwanLab: no run on the server ({reason}); recording offline, `swanlab sync` uploads it later")
        self._process = self._process or self._open(run, "offline", START_SECONDS)
        self.where = self._process.where
        identity.keep(run.folder, "swanlab", self._process.identity)

    def log(self, row: Mapping[str, Any]) -> None:
        assert self._process is not None
        self._process.send({"row": curves(row), "step": int(row.get("step") or 0)})

    def finish(self, result: Mapping[str, Any]) -> None:
        """State, reason and metrics become ``result`` in the config, which SwanLab shows as columns.

        A run that was interrupted is shown as aborted, every other one that did not complete as crashed.
        """
        assert self._process is not None
        state, reason = plain(result.get("state")), result.get("reason")
        ending: dict[str, Any] = {"state": "success"}
        if state != "complete":
            shown = "aborted" if state == "interrupted" else "crashed"
            ending = {"state": shown, "error": f"{state}: {reason}" if reason else state}
        told = {"state": state, "reason": reason or "", **figures(result.get("metrics") or {})}
        try:
            self._process.send({"finish": ending, "result": told})
            self._process.answer(FINISH_SECONDS)
        except Exception:
            # The next trials need not wait for it too.
            self.session.lose()
            raise
        finally:
            self._process.end()

    def _open(self, run: RunInfo, mode: str, seconds: float) -> "_Process":
        config, folder = self.config, run.folder / "swanlab"
        known = identity.kept(run.folder, "swanlab") if run.going_on else None
        earlier = set(folder.glob("*"))
        described = {
            "id": known,
            "resume": "allow" if known and mode == "online" else None,
            "mode": mode,
            "log_dir": str(folder),
            "project": config.project or DEFAULT_PROJECT,
            "workspace": config.entity,
            "group": config.group or run.group,
            "name": run.title,
            "job_type": run.job_type,
            "tags": list(config.tags),
            "config": run_config(run),
        }
        try:
            return _Process(described, self.environ, seconds)
        except Exception:
            for path in set(folder.glob("*")) - earlier:  # an empty run
                shutil.rmtree(path, ignore_errors=True)
            raise


class _Process:
    """The process of one run; made when the run is open, or raises."""

    def __init__(self, described: Mapping[str, Any], environ: Mapping[str, str], seconds: float) -> None:
        known = [PACKAGE_PARENT, *filter(None, [environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "glmexp.track.swanlab_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, "PYTHONPATH": os.pathsep.join(known)},
            start_new_session=True,  # Ctrl-C is the parent's to answer
        )
        self._read = b""
        try:
            self.send(described)
            told = self.answer(seconds)
            self.where, self.identity = str(told["where"]), str(told["id"])
        except Exception:
            self.end(patience=0)
            raise

    def send(self, call: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer; raises RuntimeError for one that tells of an error, TimeoutError for none in time."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._process.stdout], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"no answer from SwanLab within {seconds:g} s")
            part = os.read(self._process.stdout.fileno(), 65536)
            if not part:
                raise RuntimeError("the process that records for SwanLab has ended")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(told["error"])
        return told

    def end(self, patience: float = 5.0) -> None:
        """Closes the process's input, and kills it if that has not ended it after ``patience`` seconds."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # it has ended, and what was still to be written to it is lost
                stream.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
