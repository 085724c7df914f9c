"""W&B as a user meets it: offline files, keys, failed runs, no connection, no secret."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from offline_file import OfflineRun, once_closed, read_offline

from glmexp.config import UserError, compose
from glmexp.config.choices import TrackerMode, TrackerName
from glmexp.config.schema import Config, TrackerConfig
from glmexp.track import NullTracker, RunInfo, preflight, tracker_for
from glmexp.track.base import run_config
from glmexp.track.wandb import find_key, is_online

KEY = "0123456789" * 4
OFFLINE = ["tracker=wandb", "tracker.mode=offline"]


def config(*overrides: str) -> Config:
    return compose([*overrides]).config


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def record(folder: Path, *overrides: str, state: str = "complete", **more: str) -> tuple[OfflineRun, list[str]]:
    """Three steps through the tracker of a config; the run as read back, and the lines the user was told."""
    chosen = config(*overrides)
    told: list[str] = []
    tracker = tracker_for(chosen.tracker, environ(folder, **more), told.append)
    tracker.start(
        RunInfo(folder, chosen, {"zero_optimization": {"stage": 2}}, {"torch": "2.13.0", "wandb": None}, world_size=2)
    )
    for step in (1, 2, 3):
        tracker.log({"step": step, "loss": 1.0 / step, "lr": 1e-3, "skipped": step == 2, "grad_norm": None, "mfu": 0.4})
    tracker.finish({"state": state, "reason": None if state == "complete" else "why", "metrics": {"steps": 3, "mfu": None}})
    assert tracker.error is None
    (path,) = folder.rglob("*.wandb")
    assert tracker.where == str(path.parent)
    return once_closed(path), told


def test_offline_run_is_read_back(tmp_path: Path) -> None:
    run, told = record(tmp_path, *OFFLINE, "tracker.group=grid", "tracker.tags=[a,b]", "batch.micro=2")
    assert told == []
    assert (run.name, run.project, run.group, run.tags) == (
        tmp_path.name,
        "glmexp",
        "grid",
        ["a", "b", "complete"],
    )
    assert [row["_step"] for row in run.history] == [1, 2, 3]
    assert [row["loss"] for row in run.history] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [row["skipped"] for row in run.history] == [0, 1, 0]
    assert not any("grad_norm" in row or "step" in row for row in run.history)
    assert [row["perf/mfu"] for row in run.history] == pytest.approx([0.4] * 3)
    assert not any("mfu" in row for row in run.history)
    assert run.config["batch"]["micro"] == 2
    assert run.config["precision"]["dtype"] == config().precision.dtype.value
    assert run.config["deepspeed_config"]["zero_optimization"] == {"stage": 2}
    assert run.config["versions"]["torch"] == "2.13.0"
    assert run.config["world_size"] == 2
    assert (run.summary["state"], run.summary["steps"], run.exit_code) == ("complete", 3, 0)
    assert "mfu" not in run.summary
    assert run.host == ""


@pytest.mark.parametrize("state", ["oom", "diverged", "interrupted"])
def test_a_run_that_failed_is_not_shown_as_finished(tmp_path: Path, state: str) -> None:
    run, _ = record(tmp_path, *OFFLINE, state=state)
    assert run.exit_code == 1
    assert (run.summary["state"], run.summary["reason"]) == (state, "why")
    assert len(run.history) == 3


def test_config_is_plain_json() -> None:
    chosen = config(*OFFLINE)
    nested = run_config(RunInfo(Path("x"), chosen, {}, {}))
    assert json.loads(json.dumps(nested)) == nested
    assert nested["tracker"]["mode"] == "offline"


def test_without_a_key_auto_goes_offline_and_online_is_refused(tmp_path: Path) -> None:
    auto, online, offline = (config("tracker=wandb", f"tracker.mode={mode}").tracker for mode in ("auto", "online", "offline"))
    (line,) = preflight(auto, environ(tmp_path))
    assert "offline" in line
    assert "wandb sync" in line
    with pytest.raises(UserError, match=r"tracker\.mode=online.*WANDB_API_KEY[\s\S]*wandb login"):
        preflight(online, environ(tmp_path))
    assert preflight(offline, environ(tmp_path)) == []
    assert not is_online(auto, environ(tmp_path))
    run, told = record(tmp_path, "tracker=wandb")
    assert (len(run.history), told) == (3, [])


@pytest.mark.parametrize("source", ["environment", "netrc", "netrc of a private server", "settings of a private server"])
def test_a_key_is_found_where_wandb_finds_it(tmp_path: Path, source: str) -> None:
    auto, around = config("tracker=wandb").tracker, environ(tmp_path)
    host = "wandb.example.org" if "private" in source else "api.wandb.ai"
    if source == "environment":
        around["WANDB_API_KEY"] = KEY
    else:
        (tmp_path / ".netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    if source == "netrc of a private server":
        around["WANDB_BASE_URL"] = "https://wandb.example.org"
    if source == "settings of a private server":
        (tmp_path / ".config" / "wandb").mkdir(parents=True)
        (tmp_path / ".config" / "wandb" / "settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    assert find_key(around) == KEY
    assert is_online(auto, around)
    assert preflight(auto, around) == []
    assert not is_online(auto, {**around, "WANDB_MODE": "offline"})


def test_a_key_of_another_server_does_not_count(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"machine wandb.example.org\n  login user\n  password {KEY}\n")
    assert find_key(environ(tmp_path)) is None
    (tmp_path / ".netrc").write_text("machine")
    assert find_key(environ(tmp_path)) is None


def test_a_missing_package_is_named_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install wandb"):
        preflight(config(*OFFLINE).tracker, {})
    off = TrackerConfig(name=TrackerName.none, mode=TrackerMode.auto, tags=[])
    assert preflight(off, {}) == []
    assert isinstance(tracker_for(off, {}, print), NullTracker)


CHILD = """
import os, sys
from pathlib import Path
from glmexp.config import compose
from glmexp.track import RunInfo, tracker_for

def main():
    folder = Path(sys.argv[1])
    config = compose(sys.argv[2:]).config
    tracker = tracker_for(config.tracker, os.environ, print)
    tracker.start(RunInfo(folder, config, {}, {}))
    for step in (1, 2, 3):
        tracker.log({"step": step, "loss": 1.0 / step})
    tracker.finish({"state": "complete", "metrics": {}})
    print("error:", tracker.error)
    print("where:", tracker.where)

GUARD = 0
main()
"""


def in_child(folder: Path, *overrides: str, code: str = CHILD, **more: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: wandb keeps its session for the life of one."""
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    script = home / "track.py"
    script.write_text(code)
    kept = {key: value for key, value in os.environ.items() if "WANDB" not in key}
    return subprocess.run(
        [sys.executable, str(script), str(folder), *overrides],
        env={**kept, "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2]), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_offline_makes_no_connection(tmp_path: Path) -> None:
    """Python's sockets are guarded, and the wandb process is sent to proxies that count who comes."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.0)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        guard = textwrap.dedent(
            """
            import socket
            connect = socket.socket.connect
            def guarded(self, address):
                if self.family != socket.AF_UNIX:
                    raise SystemExit(f"connected to {address}")
                return connect(self, address)
            socket.socket.connect = guarded
            """
        )
        done = in_child(
            tmp_path,
            *OFFLINE,
            code=CHILD.replace("GUARD = 0", guard),
            HTTP_PROXY=address,
            HTTPS_PROXY=address,
            WANDB_API_KEY=KEY,
            WANDB_BASE_URL="http://wandb.example.org",
        )
        assert "error: None" in done.stdout, done.stdout + done.stderr
        with pytest.raises(BlockingIOError):
            proxy.accept()
    (path,) = tmp_path.rglob("*.wandb")
    assert read_offline(path).exit_code == 0


def test_an_offline_run_is_silent_and_keeps_secrets_out(tmp_path: Path) -> None:
    secret = "canary" * 6 + "5f1d"
    done = in_child(tmp_path, *OFFLINE, WANDB_API_KEY=secret, MY_API_TOKEN=secret)
    (path,) = tmp_path.rglob("*.wandb")
    assert done.stdout.splitlines() == ["error: None", f"where: {path.parent}"]
    assert done.stderr == ""
    files = [item for item in tmp_path.rglob("*") if item.is_file()]
    homes = [item for item in tmp_path.with_name(f"{tmp_path.name}-home").rglob("*") if item.is_file()]
    assert [item for item in [*files, *homes] if secret.encode() in item.read_bytes()] == []
    # Machine, command line and packages are not recorded either.
    assert {item.suffix for item in files if item.name != "run.json"} <= {".wandb", ".log"}
    assert set(json.loads((path.parent.parent / "run.json").read_text())) == {"id"}
    assert not (tmp_path / "wandb" / "latest-run").exists()


def test_a_server_out_of_reach_falls_back_to_offline(tmp_path: Path) -> None:
    done = in_child(tmp_path, "tracker=wandb", WANDB_API_KEY=KEY, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_INIT_TIMEOUT="2")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("W&B: no run on the server"), done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    assert lines[1] == "error: None"
    assert len(lines) == 3
    (path,) = tmp_path.rglob("*.wandb")
    assert len(read_offline(path).history) == 3
