"""W&B for a whole sweep: trials side by side, a server out of reach, the overview run, the workspace, syncing later."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loopback_server import LoopbackServer, loopback_server
from offline_file import read_offline
from test_wandb import KEY, in_child

from glmexp.track import SweepInfo
from glmexp.track.swept import config_keys

ROWS = [
    {"trial": "stage1-aa", "state": "complete", "reason": "", "zero": "stage1", "batch.micro": "1"},
    {"trial": "stage2-bb", "state": "complete", "reason": "", "zero": "stage2", "batch.micro": "2"},
    {"trial": "stage2-cc", "state": "oom", "reason": "=out of memory | <b>", "zero": "stage2", "batch.micro": "4"},
]
FIGURES = [(900.0, 3.5), (1000.0, 3.0), (None, None)]

SWEEP = f"""
import json, os, sys, threading, time
from pathlib import Path
from glmexp.config import compose
from glmexp.track import RunInfo, Session, SweepInfo, overview, preflight, tracker_for

folder, sessions = Path(sys.argv[1]), int(os.environ.get("SESSIONS", 1))
config = compose(sys.argv[2:]).config
for line in preflight(config.tracker, os.environ):
    print("preflight:", line)
rows = [
    {{**row, "tokens_per_second": speed, "peak_allocated_gib": None, "host_peak_gib": memory}}
    for row, (speed, memory) in zip({ROWS!r}, {FIGURES!r})
]
told = []

def trial(row, session):
    at = folder / row["trial"]
    at.mkdir(exist_ok=True)
    stage, micro = int(row["zero"][-1]), int(row["batch.micro"])
    at.joinpath("config.yaml").write_text(f"zero: {{{{stage: {{stage}}, x: {{stage}}}}}}\\nbatch: {{{{micro: {{micro}}}}}}\\n")
    tracker = tracker_for(config.tracker, os.environ, told.append, session)
    tracker.start(RunInfo(at, config, {{}}, {{}}, group=folder.name, name=row["trial"].partition("-")[0]))
    for step in range(1, 21):
        tracker.log({{"step": step, "loss": micro + step / 100}})
        time.sleep(0.01)
    tracker.finish({{"state": row["state"], "reason": row["reason"], "metrics": {{}}}})
    assert tracker.error is None, tracker.error

for _ in range(sessions):
    session = Session()
    threads = [threading.Thread(target=trial, args=(row, session)) for row in rows]
    began = time.monotonic()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    sweep = SweepInfo(folder, folder.name, rows, {{"complete": 2, "oom": 1}}, ("zero", "batch.micro"))
    where = overview(config.tracker, os.environ, told.append, sweep, session)
    print(json.dumps({{"seconds": time.monotonic() - began, "told": told, "where": where}}))
    told.clear()
"""


def sweep(folder: Path, *overrides: str, **more: str) -> list[dict[str, Any]]:
    """Three trials at the same time and the overview, once a session; what each session told."""
    done = in_child(folder, "tracker=wandb", *overrides, code=SWEEP, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def online(server: LoopbackServer) -> dict[str, str]:
    return {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}


def tables(server: LoopbackServer) -> dict[str, dict[str, Any]]:
    """Uploaded tables by what stands before their hash."""
    return {
        Path(path).name.split("_0_")[0]: json.loads(content)
        for path, content in server.files.items()
        if path.endswith(".table.json") and "_0_" in path
    }


def test_trials_side_by_side_and_their_overview_online(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    folder = tmp_path / "grid"
    folder.mkdir()
    with loopback_server() as server:
        first, second = sweep(folder, "tracker.workspace=true", "tracker.tags=[mine]", SESSIONS="2", **online(server))
    assert first["told"] == second["told"] == []
    trials = [run for run in server.runs.values() if run["jobType"] == "trial"]
    (overview,) = [run for run in server.runs.values() if run["jobType"] == "sweep"]
    # Two sessions: six runs, for a new attempt is a run of its own, and one overview.
    assert sorted(run["displayName"] for run in trials) == ["stage1"] * 2 + ["stage2"] * 4
    assert {run["groupName"] for run in [*trials, overview]} == {"grid"}
    assert overview["displayName"] == "overview grid"
    assert first["where"] == second["where"] == f"{server.url}/me/glmexp/runs/{overview['name']}"
    assert {tuple(run["tags"]) for run in trials} == {("mine", "complete"), ("mine", "oom")}

    ends = [sent["exitcode"] for sent in server.streams if sent.get("exitcode") is not None]
    assert sorted(ends) == [0, 0, 0, 0, 0, 0, 1, 1]
    losses = sorted(row["loss"] for row in server.rows("wandb-history.jsonl") if "loss" in row)
    assert losses == pytest.approx(sorted(2 * [micro + step / 100 for micro in (1, 2, 4) for step in range(1, 21)]))

    summary = next(row for row in reversed(server.rows("wandb-summary.json")) if "states" in row)
    assert (summary["number_of_trials"], summary["trials"]["nrows"], summary["states"]) == (3, 3, {"complete": 2, "oom": 1})
    table = tables(server)
    assert table["trials"]["columns"] == [*ROWS[0], "tokens_per_second", "peak_allocated_gib", "host_peak_gib"]
    # What was swept comes as text from the command line, and can be plotted as a number.
    assert table["trials"]["data"][2] == [*list(ROWS[2].values())[:4], 4, None, None, None]
    assert table["memory_and_speed_table"]["data"] == [["stage1-aa", 3.5, 900.0], ["stage2-bb", 3.0, 1000.0]]

    saved, again = server.variables("UpsertView2")
    assert "id" not in saved
    assert (again["id"], again["name"]) == ("v1", saved["name"])  # over the first one
    assert summary["workspace"].startswith(f"{server.url}/me/glmexp?nw=")
    spec = json.loads(saved["spec"])
    assert saved["displayName"] == "glmexp grid"
    filters = spec["section"]["runSets"][0]["filters"]["filters"]
    assert [(item["key"]["name"], item["value"]) for item in filters] == [("group", "grid"), ("jobType", "trial")]
    (section,) = spec["section"]["panelBankConfig"]["sections"]
    scatter, parallel = section["panels"]
    assert (scatter["viewType"], scatter["config"]["xAxis"], scatter["config"]["yAxis"]) == (
        "Scatter Plot",
        "summary:host_peak_gib",
        "summary:tokens_per_second",
    )
    assert parallel["viewType"] == "Parallel Coordinates Plot"
    assert [column["accessor"] for column in parallel["config"]["columns"]] == [
        "config:zero.value.stage",
        "config:batch.value.micro",
        "summary:host_peak_gib",
        "summary:tokens_per_second",
    ]


def test_a_server_out_of_reach_is_waited_for_once(tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    folder.mkdir()
    (told,) = sweep(folder, WANDB_API_KEY=KEY, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_INIT_TIMEOUT="2")
    assert len(told["told"]) == 1
    assert told["told"][0].startswith("W&B: no run on the server")
    assert told["seconds"] < 2 * 2 + 3  # four runs, of which one waits
    runs = [read_offline(path) for path in folder.rglob("*.wandb")]
    assert sorted(run.name for run in runs) == ["overview grid", "stage1", "stage2", "stage2"]
    assert sorted(run.exit_code or 0 for run in runs) == [0, 0, 0, 1]
    assert sorted(len(run.history) for run in runs) == [1, 20, 20, 20]


@pytest.mark.slow
def test_an_offline_sweep_is_synced_later(tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    folder.mkdir()
    first, second = sweep(folder, "tracker.mode=offline", SESSIONS="2")
    assert first["told"] == second["told"] == []
    found = list(folder.rglob("*.wandb"))
    assert len(found) == 7  # the second overview took the place of the first
    assert second["where"] == str(next(path.parent for path in found if path.parents[2] == folder))
    with loopback_server() as server:
        kept = {key: value for key, value in os.environ.items() if "WANDB" not in key}
        subprocess.run(
            [sys.executable, "-m", "wandb", "sync", *[str(path.parent) for path in found]],
            env={**kept, **online(server), "HOME": str(tmp_path)},
            check=True,
            capture_output=True,
            timeout=90,
        )
    assert len(server.runs) == 7
    assert sorted(run["displayName"] for run in server.runs.values()) == ["overview grid"] + ["stage1"] * 2 + ["stage2"] * 4
    assert {run["groupName"] for run in server.runs.values()} == {"grid"}
    assert len([row for row in server.rows("wandb-history.jsonl") if "loss" in row]) == 120
    assert tables(server)["trials"]["data"][0][:3] == ["stage1-aa", "complete", ""]


def test_of_a_group_the_first_field_that_differs_is_plotted(tmp_path: Path) -> None:
    for name, zero in (("a", "{stage: 2, overlap_comm: true}"), ("b", "{stage: 2, overlap_comm: false}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"zero: {zero}\noptimizer: {{lr: 0.1}}\n")
    rows = [{"trial": "a"}, {"trial": "b"}, {"trial": "invalid"}]
    keys = config_keys(SweepInfo(tmp_path, "s", rows, {}, ("zero", "optimizer.lr", "optimizer", "unknown")))
    assert keys == ["zero.overlap_comm", "optimizer.lr"]
