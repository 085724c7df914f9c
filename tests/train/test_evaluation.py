"""Evaluation gives what plain PyTorch gives, whatever the stage, the ranks and the batches, and leaves training alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM
from worker_trials import MOVING, RunTrial, Trial, sample_file, start, write_trial  # type: ignore[import-not-found]

from glmexp.config import load, save
from glmexp.config.choices import Metric
from glmexp.data import Samples
from glmexp.models import load_tokenizer
from glmexp.train.evaluation.evaluator import Evaluation, EvaluationsFile, write_predictions
from glmexp.train.evaluation.scores import NAMES, score
from glmexp.train.evaluation.validation import Best
from glmexp.trial import saved
from glmexp.trial.record import CONFIG, EVALUATIONS, PREDICTIONS

SHORT = [*MOVING, "optimizer.eps=1e-4", "train.max_steps=2", "batch.total=8", "batch.micro=2"]
"""Adam's default eps divides gradients that are all rounding by themselves."""
ANSWERS = ["eval.generate=true", "eval.max_new_tokens=6"]
APART = ["zero=stage3", "zero.stage3_param_persistence_threshold=0"]


def evaluations(trial: Trial) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (trial.folder / EVALUATIONS).read_text().splitlines()]


def predictions(trial: Trial) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (trial.folder / PREDICTIONS).read_text().splitlines()]


def test_answers_that_cannot_be_written_end_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / PREDICTIONS / "in the way").mkdir(parents=True)
    answer = {"question": "q", "reference": "r", "prediction": "p", "scores": {"rouge-l": 1.0}}
    write_predictions([answer], tmp_path / PREDICTIONS)
    assert "Is a directory; the answers are not kept" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [PREDICTIONS]


@pytest.fixture
def dev(tmp_path: Path) -> str:
    """Five samples of different lengths, which neither two ranks nor their batches divide."""
    return f"data.eval_path={sample_file(tmp_path / 'dev.jsonl', 5)}"


@pytest.fixture(scope="module")
def alone(preloaded: Any, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """One rank at stage 2, in fp32, evaluated after each of two steps; its weights are exported."""
    folder = tmp_path_factory.mktemp("alone")
    dev = f"data.eval_path={sample_file(folder / 'dev.jsonl', 5)}"
    overrides = [*SHORT, *ANSWERS, dev, "eval.every=1", "train.save_weights=true"]
    return start(preloaded, write_trial(folder / "trial", overrides)).ok()


def test_loss_and_answers_are_those_of_plain_pytorch(alone: Trial) -> None:
    model = AutoModelForCausalLM.from_pretrained(alone.folder / "export", dtype=torch.float32)
    tokenizer = load_tokenizer(alone.folder / "export")
    samples = Samples.open(alone.folder, "validation")
    assert samples is not None
    total, count = 0.0, 0
    for index, told in enumerate(predictions(alone)):
        ids, labels = (torch.tensor(row)[None].long() for row in samples.sample(index))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        total += float(cross_entropy(logits, labels[0, 1:], reduction="sum"))
        count += int((labels[0, 1:] != -100).sum())
        question = samples.question(index)
        answer: list[int] = []
        while len(answer) < 6 and (not answer or answer[-1] != tokenizer.eos_token_id):
            with torch.no_grad():
                whole = model(input_ids=torch.tensor([[*question.ids, *answer]]), use_cache=False).logits
            answer.append(int(whole[0, -1].argmax()))
        text = tokenizer.decode(answer, skip_special_tokens=True).strip()
        assert (told["question"], told["reference"], told["prediction"]) == (question.question, question.reference, text)
        assert {name: told[name] for name in NAMES} == score(Metric.chatglm2_char, text, question.reference)
    first, last = evaluations(alone)
    assert (first["step"], last["step"], last["samples"]) == (1, 2, 5)
    assert last["loss"] == pytest.approx(total / count, rel=1e-5)
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    assert first["loss"] - last["loss"] > 0.005
    for name in NAMES:
        assert last[name] == pytest.approx(sum(row[name] for row in predictions(alone)) / 5)
    metrics = alone.record().metrics
    assert metrics["eval_loss"] == last["loss"]
    assert metrics["eval_rouge-l"] == last["rouge-l"]


EVERYWHERE = [
    (1, ["zero=stage0", "eval.micro=5", *ANSWERS]),
    (2, [*APART, "eval.micro=1", *ANSWERS]),
]
EVERYWHERE_TOO = [
    (2, ["zero=stage2", "eval.micro=3", *ANSWERS]),
    (2, ["zero=stage1", "eval.micro=4", *ANSWERS]),
    (1, [*APART, "offload=cpu_all", *ANSWERS]),
    (2, [*APART, "comm=ulysses"]),
    (1, ["data.packing=true", "batch.total=2", "data.max_length=72"]),
]


def check_everywhere(run_trial: RunTrial, alone: Trial, dev: str, ranks: int, overrides: list[str]) -> Trial:
    trial = run_trial("trial", *SHORT, dev, "eval.every=1", *overrides, ranks=ranks).ok()
    packed = "data.packing=true" in overrides
    for row, expected in zip(evaluations(trial), evaluations(alone), strict=True):
        if not packed:  # which trains on other batches
            assert row["loss"] == pytest.approx(expected["loss"], abs=5e-4)
        assert (row["step"], row["samples"]) == (expected["step"], expected["samples"])
    if set(ANSWERS) <= set(overrides):
        assert [row["prediction"] for row in predictions(trial)] == [row["prediction"] for row in predictions(alone)]
    return trial


@pytest.mark.parametrize(("ranks", "overrides"), EVERYWHERE, ids=str)
def test_every_stage_and_number_of_ranks_agrees(
    run_trial: RunTrial, alone: Trial, dev: str, ranks: int, overrides: list[str]
) -> None:
    check_everywhere(run_trial, alone, dev, ranks, overrides)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "overrides"), EVERYWHERE_TOO, ids=str)
def test_so_do_offload_sequence_parallelism_and_packing(
    run_trial: RunTrial, alone: Trial, dev: str, ranks: int, overrides: list[str]
) -> None:
    check_everywhere(run_trial, alone, dev, ranks, overrides)


@pytest.mark.parametrize("method", ["lora", pytest.param("ptuning_v2", marks=pytest.mark.slow)])
def test_training_goes_on_as_if_nothing_had_been_evaluated(run_trial: RunTrial, dev: str, method: str) -> None:
    overrides = [*SHORT, *APART, f"method={method}", "method.dropout=0.3", "optimizer.lr=1e-2", "train.max_steps=3"]
    evaluated = run_trial("evaluated", *overrides, dev, "eval.every=1", *ANSWERS, "eval.temperature=0.9", ranks=2).ok()
    plain = run_trial("plain", *overrides, ranks=2).ok()
    assert evaluated.losses == plain.losses
    assert evaluated.norms == plain.norms
    assert len(set(evaluated.losses)) == 3
    assert len(evaluations(evaluated)) == 3


@pytest.mark.slow
def test_answers_are_drawn_alike_on_any_number_of_ranks(run_trial: RunTrial, dev: str) -> None:
    drawn = [*SHORT, dev, *ANSWERS, "train.max_steps=1", "eval.temperature=1.5", "eval.top_p=0.9", "eval.seed=3"]
    one = run_trial("one", *drawn, "eval.micro=5").ok()
    two = run_trial("two", *drawn, *APART, "eval.micro=2", ranks=2).ok()
    answers = [row["prediction"] for row in predictions(one)]
    assert answers == [row["prediction"] for row in predictions(two)]
    other = run_trial("other", *drawn[:-1], "eval.seed=4", "eval.micro=5").ok()
    assert answers != [row["prediction"] for row in predictions(other)]


def test_the_best_is_kept_and_exported_and_patience_ends_the_run(run_trial: RunTrial, dev: str) -> None:
    overrides = [*SHORT, dev, "eval.every=1", "checkpoint.best=loss", "eval.patience=2", "train.save_weights=true"]
    # At such a learning rate nothing moves, so that the first evaluation stays the best.
    trial = run_trial("trial", *overrides, "optimizer.lr=1e-30", "train.max_steps=8", "zero=stage1").ok()
    assert [row["step"] for row in evaluations(trial)] == [1, 2, 3]
    assert len(trial.metrics) == 3
    reason = trial.record().early
    assert reason is not None
    assert "loss was not bettered in 2 evaluations (eval.patience)" in reason
    best = saved.best(trial.folder)
    assert best is not None
    assert (best["tag"], best["score"], best["step"]) == ("step-000001", "loss", 1)
    assert best["value"] == evaluations(trial)[0]["loss"]
    assert any("export/ holds the weights after step 1, the best by loss" in note for note in trial.record().notes)


@pytest.mark.slow
def test_the_best_weights_are_those_of_their_step(run_trial: RunTrial, dev: str) -> None:
    """A learning rate that spoils the model: the first step is the best, and what is exported evaluates as it did then."""
    overrides = [*SHORT, dev, "eval.every=1", "checkpoint.best=loss", "train.save_weights=true", "train.max_steps=3"]
    trial = run_trial("trial", *overrides, *APART, "optimizer.lr=0.3", "scheduler=constant", "train.grad_clip=0", ranks=2).ok()
    rows = evaluations(trial)
    best = min(rows, key=lambda row: row["loss"])
    assert best["step"] < 3
    model = AutoModelForCausalLM.from_pretrained(trial.folder / "export", dtype=torch.float32)
    samples = Samples.open(trial.folder, "validation")
    assert samples is not None
    total, count = 0.0, 0
    for index in range(len(samples)):
        ids, labels = (torch.tensor(row)[None].long() for row in samples.sample(index))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        total += float(cross_entropy(logits, labels[0, 1:], reduction="sum"))
        count += int((labels[0, 1:] != -100).sum())
    assert total / count == pytest.approx(best["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_run_that_goes_on_knows_its_best_and_repeats_no_evaluation(preloaded: Any, tmp_path: Path, dev: str) -> None:
    overrides = [*SHORT, dev, "eval.every=1", "checkpoint.best=loss", "train.max_steps=4", "train.resume=auto"]
    whole = start(preloaded, write_trial(tmp_path / "whole", [*overrides, "checkpoint.every=2"])).ok()
    folder = write_trial(tmp_path / "parts", [*overrides, "checkpoint.every=2", "train.stop_after=2"])
    first = start(preloaded, folder).ok()
    assert [row["step"] for row in evaluations(first)] == [1, 2]
    with (folder / EVALUATIONS).open("a") as handle:  # of a step whose checkpoint was never saved
        handle.write(json.dumps({**evaluations(first)[-1], "step": 3, "loss": 0.0}) + "\n" + '{"step": 4, "lo')
    config = load(folder / CONFIG)
    config.train.stop_after = None
    save(config, folder / CONFIG)
    second = start(preloaded, folder).ok()
    shown = [{**row, "seconds": None} for row in evaluations(second)]
    assert shown == [{**row, "seconds": None} for row in evaluations(whole)]
    assert saved.best(folder) == saved.best(whole.folder)


def test_the_best_is_the_lowest_loss_or_the_highest_score() -> None:
    loss, rouge = Best("loss"), Best("rouge-l")
    assert [loss.take(step, value) for step, value in enumerate([3.0, 2.0, 2.0, None, math.nan, 1.0])] == [
        *(True, True, False, False, False, True)
    ]
    assert [rouge.take(step, value) for step, value in enumerate([0.0, 5.0, 5.0, 4.0])] == [True, True, False, False]
    assert (rouge.step, rouge.value, rouge.waited) == (1, 5.0, 2)


def test_a_loss_beyond_all_bounds_is_null(tmp_path: Path) -> None:
    assert Evaluation(1, 800.0, {}, 3, 0.5).perplexity == math.inf
    file = EvaluationsFile(tmp_path, rank=0)
    file.append(Evaluation(1, math.nan, {}, 3, 0.5))
    (row,) = [json.loads(line) for line in (tmp_path / EVALUATIONS).read_text().splitlines()]
    assert row == {"step": 1, "loss": None, "perplexity": None, **dict.fromkeys(NAMES), "samples": 3, "seconds": 0.5}
    EvaluationsFile(tmp_path / "nothing", rank=1).append(Evaluation(1, 1.0, {}, 3, 0.5))
    assert not (tmp_path / "nothing").exists()
