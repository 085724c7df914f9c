"""The worker as a process: by hand, several ranks, and every way to end."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_trials import MOVING, ROOT, RunCommand, RunTrial, Trial, sample_file, write_trial  # type: ignore[import-not-found]

from glmexp.data import Samples, batches
from glmexp.data.order import Order
from glmexp.trial.record import CONFIG, DS_CONFIG, METRICS, Phase, State, read_rank


def by_hand(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The worker started without a launcher."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    return subprocess.run(
        [sys.executable, "-m", "glmexp.train", str(folder)],
        env={**environment, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


@pytest.mark.slow
def test_by_hand_a_copied_folder_gives_the_same_losses(glmexp: RunCommand, tmp_path: Path) -> None:
    synthetic = ("model=tiny", "data=synthetic", "data.max_length=32", "precision=fp32", "train.max_steps=3")
    ran = glmexp(*synthetic, "launch.device=cpu", "train.save_weights=false")
    assert ran.code == 0, ran.err
    folder = tmp_path / "copied"
    folder.mkdir()
    for name in (CONFIG, DS_CONFIG):
        shutil.copy(ran.only(name), folder)
    done = by_hand(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert all(" INFO " in line for line in done.stderr.splitlines()), done.stderr
    record = read_rank(folder, 0)
    assert (record.outcome, record.phase) == (State.complete, Phase.done)
    assert record.metrics["steps"] == 3
    losses = [row["loss"] for row in Trial(folder, [0]).metrics]
    first = [json.loads(line)["loss"] for line in (ran.only("result.json").parent / METRICS).read_text().splitlines()]
    assert losses == pytest.approx(first, abs=1e-6)
    assert len(set(losses)) == 3


FAULT_ON_RANK_1 = """
import os
if os.environ.get("RANK") == "1":
    from glmexp.train.loop import Loop
    forward = Loop.forward
    def faulty(self, batch):
        if self.where.step == 2:
            raise ValueError("a shape is wrong")
        return forward(self, batch)
    Loop.forward = faulty
"""


def test_the_parent_ends_the_others_and_names_the_rank_that_failed(glmexp: RunCommand, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(FAULT_ON_RANK_1)
    began = time.monotonic()
    ran = glmexp(
        *("model=tiny", "data=synthetic", "data.max_length=32", "train.max_steps=4", "launch.ranks=2", "launch.device=cpu"),
        env={"PYTHONPATH": f"{planted}{os.pathsep}{ROOT}"},
    )
    assert time.monotonic() - began < 60
    assert ran.code == 1, ran.out + ran.err
    result = ran.json("result.json")
    assert result["state"] == "failed"
    assert "rank 1" in result["reason"]
    assert "ValueError: a shape is wrong" in result["reason"]
    assert "step 2" in result["reason"]
    assert len(ran.rows()) == 1


def test_two_ranks_say_each_thing_once(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *MOVING, "batch.micro=2", "batch.accumulation=2", "train.max_steps=2", ranks=2).ok()
    for line in (
        "batch: micro 2 x accumulation 2 x ranks 2 = 8 samples",
        "data: 24 samples read",
        "rank 1: CPU",
        "optimizer: AdamW",
    ):
        assert trial.log.count(line) == 1, trial.log
    assert trial.record(0).metrics["host_peak_gib"] > 0
    assert trial.record(1).metrics == {}


def test_the_figures_of_a_run(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *MOVING, "batch.micro=4", "batch.total=8").ok()
    metrics = trial.record().metrics
    assert set(metrics) == {
        "tokens_per_second", "padded_tokens_per_second", "samples_per_second", "step_seconds", "step_seconds_spread",
        "data_seconds", "forward_seconds", "backward_seconds", "update_seconds", "mfu", "tflops_per_second",
        "peak_tflops_per_second", "peak_allocated_gib", "peak_reserved_gib", "host_peak_gib", "loss_first", "loss_last",
        "skipped_steps", "steps",
    }  # fmt: skip
    assert metrics["loss_first"] == trial.losses[0]
    assert metrics["loss_last"] == trial.losses[-1]
    assert (metrics["steps"], metrics["skipped_steps"], metrics["mfu"], metrics["peak_allocated_gib"]) == (8, 0, None, None)
    assert metrics["samples_per_second"] == pytest.approx(8 / metrics["step_seconds"])
    for number, line in enumerate(trial.metrics, start=1):
        assert line["step"] == number
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["step_seconds"])
        assert (line["loss_scale"], line["skipped"], line["peak_allocated_gib"]) == (1.0, False, None)
        spent = [line[f"{name}_seconds"] for name in ("data", "forward", "backward", "update")]
        assert min(spent) > 0
        assert sum(spent) == pytest.approx(line["step_seconds"], rel=0.05, abs=2e-3)
        assert line["padded_tokens_per_second"] == pytest.approx(line["padded_tokens"] / line["step_seconds"])
        assert (line["mfu"], metrics["peak_tflops_per_second"]) == (None, None)  # nobody knows what a CPU can compute at most
    assert metrics["update_seconds"] == statistics.median(line["update_seconds"] for line in trial.metrics[3:])
    samples = Samples.open(trial.folder)
    order = batches(samples, Order(len(samples), 42), micro=8, accumulation=1, rank=0, world=1, pad_id=0, steps=8)
    assert [line["tokens"] for line in trial.metrics] == [batch.tokens for (batch,) in order]
    halves = batches(samples, Order(len(samples), 42), micro=4, accumulation=2, rank=0, world=1, pad_id=0, steps=8)
    padded = [sum(batch.input_ids.numel() for batch in step) for step in halves]
    assert [line["padded_tokens"] for line in trial.metrics] == padded
    assert padded != [line["tokens"] for line in trial.metrics]


def test_steps_follow_from_the_epochs(run_trial: RunTrial) -> None:
    overrides = [*MOVING, "train.max_steps=null", "train.epochs=1.5", "batch.total=8", "scheduler=linear"]
    trial = run_trial("trial", *overrides, "scheduler.warmup_steps=2", "scheduler.min_lr_ratio=0.1").ok()
    assert len(trial.metrics) == 5  # 24 samples x 1.5 / 8, rounded up
    assert [line["lr"] for line in trial.metrics] == pytest.approx([5e-4, 1e-3, 7e-4, 4e-4, 1e-4])


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        (
            "gpu_memory:2:1",
            State.oom,
            [
                "training, step 2, forward pass",
                "batch.micro=2",
                "tokens a sample",
                "try zero=stage3, offload=cpu, batch.micro=1",
            ],
        ),
        ("host_memory:2:1", State.oom_host, ["training, step 2", "launch.ranks"]),
        ("bug:2:1", State.failed, ["ValueError: a shape is wrong", "step 2"]),
    ],
)
def test_one_rank_that_fails_ends_the_run(run_trial: RunTrial, fault: str, state: State, words: list[str]) -> None:
    trial = run_trial("trial", *MOVING, "batch.micro=2", ranks=2, extra={"TEST_FAULT": fault})
    assert trial.codes == [1, 1]
    record = trial.record(1)
    assert record.outcome is state
    for word in words:
        assert word in record.error, record.error
    assert len(record.error.splitlines()) <= 6
    assert "Traceback" in trial.log
    assert trial.record(0).outcome is State.failed  # its connection is gone


def test_bad_data_is_told_by_the_rank_that_reads_it(run_trial: RunTrial, tmp_path: Path) -> None:
    path = sample_file(tmp_path / "bad.jsonl")
    path.write_text('{"content": "坏", "summary": }\n' + path.read_text())
    trial = run_trial("trial", *MOVING, f"data.path={path}", ranks=2)
    assert trial.codes == [1, 1]
    assert trial.record(0).outcome is State.invalid
    assert "bad.jsonl:1" in trial.record(0).error
    assert trial.record(1).outcome is None  # it has nothing to tell
    assert "Traceback" not in trial.log


def test_tokenising_may_take_longer_than_a_collective(run_trial: RunTrial) -> None:
    overrides = [*MOVING, "batch.micro=2", "train.max_steps=1", "launch.collective_timeout_minutes=0.1"]
    trial = run_trial("trial", *overrides, ranks=2, extra={"TEST_FAULT": "slow:7"}).ok()
    assert trial.log.count("data: ") == 1


def test_another_number_of_ranks_than_the_folder_was_written_for(tmp_path: Path) -> None:
    folder = write_trial(tmp_path / "trial", [*MOVING, "batch.total=8", "batch.micro=2", "launch.device=cpu"], ranks=2)
    assert by_hand(folder).returncode == 1
    record = read_rank(folder, 0)
    assert record.outcome is State.invalid
    assert "2 ranks" in record.error


def test_synthetic_data_needs_no_tokenizer(run_trial: RunTrial) -> None:
    overrides = [*MOVING, "data.source=synthetic", "data.max_length=32", "train.max_steps=2", "train.save_weights=true"]
    trial = run_trial("trial", *overrides, "batch.micro=4").ok()
    assert [line["tokens"] for line in trial.metrics] == [128, 128]
    assert (trial.folder / "export" / "model.safetensors").is_file()


def test_an_original_folder_trains_at_stage3_on_two_ranks(run_trial: RunTrial, tmp_path: Path) -> None:
    golden = ROOT / "tests" / "golden" / "chatglm2"
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((golden / name).read_bytes())
    overrides = ["model=auto", f"model.path={folder}", "data.source=synthetic", "data.max_length=16", "precision=fp32"]
    more = [
        "zero=stage3",
        "zero.stage3_param_persistence_threshold=0",
        "train.max_steps=2",
        "batch.micro=2",
        "optimizer.lr=1e-3",
    ]
    apart = run_trial("apart", *overrides, *more, "batch.total=4", ranks=2).ok()
    whole = run_trial("whole", *overrides, "train.max_steps=2", "batch.micro=4", "optimizer.lr=1e-3", "zero=stage0").ok()
    assert apart.losses == pytest.approx(whole.losses, abs=5e-4)
    assert apart.losses[0] != apart.losses[1]
