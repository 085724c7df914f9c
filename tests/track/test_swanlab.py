"""SwanLab as a user meets it: offline files, keys, failed runs, no connection, several runs at once."""

import importlib.util
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from swanlab_server import swanlab_server

from glmexp.config import UserError, compose
from glmexp.config.schema import Config
from glmexp.track import RunInfo, Session, preflight, tracker_for
from glmexp.track.swanlab import has_key, is_online

KEY = "canary" * 6 + "5f1d"
OFFLINE = ["tracker=swanlab", "tracker.mode=offline"]
FINISHED, CRASHED, ABORTED = 1, 2, 3
installed = pytest.mark.skipif(importlib.util.find_spec("swanlab") is None, reason="swanlab is not installed")


@pytest.fixture(autouse=True)
def _away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SWANLAB")]:
        monkeypatch.delenv(name)


def config(*overrides: str) -> Config:
    return compose([*overrides]).config


def environ(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(home / "home"), **more}


def drive(
    folder: Path, chosen: Config, around: dict[str, str], session: Session | None = None, state: str = "complete", **about: Any
) -> list[str]:
    """Three steps of a run; the lines that the user was told."""
    folder.mkdir(exist_ok=True)
    told: list[str] = []
    tracker = tracker_for(chosen.tracker, around, told.append, session)
    tracker.start(RunInfo(folder, chosen, {"zero_optimization": {"stage": 2}}, {"torch": "2.13.0"}, world_size=2, **about))
    for step in (1, 2, 3):
        tracker.log({"step": step, "loss": 1.0 / step, "skipped": step == 2, "grad_norm": None})
    tracker.finish({"state": state, "reason": None if state == "complete" else "why", "metrics": {"steps": 3, "mfu": None}})
    assert tracker.error is None, tracker.error
    assert tracker.where == str(run_folder(folder))
    return told


def run_folder(folder: Path) -> Path:
    (found,) = (folder / "swanlab").glob("run-*")
    return found


def records(folder: Path) -> list[Any]:
    """What SwanLab has on disk of a run, read by its own reader."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (path,) = run_folder(folder).glob("*.swanlab")
    reader = DataStoreReader()
    reader.open(path)
    found = []
    for payload in reader:
        record = Record()
        record.ParseFromString(payload)
        found.append(record)
    return found


def kinds(folder: Path, kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records(folder) if record.WhichOneof("record_type") == kind]


def told_config(folder: Path) -> dict[str, Any]:
    found = yaml.safe_load((run_folder(folder) / "files" / "config.yaml").read_text())
    return {key: item["value"] for key, item in found.items()}


@installed
def test_an_offline_run_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    chosen = config(*OFFLINE, "tracker.tags=[a,b]", "tracker.run_name=base", "batch.micro=2")
    assert preflight(chosen.tracker, environ(tmp_path)) == []
    assert drive(folder, chosen, environ(tmp_path), group="grid", name="stage2") == []
    (start,) = kinds(folder, "start")
    assert (start.project, start.name, start.group, start.job_type) == ("glmexp", "base stage2", "grid", "trial")
    assert list(start.tags) == ["a", "b"]
    rows = [(row.key, row.step, row.value.number) for row in kinds(folder, "scalar")]
    assert sorted(row for row in rows if row[0] == "loss") == [
        ("loss", 1, 1.0),
        ("loss", 2, 0.5),
        ("loss", 3, pytest.approx(1 / 3)),
    ]
    assert {name for name, _, _ in rows} == {"loss", "skipped"}
    nested = told_config(folder)
    assert nested["batch"]["micro"] == 2
    assert nested["deepspeed_config"]["zero_optimization"] == {"stage": 2}
    assert (nested["versions"], nested["world_size"]) == ({"torch": "2.13.0"}, 2)
    assert nested["result"] == {"state": "complete", "reason": "", "steps": 3}
    (finish,) = kinds(folder, "finish")
    assert (finish.state, finish.error) == (FINISHED, "")


@installed
@pytest.mark.parametrize(("state", "shown"), [("oom", CRASHED), ("interrupted", ABORTED)])
def test_a_run_that_failed_is_not_shown_as_finished(tmp_path: Path, state: str, shown: int) -> None:
    drive(tmp_path / "run", config(*OFFLINE), environ(tmp_path), state=state)
    (finish,) = kinds(tmp_path / "run", "finish")
    assert (finish.state, finish.error) == (shown, f"{state}: why")
    assert told_config(tmp_path / "run")["result"]["state"] == state


@installed
def test_nothing_of_the_machine_and_no_secret_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["a-command-line-to-keep-out"])
    drive(tmp_path / "run", config(*OFFLINE), environ(tmp_path, SWANLAB_API_KEY=KEY, MY_API_TOKEN=KEY))
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for kept_out in (KEY, f'"{socket.gethostname()}"', "a-command-line-to-keep-out", sys.executable):
            assert kept_out.encode() not in content, f"{kept_out} in {file}"
    assert not (tmp_path / "home").exists()


@installed
def test_an_online_run_reaches_the_server(tmp_path: Path) -> None:
    with swanlab_server() as server:
        chosen = config("tracker=swanlab", "tracker.mode=online", "tracker.tags=[a]")
        around = environ(tmp_path, SWANLAB_API_KEY=KEY, SWANLAB_API_HOST=server.url)
        assert preflight(chosen.tracker, around) == []
        tracker = tracker_for(chosen.tracker, around, print)
        tracker.start(RunInfo(tmp_path, chosen, {}, {}, group="grid", name="stage2"))
        tracker.log({"step": 1, "loss": 2.5})
        tracker.finish({"state": "oom", "reason": "why", "metrics": {}})
        assert tracker.error is None
    (sent,) = server.sent("POST", "/experiment")
    assert tracker.where == f"{server.url}/@me/glmexp/runs/{sent['cuid']}"
    assert (sent["name"], sent["cluster"], sent["job"], sent["labels"]) == ("stage2", "grid", "trial", [{"name": "a"}])
    rows = [row for body in server.sent("POST", "/house/metrics") if body["type"] == "scalar" for row in body["metrics"]]
    assert [(row["key"], row["index"], row["data"]) for row in rows] == [("loss", 1, 2.5)]
    assert [body["state"] for body in server.sent("PUT", "/state")] == ["CRASHED"]
    profile = [body["config"] for body in server.sent("PUT", "/profile") if "config" in body][-1]
    assert profile["result"]["value"]["state"] == "oom"
    metadata = [body["metadata"] for body in server.sent("PUT", "/profile") if "metadata" in body]
    assert all(value is None for told in metadata for name, value in told.items() if name != "_version")
    assert KEY not in str(server.calls)


@installed
@pytest.mark.parametrize("lost", ["refuses the key", "does not answer"])
def test_trials_side_by_side_whose_server_is_lost(tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first trial of a sweep finds out and tells so; all are recorded offline, each in a process of its own."""
    session, told = Session(), list[str]()
    chosen = config("tracker=swanlab")

    def trial(name: str, around: dict[str, str]) -> None:
        told.extend(drive(tmp_path / name, chosen, around, session, group="grid", name=name))

    with swanlab_server(refuse=True) as server, socket.create_server(("127.0.0.1", 0)) as deaf:
        host = server.url if lost == "refuses the key" else f"http://127.0.0.1:{deaf.getsockname()[1]}"
        if lost == "does not answer":
            monkeypatch.setattr("glmexp.track.swanlab.SERVER_SECONDS", 3.0)
        around = environ(tmp_path, SWANLAB_API_KEY=KEY, SWANLAB_API_HOST=host)
        assert is_online(chosen.tracker, around)
        threads = [threading.Thread(target=trial, args=(name, around)) for name in ("one", "two", "three")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (line,) = told
    assert line.startswith("SwanLab: no run on the server"), line
    assert KEY not in line
    for name in ("one", "two", "three"):
        (start,) = kinds(tmp_path / name, "start")
        assert (start.name, start.group) == (name, "grid")
        assert len([row for row in kinds(tmp_path / name, "scalar") if row.key == "loss"]) == 3


@installed
def test_a_parent_that_is_gone_leaves_no_process_and_an_aborted_run(tmp_path: Path) -> None:
    from glmexp.track.swanlab import SwanlabTracker

    tracker = SwanlabTracker(config(*OFFLINE).tracker, environ(tmp_path), print)
    tracker.start(RunInfo(tmp_path, config(*OFFLINE), {}))
    tracker.log({"step": 1, "loss": 1.0})
    assert tracker._process is not None
    process = tracker._process._process
    assert process.stdin is not None
    process.stdin.close()  # what the kernel does when the parent is killed
    assert process.wait(20) == 0
    (finish,) = kinds(tmp_path, "finish")
    assert finish.state == ABORTED
    assert len(kinds(tmp_path, "scalar")) == 1


@installed
def test_without_a_key_auto_goes_offline_and_online_is_refused(tmp_path: Path) -> None:
    auto, online, offline = (
        config("tracker=swanlab", f"tracker.mode={mode}").tracker for mode in ("auto", "online", "offline")
    )
    (line,) = preflight(auto, environ(tmp_path))
    assert "offline" in line
    assert "swanlab sync" in line
    with pytest.raises(UserError, match=r"tracker\.mode=online.*SWANLAB_API_KEY[\s\S]*swanlab login"):
        preflight(online, environ(tmp_path))
    assert preflight(offline, environ(tmp_path)) == []
    assert not is_online(auto, environ(tmp_path))
    assert not is_online(auto, environ(tmp_path, SWANLAB_API_KEY=KEY, SWANLAB_MODE="offline"))


@pytest.mark.parametrize("source", ["environment", "login", "another root", "folder of the call"])
def test_a_key_is_found_where_swanlab_finds_it(tmp_path: Path, source: str) -> None:
    around = environ(tmp_path)
    assert not has_key(around)
    netrc = {
        "login": tmp_path / "home" / ".swanlab",
        "another root": tmp_path / "root",
        "folder of the call": tmp_path / ".swanlab",
    }
    if source == "environment":
        around["SWANLAB_API_KEY"] = KEY
    else:
        netrc[source].mkdir(parents=True)
        (netrc[source] / ".netrc").write_text(f"machine https://api.swanlab.cn\n  login https://swanlab.cn\n  password {KEY}\n")
    if source == "another root":
        around["SWANLAB_ROOT"] = str(tmp_path / "root")
    assert has_key(around)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'glmexp\[swanlab\]'"):
        preflight(config(*OFFLINE).tracker, {})
