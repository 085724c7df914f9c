"""Weights & Biases: online with a key, offline without one, and never a question.

What it sends is what the run's own files hold: the checked config, the DeepSpeed dict, the versions and the metrics. Console
output, code, git state, command line, machine information, installed packages and system statistics stay here.
"""

import configparser
import importlib.util
import netrc
import os
import secrets
import shutil
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from glmexp.config.errors import missing_package
from glmexp.config.schema import TrackerConfig
from glmexp.track import identity
from glmexp.track.base import RunInfo, SweepInfo, Tracker, curves, figures, plain, run_config
from glmexp.track.online import goes_offline, goes_online, refuse_missing, refuse_without_key
from glmexp.track.session import Session

DEFAULT_PROJECT = "glmexp"
PUBLIC_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
"""The public server under its old and its new name; a key for either is taken by both."""
INIT_SECONDS = 20.0
FINISH_SECONDS = 45.0


def preflight(config: TrackerConfig, environ: Mapping[str, str]) -> list[str]:
    """Checks the package and the key without importing wandb or opening a connection; returns lines for the user.

    Raises:
        UserError: a package is not installed, or ``tracker.mode=online`` has no key.
    """
    refuse_missing("wandb", "wandb")
    key = has_key(environ)
    refuse_without_key(config, key, "W&B key found, neither in WANDB_API_KEY nor in the netrc file", "wandb")
    if config.workspace and importlib.util.find_spec("wandb_workspaces") is None:
        out = "leave tracker.workspace out"
        raise missing_package("tracker.workspace=true", "wandb-workspaces", "'glmexp[workspaces]'", out)
    lines = []
    if goes_offline(config, key):
        lines = ["W&B: no key found, so the run is recorded offline; `wandb sync <run folder>/wandb/offline-run-*` uploads it."]
    if config.workspace and not is_online(config, environ):
        lines.append("tracker.workspace=true has no effect offline: a workspace is kept by the server.")
    return lines


def is_online(config: TrackerConfig, environ: Mapping[str, str]) -> bool:
    """Whether the run goes to the server: as asked, else (auto) if there is a key and WANDB_MODE does not say no."""
    allowed = environ.get("WANDB_MODE", "online") not in ("offline", "dryrun", "disabled")
    return goes_online(config, has_key(environ), allowed)


def has_key(environ: Mapping[str, str]) -> bool:
    """Whether W&B can log in by itself: a key or a token file in the environment, or a key in the netrc file."""
    return bool(environ.get("WANDB_IDENTITY_TOKEN_FILE")) or find_key(environ) is not None


def find_key(environ: Mapping[str, str]) -> str | None:
    """The key from WANDB_API_KEY, else from the netrc file for the server in use."""
    if key := environ.get("WANDB_API_KEY"):
        return key
    try:
        entries = netrc.netrc(_netrc_file(environ))
    except (OSError, netrc.NetrcParseError):
        return None
    for host in _hosts(environ):
        found = entries.authenticators(host)
        if found and found[2]:
            return found[2]
    return None


def _netrc_file(environ: Mapping[str, str]) -> Path:
    if path := environ.get("NETRC"):
        return Path(path).expanduser()
    home = Path(environ.get("HOME") or Path.home())
    # The same two names, in the same order, as wandb looks for.
    return next((home / name for name in (".netrc", "_netrc") if (home / name).exists()), home / ".netrc")


def _hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    url = environ.get("WANDB_BASE_URL") or _base_url_of_settings(environ)
    host = urlsplit(url).netloc if url else None
    return (host,) if host and host not in PUBLIC_HOSTS else PUBLIC_HOSTS


def _base_url_of_settings(environ: Mapping[str, str]) -> str | None:
    """``base_url`` of W&B's own settings file, where `wandb login --host` writes a private server."""
    folder = environ.get("WANDB_CONFIG_DIR") or Path(environ.get("HOME") or Path.home()) / ".config" / "wandb"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(Path(folder) / "settings")
        return parser.get("default", "base_url", fallback=None)
    except (OSError, configparser.Error, UnicodeDecodeError):
        return None


class WandbTracker(Tracker):
    """One W&B run for one trial, or for the overview of a sweep.

    Its methods block and may raise: give it to ``BackgroundTracker``. Several can be open in one process, each on its thread.
    """

    def __init__(
        self, config: TrackerConfig, environ: Mapping[str, str], warn: Callable[[str], None], session: Session | None = None
    ) -> None:
        super().__init__(warn)
        self.config = config
        self.environ = environ
        self.session = session or Session()
        self.online = False
        self._run: Any = None

    def start(self, run: RunInfo) -> None:
        """Opens the run; if the server cannot be reached in time or refuses, offline with one warning."""
        # A new id for every start but that of a later session: what starts over must not add its rows to an earlier run.
        known = identity.kept(run.folder, "wandb") if run.going_on else None
        self._run = self._open(
            run.folder,
            lambda: known or secrets.token_hex(4),
            group=self.config.group or run.group,
            name=run.title,
            job_type=run.job_type,
            config=run_config(run),
            resume="allow" if known else None,
        )
        identity.keep(run.folder, "wandb", self._run.id)

    def log(self, row: Mapping[str, Any]) -> None:
        step = row.get("step")
        self._run.log(curves(row), step=None if step is None else int(step))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes ``state``, ``reason`` and the metrics into the summary, and the state as a tag.

        The exit code is 0 for ``complete`` only, so that W&B shows every other run as failed.
        """
        state = plain(result.get("state"))
        summary = {"state": state, "reason": result.get("reason"), **figures(result.get("metrics") or {})}
        self._run.summary.update({key: value for key, value in summary.items() if value is not None})
        self._run.tags = (*(self._run.tags or ()), state)
        self._close(exit_code=0 if state == "complete" else 1)

    def overview(self, sweep: SweepInfo) -> None:
        """One run with the table of all trials, memory against speed, and the number of trials by state.

        Its id is kept in the sweep folder: what is made after a resume takes the place of what was there.
        """
        from glmexp.track.wandb_overview import content, kept, remove_local, save_workspace

        known = kept(sweep.folder)["run"]
        remove_local(sweep.folder, known)
        group = self.config.group or sweep.name
        self._run = self._open(
            sweep.folder, lambda: known, group=group, name=f"overview {sweep.name}", job_type="sweep", resume="allow"
        )
        try:
            self._run.log(content(sweep))
            self._run.summary.update({"number_of_trials": len(sweep.rows), "states": dict(sweep.counts)})
            if self.config.workspace and self.online:
                self._run.summary["workspace"] = save_workspace(sweep, group, self._run.entity, self._run.project)
        except Exception:
            self._close(exit_code=1)
            raise
        self._close(exit_code=0)

    def _close(self, exit_code: int) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except Exception:
            # The next trials need not wait for it too.
            self.session.lose()
            raise

    def _open(self, folder: Path, name_of: Callable[[], str], **described: Any) -> Any:
        # The crash reports of the wandb process itself are a connection too, also in offline mode.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # What it says before it reads our settings, such as whose key it uses.
        os.environ.setdefault("WANDB_SILENT", "true")
        # The only import of wandb: it takes 0.6 s, and tracker=none must work without the package.
        import wandb

        def init(mode: Literal["online", "offline"], name: str) -> Any:
            return wandb.init(
                mode=mode,
                id=name,
                dir=str(folder),
                project=self.config.project or DEFAULT_PROJECT,
                entity=self.config.entity,
                tags=list(self.config.tags),
                reinit="create_new",  # the trials of a sweep that run side by side have a run each
                settings=self._settings(wandb, mode),
                **(described if mode == "online" else {**described, "resume": None}),
            )

        def online() -> Any:
            name = name_of()
            earlier = set((folder / "wandb").glob(f"run-*-{name}"))  # of earlier sessions of the run
            try:
                return init("online", name)
            except Exception:
                for path in set((folder / "wandb").glob(f"run-*-{name}")) - earlier:
                    shutil.rmtree(path, ignore_errors=True)
                raise

        if is_online(self.config, self.environ):
            try:
                if run := self.session.connect(online):
                    self.online, self.where = True, run.url
                    return run
            except Exception as error:
                reason = textwrap.shorten(str(error), 160, placeholder=" …") or type(error).__name__
                self.warn(f"W&B: no run on the server ({reason}); recording offline, `wandb sync` uploads it later")
        run = init("offline", name_of())
        self.where = str(Path(run.dir).parent)
        return run

    def _settings(self, wandb: Any, mode: str) -> Any:
        wanted: dict[str, Any] = {
            "console": "off",
            "silent": True,
            "quiet": True,
            "symlink": False,
            "host": "",  # else the machine's name
            "disable_git": True,
            "disable_code": True,
            "save_code": False,
            "disable_job_creation": True,
            "label_disable": True,
            "sagemaker_disable": True,
            "x_disable_stats": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "x_save_requirements": False,
            "init_timeout": float(self.environ.get("WANDB_INIT_TIMEOUT") or INIT_SECONDS),
            "finish_timeout": FINISH_SECONDS,
            "finish_timeout_raises": True,
            # A killed parent loses two seconds of rows instead of fifteen.
            "x_transaction_log_flush_interval": 2.0,
        }
        if mode == "online" and (key := find_key(self.environ)):
            # With a key given outright wandb has nothing to ask for, whatever the terminal is.
            wanted["api_key"] = key
        # The names that start with x_ come and go between releases, and an unknown one is an error.
        known = wandb.Settings.model_fields
        return wandb.Settings(**{name: value for name, value in wanted.items() if name in known})
