"""``measure`` in real processes: which steps count, which samples are read, and that nothing is left."""

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from worker_trials import RunCommand, RunTrial, Trial, sample_file  # type: ignore[import-not-found]

from glmexp.config import compose
from glmexp.data import Samples
from glmexp.train import loop
from glmexp.train.metrics import figures
from glmexp.trial.record import Phase, State

MEASURE = ["task=measure", "model=tiny", "precision=fp32", "data.max_length=40", "measure.warmup_steps=2", "measure.steps=3"]


def agree(trial: Trial) -> dict[str, Any]:
    """The figures of a trial that measured steps 3 to 5, which must be those of its lines."""
    rows, metrics = trial.metrics, trial.record().metrics
    assert [row["step"] for row in rows] == [3, 4, 5]
    seconds = [row["step_seconds"] for row in rows]
    assert metrics["step_seconds"] == statistics.median(seconds)
    assert metrics["step_seconds_spread"] == max(seconds) - min(seconds) > 0
    assert metrics["tokens_per_second"] == statistics.median(row["tokens_per_second"] for row in rows)
    assert (metrics["steps"], metrics["loss_first"], metrics["loss_last"]) == (3, rows[0]["loss"], rows[-1]["loss"])
    assert trial.log.count("warm-up: steps of ") == 1
    assert not (trial.folder / "export").exists()
    assert not list(trial.folder.rglob("*.safetensors")) + list(trial.folder.rglob("*.pt"))
    return metrics  # type: ignore[no-any-return]


def test_random_tokens_on_one_rank(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *MEASURE, "batch.micro=2", "data.path=/nowhere/at/all.jsonl").ok()
    metrics = agree(trial)
    assert metrics["samples_per_second"] == pytest.approx(2 / metrics["step_seconds"])
    assert {row["tokens"] for row in trial.metrics} == {80}
    samples = Samples.open(trial.folder)
    assert [len(samples.sample(index)[0]) for index in range(len(samples))] == [40] * 6  # what three steps read
    record = trial.record()
    assert (record.phase, record.done, record.total) == (Phase.done, 5, 5)


def test_random_tokens_on_two_ranks(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *MEASURE, "batch.micro=1", "batch.accumulation=2", "zero=stage3", ranks=2).ok()
    agree(trial)
    assert {row["tokens"] for row in trial.metrics} == {160}
    assert trial.record(1).metrics == {}


def test_the_longest_samples_come_first_in_warm_up_and_measurement(run_trial: RunTrial, tmp_path: Path) -> None:
    path = sample_file(tmp_path / "some.jsonl", count=10)
    order = [*MEASURE, "measure.samples=longest", f"data.path={path}", "data.max_length=512", "measure.steps=3"]
    trial = run_trial("trial", *order, "batch.total=4", "batch.micro=2", ranks=2).ok()
    agree(trial)
    samples = Samples.open(trial.folder)
    lengths = [len(samples.sample(index)[0]) for index in range(len(samples))]
    assert len(lengths) == 10  # three steps read 12: the two longest twice
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    read = lengths + lengths[:2]
    assert [row["tokens"] for row in trial.metrics] == [sum(read[:4]), sum(read[4:8]), sum(read[8:])]
    whole = run_trial("whole", "model=tiny", f"data.path={path}", "data.max_length=512", "train.max_steps=1").ok()
    trained = Samples.open(whole.folder)
    assert sorted(lengths) == sorted(len(trained.sample(index)[0]) for index in range(len(trained)))


@pytest.mark.parametrize(("step", "rows"), [(1, 0), (4, 1)])
def test_running_out_of_memory_is_told_with_its_step(run_trial: RunTrial, step: int, rows: int) -> None:
    trial = run_trial("trial", *MEASURE, extra={"TEST_FAULT": f"gpu_memory:{step}"})
    assert trial.codes == [1]
    assert trial.record().outcome is State.oom
    assert f"training, step {step}" in trial.record().error
    assert len(trial.metrics) == rows


@pytest.mark.parametrize("choices", [["method=lora"], ["method=ptuning_v2"], ["zero=stage3"]])
def test_a_released_model_is_measured_by_its_name_alone(run_trial: RunTrial, choices: list[str]) -> None:
    overrides = [item for item in MEASURE if item != "model=tiny"]
    trial = run_trial("trial", *overrides, "model=chatglm2_6b", *choices, extra={"TEST_FAULT": "small_release:0"}).ok()
    agree(trial)


def test_the_verb_shows_what_it_measures(glmexp: RunCommand) -> None:
    ran = glmexp(
        *("measure", "launch.device=cpu", "measure.warmup_steps=1", "measure.steps=2", "data.max_length=32"),
        *("train.max_steps=9", "data.path=absent.jsonl"),
    )
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.startswith("measure: tiny, full, in ")
    assert "1 warm-up and 2 measured steps on random tokens, 32 a sample; random weights\n" in ran.out
    assert "step 3/3" in ran.out
    assert "steps    2, after a warm-up of 1\n" in ran.out
    assert "s a step (medians), spread " in ran.out
    assert "warning: train.max_steps has no effect" in ran.err
    assert "warning: data.path has no effect" in ran.err
    result = ran.json("result.json")
    assert (result["state"], result["metrics"]["steps"]) == ("complete", 2)
    assert result["metrics"]["step_seconds_spread"] > 0
    assert [row["step"] for row in ran.rows()] == [2, 3]
    assert not list(ran.folder.rglob("export"))


def test_the_peak_begins_anew_between_warm_up_and_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: events.append(f"reset {device}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("synchronize"))
    monkeypatch.setattr(loop.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(loop.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(loop, "StepClock", lambda device: SimpleNamespace(enter=lambda activity: None))
    for name, does in {
        "count": lambda self, parts: events.append(f"step {self.where.step}") or loop.Content(1, 1, 1, None),
        "accumulate": lambda self, parts, targets: 1.0,
        "update": lambda self, step, scale: (1.0, False),
        "slowest_and_fullest": lambda self, seconds: (dict.fromkeys(loop.Activity, 0.0), 1.0, 2.0),
        "enter": lambda self, activity: None,
        "record": lambda self, line, metrics: self.lines.append(line),
    }.items():
        monkeypatch.setattr(loop.Loop, name, does)
    for warmup_steps, wanted in ((2, ["step 1", "step 2", "reset cuda", "step 3"]), (0, ["reset cuda", "step 1"])):
        events.clear()
        config = compose(["task=measure", f"measure.warmup_steps={warmup_steps}"]).config
        engine = SimpleNamespace(
            train=lambda: None,
            get_lr=lambda: [0.0],
            fp16_enabled=lambda: False,
            device=torch.device("cuda"),
            module=torch.nn.Linear(1, 1),
        )
        lines = loop.Loop(engine, config, len(wanted) - 1, None, SimpleNamespace(step=0), None).run(iter([[]] * 9), None)
        assert [event for event in events if event != "synchronize"] == wanted
        assert events[events.index("reset cuda") - 1] == "synchronize"
        assert [line.step for line in lines] == [len(wanted) - 1]


def test_a_cpu_has_no_peak_to_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: pytest.fail("asked of a CPU"))
    figures.reset_peak(torch.device("cpu"))
