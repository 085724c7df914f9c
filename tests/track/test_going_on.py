"""A run in two sessions is one run in each dashboard, and its steps go on where the checkpoint was."""

import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from offline_file import once_closed

from glmexp.config import compose
from glmexp.track import RunInfo, tracker_for

OLDER, NEWER = (1, 2, 3, 4), (4, 5, 6)
"""Steps of the two sessions: the first was killed after the checkpoint of step 3."""


def two_sessions(folder: Path, tracker: str) -> None:
    config = compose([f"tracker={tracker}", *(["tracker.mode=offline"] if tracker != "tensorboard" else [])]).config
    environ = {**os.environ, "HOME": str(folder)}
    for going_on, steps in ((False, OLDER), (True, NEWER)):
        told: list[str] = []
        recorded = tracker_for(config.tracker, environ, told.append)
        recorded.start(RunInfo(folder, config, {}, going_on=going_on))
        if going_on:
            recorded.go_on(3)
        for step in steps:
            recorded.log({"step": step, "loss": 10.0 * going_on + step})
        recorded.finish({"state": "complete" if going_on else "killed", "reason": "", "metrics": {}})
        assert (recorded.error, told) == (None, [])
        if tracker != "tensorboard" and not going_on:
            time.sleep(1.1)  # the folders of sessions are named by the second


def test_wandb_sessions_bear_one_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    two_sessions(tmp_path, "wandb")
    identity = json.loads((tmp_path / "wandb" / "run.json").read_text())["id"]
    first, second = sorted(tmp_path.glob("wandb/offline-run-*"))
    assert first.name.endswith(f"-{identity}")
    assert second.name.endswith(f"-{identity}")
    steps = [[row["_step"] for row in once_closed(next(path.glob("*.wandb"))).history] for path in (first, second)]
    assert steps == [list(OLDER), list(NEWER)]


def test_another_run_has_an_id_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    config = compose(["tracker=wandb", "tracker.mode=offline"]).config
    names = set()
    for _ in range(2):
        recorded = tracker_for(config.tracker, {"HOME": str(tmp_path)}, lambda line: None)
        recorded.start(RunInfo(tmp_path, config, {}))
        recorded.finish({"state": "complete", "reason": "", "metrics": {}})
        names.add(json.loads((tmp_path / "wandb" / "run.json").read_text())["id"])
    assert len(names) == 2


def test_tensorboard_drops_the_steps_that_are_done_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_sessions(tmp_path, "tensorboard")
    events: Any = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 14),
        (5, 15),
        (6, 16),
    ]


@pytest.mark.skipif(importlib.util.find_spec("swanlab") is None, reason="swanlab is not installed")
def test_swanlab_sessions_bear_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two_sessions(tmp_path, "swanlab")
    identity = json.loads((tmp_path / "swanlab" / "run.json").read_text())["id"]
    folders = sorted(tmp_path.glob("swanlab/run-*"))
    assert len(folders) == 2
    assert all(identity in folder.name for folder in folders)
