"""TensorBoard's files, read back by TensorBoard itself: the event accumulator and the HParams tab's own code."""

import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from glmexp.config import UserError, compose
from glmexp.track import RunInfo, SweepInfo, overview, preflight, tracker_for

pytest.importorskip("tensorboard")


def record(folder: Path, *overrides: str, state: str = "complete") -> str | None:
    """Three steps of a run in ``folder``; where it says that they are."""
    folder.mkdir(exist_ok=True)
    config = compose(["tracker=tensorboard", *overrides]).config
    told: list[str] = []
    assert preflight(config.tracker, {}) == []
    tracker = tracker_for(config.tracker, {}, told.append)
    tracker.start(RunInfo(folder, config, {"zero_optimization": {"stage": 2}}, {"torch": "2.13.0"}, world_size=2))
    for step in (1, 2, 3):
        tracker.log({"step": step, "loss": 1.0 / step, "skipped": step == 2, "grad_norm": None})
    tracker.finish({"state": state, "reason": "<b>why</b>", "metrics": {"tokens_per_second": 99.5, "mfu": None}})
    assert (tracker.error, told) == (None, [])
    return tracker.where


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def text(events: Any, tag: str) -> str:
    (event,) = events.Tensors(tag)
    return event.tensor_proto.string_val[0].decode()


def hparams(events: Any, tag: str) -> Any:
    from tensorboard.plugins.hparams import metadata

    parse = {
        metadata.SESSION_START_INFO_TAG: metadata.parse_session_start_info_plugin_data,
        metadata.SESSION_END_INFO_TAG: metadata.parse_session_end_info_plugin_data,
        metadata.EXPERIMENT_TAG: metadata.parse_experiment_plugin_data,
    }
    return parse[tag](events.SummaryMetadata(tag).plugin_data.content)


def test_a_run_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert record(folder, "batch.micro=2") == str(folder)
    events = read(folder)
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
    assert [event.value for event in events.Scalars("skipped")] == [0, 1, 0]
    assert [(event.step, event.value) for event in events.Scalars("result/tokens_per_second")] == [(3, 99.5)]
    assert {"grad_norm", "step", "result/mfu"}.isdisjoint(events.Tags()["scalars"])
    config = json.loads(text(events, "config"))
    assert (config["batch"]["micro"], config["world_size"], config["versions"]) == (2, 2, {"torch": "2.13.0"})
    assert json.loads(text(events, "deepspeed_config")) == {"zero_optimization": {"stage": 2}}
    # As code, so that nothing in it is rendered.
    assert all(line.startswith("    ") for line in text(events, "result").splitlines())
    assert json.loads(text(events, "result")) == {"state": "complete", "reason": "<b>why</b>"}
    values = hparams(events, "_hparams_/session_start_info").hparams
    assert values["batch.micro"].number_value == 2
    assert values["precision.dtype"].string_value == "bf16"
    assert values["zero.overlap_comm"].WhichOneof("kind") in ("bool_value", None)
    assert "data.path" not in values  # null
    assert hparams(events, "_hparams_/session_end_info").status == 1  # STATUS_SUCCESS


@pytest.mark.parametrize("state", ["oom", "killed", "interrupted"])
def test_a_run_that_failed_is_not_shown_as_finished(tmp_path: Path, state: str) -> None:
    record(tmp_path / "run", state=state)
    events = read(tmp_path / "run")
    assert hparams(events, "_hparams_/session_end_info").status == 2  # STATUS_FAILURE
    assert json.loads(text(events, "result"))["state"] == state


def test_the_machine_is_not_named(tmp_path: Path) -> None:
    record(tmp_path / "run")
    (file,) = (tmp_path / "run").iterdir()
    # A short host name may be part of any word; between the separators of the usual writer it would stand alone.
    assert socket.gethostname() not in file.name.split(".")


def test_rows_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    from glmexp.track.tensorboard import TensorboardTracker

    tracker = TensorboardTracker(print)
    tracker.start(RunInfo(tmp_path, compose(["tracker=tensorboard"]).config, {}))
    tracker.log({"step": 1, "loss": 2.0})
    assert [event.value for event in read(tmp_path).Scalars("loss")] == [2.0]


def hparams_tab(folder: Path, request: str, wanted: int, **asked: Any) -> Any:
    """What a running TensorBoard answers to its own HParams tab, once it has read ``wanted`` things."""
    from tensorboard import default, program

    server = program.TensorBoard(default.get_plugins())
    server.configure(argv=["tensorboard", f"--logdir={folder}", "--port=0", "--load_fast=false"])
    url = server.launch()
    body = json.dumps({"experimentName": "", **asked}).encode()
    call = urllib.request.Request(f"{url}data/plugin/hparams/{request}", body, {"Content-Type": "application/json"})
    until = time.monotonic() + 20
    while True:
        with contextlib.suppress(urllib.error.HTTPError):  # it has not read the files yet
            with urllib.request.urlopen(call, timeout=10) as answer:
                found = json.loads(answer.read())
            if len(found.get("hparamInfos") or found.get("sessionGroups") or ()) == wanted:
                return found
        assert time.monotonic() < until
        time.sleep(0.2)


def test_the_overview_of_a_sweep_is_what_the_hparams_tab_shows(tmp_path: Path) -> None:
    rows = []
    for name, zero, micro, state in (("a", "stage1", 1, "complete"), ("b", "stage2", 1, "complete"), ("c", "stage2", 2, "oom")):
        record(tmp_path / name, f"zero={zero}", f"batch.micro={micro}", state=state)
        (tmp_path / name / "config.yaml").write_text(f"zero: {{stage: {zero[-1]}}}\nbatch: {{micro: {micro}}}\n")
        rows.append(
            {"trial": name, "state": state, "zero": zero, "batch.micro": micro, "host_peak_gib": 1.5, "reason": "a | b"}
        )
    config = compose(["tracker=tensorboard"]).config
    sweep = SweepInfo(tmp_path, "grid", rows, {"complete": 2, "oom": 1}, ("zero", "batch.micro"))
    told: list[str] = []
    for _ in range(2):  # after a resume it takes the place of the first
        assert overview(config.tracker, {}, told.append, sweep) == str(tmp_path)
    assert told == []
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["events.out.tfevents.0.overview"]
    (table,) = [line for line in text(read(tmp_path), "trials").splitlines() if line.startswith("| c ")]
    assert table == "| c | oom | stage2 | 2 | 1.5 | a \\| b |"

    experiment = hparams_tab(tmp_path, "experiment", 2)
    assert sorted(info["name"] for info in experiment["hparamInfos"]) == ["batch.micro", "zero.stage"]
    assert [info["name"]["tag"] for info in experiment["metricInfos"]] == ["result/tokens_per_second", "result/host_peak_gib"]
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    columns = [{"hparam": "zero.stage"}, {"metric": {"group": "", "tag": "result/tokens_per_second"}}]
    asked = {"allowedStatuses": statuses, "colParams": columns, "startIndex": 0, "sliceSize": 10}
    groups = hparams_tab(tmp_path, "session_groups", 3, **asked)["sessionGroups"]
    shown = {
        group["sessions"][0]["name"]: (
            group["hparams"]["zero.stage"],
            group["sessions"][0]["status"],
            group["metricValues"][0]["value"],
        )
        for group in groups
    }
    assert shown == {
        "a": (1, "STATUS_SUCCESS", 99.5),
        "b": (2, "STATUS_SUCCESS", 99.5),
        "c": (2, "STATUS_FAILURE", 99.5),
    }


def test_settings_that_it_has_no_place_for_are_refused() -> None:
    with pytest.raises(UserError, match=r"tracker\.run_name has no effect with tracker=tensorboard; use tracker=wandb or"):
        compose(["tracker=tensorboard", "tracker.run_name=mine"])
    with pytest.raises(UserError, match=r"tracker\.workspace has no effect with tracker=swanlab; use tracker=wandb$"):
        compose(["tracker=swanlab", "tracker.workspace=true"])
    with pytest.raises(UserError, match=r"tracker\.mode has no effect with tracker=none; use tracker=wandb or tracker=swanlab"):
        compose(["tracker.mode=online"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["tracker=tensorboard"]).config
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'glmexp\[tensorboard\]'"):
        preflight(config.tracker, {})
