"""The table at the end of a run."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glmexp.config import Config, compose
from glmexp.trial.closing import closing, next_move
from glmexp.trial.record import State

METRICS = {
    "tokens_per_second": 12345.6,
    "step_seconds": 0.5234,
    "peak_allocated_gib": 12.34,
    "host_peak_gib": 4.06,
    "loss_first": 6.0,
    "loss_last": 3.0,
    "skipped_steps": 2,
    "steps": 60,
    "mfu": None,
}


def config(*overrides: str) -> Config:
    return compose([*overrides]).config


def table(folder: Path, state: str = "complete", metrics: dict[str, Any] | None = None, **more: Any) -> dict[str, str]:
    """The printed table as name -> value, on a console too narrow for it."""
    file = StringIO()
    result = {"state": state, "reason": more.pop("reason", None), "metrics": metrics or {}, "world_size": 1}
    Console(file=file, width=30).print(closing(result, folder, **more), soft_wrap=True)
    return {line[:9].strip() or "…": line[9:] for line in file.getvalue().splitlines()}


def test_a_complete_run(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    assert table(tmp_path, metrics=METRICS, tracked="https://example.org/run") == {
        "state": "complete",
        "steps": "60 (2 skipped)",
        "loss": "6.0000 -> 3.0000 (-50 %)",
        "speed": "12,346 tokens/s, 0.523 s a step (medians)",
        "memory": "GPU 12.3 GiB peak, host 4.1 GiB",
        "weights": str(tmp_path / "export"),
        "folder": str(tmp_path),
        "tracked": "https://example.org/run",
    }


def test_a_measurement_has_more_of_speed_and_memory_and_no_loss(tmp_path: Path) -> None:
    metrics = {**METRICS, "step_seconds_spread": 0.0212, "peak_reserved_gib": 14.0, "skipped_steps": 0, "steps": 10}
    assert table(tmp_path, metrics=metrics, config=config("task=measure")) == {
        "state": "complete",
        "steps": "10, after a warm-up of 3",
        "speed": "12,346 tokens/s, 0.523 s a step (medians), spread 0.021 s",
        "memory": "GPU 12.34 GiB peak, 14.00 GiB reserved, host 4.1 GiB",
        "folder": str(tmp_path),
    }
    assert "fewer measure.steps" in (next_move(State.timeout, tmp_path, config("task=measure")) or "")


def test_what_was_not_measured_has_no_row(tmp_path: Path) -> None:
    nothing = dict.fromkeys(METRICS)
    assert list(table(tmp_path, metrics=nothing)) == ["state", "folder"]
    assert table(tmp_path, metrics={**nothing, "host_peak_gib": 1.0})["memory"] == "host 1.0 GiB"
    assert table(tmp_path, metrics={**nothing, "loss_last": 2.0})["loss"] == "2.0000"
    assert table(tmp_path, metrics={**nothing, "loss_first": 0.0, "loss_last": 2.0})["loss"] == "0.0000 -> 2.0000"
    assert table(tmp_path, metrics={**nothing, "loss_first": 0.2, "loss_last": 2.0})["loss"] == "0.2000 -> 2.0000 (+900 %)"
    assert table(tmp_path, metrics={**nothing, "loss_first": 1e-4, "loss_last": 2.0})["loss"] == "0.0001 -> 2.0000"
    assert table(tmp_path, metrics={**nothing, "steps": 3, "skipped_steps": 0})["steps"] == "3"


def test_where_the_time_went_and_what_was_of_use(tmp_path: Path) -> None:
    spent = {"data_seconds": 0.01, "forward_seconds": 0.3, "backward_seconds": 0.6, "update_seconds": 0.09}
    metrics = {**METRICS, **spent, "mfu": 0.4034, "padded_tokens_per_second": 15432.0}
    shown = table(tmp_path, metrics=metrics)
    assert shown["speed"] == "12,346 tokens/s, 0.523 s a step (medians), MFU 40.3 %"
    assert shown["time"] == "data 1 %, forward 30 %, backward 60 %, update 9 %; 20 % of the tokens computed are padding"
    full = table(tmp_path, metrics={**metrics, "padded_tokens_per_second": 12345.6}, config=config("task=measure"))
    assert full["time"] == "data 1 %, forward 30 %, backward 60 %, update 9 %"
    assert full["speed"].endswith("MFU 40.3 %")


def test_a_reason_is_shown_as_it_is(tmp_path: Path) -> None:
    shown = table(tmp_path, state="failed", reason="ValueError: [red]x[/red]\x1b[31m\nsecond line")
    assert shown["reason"] == "ValueError: [red]x[/red]\ufffd[31m"
    assert shown["…"] == "second line"
    assert shown["next"] == f"read the end of {tmp_path / 'train.log'}"


@pytest.mark.parametrize("advice", ["try batch.micro=1", "ways out: a lower optimizer.lr"])
def test_advice_in_the_reason_is_not_given_twice(tmp_path: Path, advice: str) -> None:
    assert "next" not in table(tmp_path, state="oom", reason=f"step 3: out of memory\n{advice}")
    assert "next" in table(tmp_path, state="oom", reason="step 3: out of memory")


@pytest.mark.parametrize("state", list(State))
def test_every_state_that_is_a_failure_has_a_next_move(tmp_path: Path, state: State) -> None:
    wanted = state not in (State.complete, State.skipped, State.interrupted)
    assert bool(next_move(state, tmp_path)) is wanted
    assert bool(next_move(state, tmp_path, config())) is wanted


def test_advice_after_divergence_depends_on_the_precision(tmp_path: Path) -> None:
    half, full = config("precision=fp16", "zero=stage1"), config("precision=fp32")
    assert "precision=bf16" in str(next_move(State.diverged, tmp_path, half))
    assert "precision" not in str(next_move(State.diverged, tmp_path, full))
    assert f"{full.optimizer.lr:g}" in str(next_move(State.diverged, tmp_path, full))


@pytest.mark.parametrize(
    ("state", "overrides", "words"),
    [
        ("interrupted", ["checkpoint.every=2"], "the same command with train.resume=auto goes on from step 4"),
        ("killed", ["checkpoint.every=2", "train.resume=auto"], "the same command goes on from step 4"),
        (
            "timeout",
            ["train.resume=elsewhere"],
            "the same command with train.resume={folder} goes on from step 4, in a new run",
        ),
        ("oom", ["checkpoint.every=2"], "with train.resume={folder} the new run begins from step 4"),
        (
            "complete",
            ["train.stop_after=4", "train.resume=auto"],
            "the same command without train.stop_after goes on from step 4",
        ),
    ],
)
def test_how_a_run_goes_on_from_its_checkpoint(tmp_path: Path, state: str, overrides: list[str], words: str) -> None:
    save_checkpoints(tmp_path, 2, 4)
    lines = closing({"state": state, "metrics": {"steps": 4}}, tmp_path, config(*overrides)).plain.splitlines()
    assert lines[-1].removeprefix("next").strip() == words.format(folder=tmp_path)
    assert any(line.startswith("saved") and line.endswith("step-000004 and 1 older") for line in lines)


def test_a_run_with_all_its_steps_does_not_go_on(tmp_path: Path) -> None:
    save_checkpoints(tmp_path, 4)
    assert "next" not in closing({"state": "complete", "metrics": {}}, tmp_path, config("checkpoint.every=2")).plain


def save_checkpoints(run: Path, *steps: int) -> None:
    for step in steps:
        checkpoint = run / "checkpoints" / f"step-{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(json.dumps({"step": step, "files": {}}))
