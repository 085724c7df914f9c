"""``evaluations.jsonl`` on the parent's side, and what ``evaluate`` makes of a run's config."""

import json

import pytest

from glmexp.config import compose
from glmexp.config.choices import Metric, TrackerName
from glmexp.config.errors import UserError
from glmexp.dsconfig import Machine
from glmexp.dsconfig.inference import inference
from glmexp.trial import evaluate
from glmexp.trial.evaluations import EvaluationsTail, described, in_step, metrics
from glmexp.trial.progress import describe
from glmexp.trial.record import EVALUATIONS, State
from glmexp.trial.result import METRIC_NAMES


def row(step, **figures):
    return {"step": step, "loss": 2.0, "perplexity": 7.389, **figures, "samples": 3, "seconds": 1.0}


def append(folder, *rows):
    with (folder / EVALUATIONS).open("a") as handle:
        handle.writelines(json.dumps(item) + "\n" for item in rows)


def test_an_evaluation_waits_for_its_own_step(tmp_path):
    tail = EvaluationsTail(tmp_path)
    assert tail.up_to(5) == []
    append(tmp_path, row(2), row(4))
    assert tail.up_to(3) == [row(2)]
    assert tail.up_to(3) == []
    append(tmp_path, row(6))
    assert tail.up_to(6) == [row(4), row(6)]
    assert [item["step"] for item in tail.rows] == [2, 4, 6]


def test_trackers_get_an_evaluation_after_its_step_and_before_the_next():
    steps = [{"step": step, "loss": float(step)} for step in (1, 2, 3)]
    sent = list(in_step(steps, [row(2, **{"rouge-l": 10.0})]))
    assert [item["step"] for item in sent] == [1, 2, 2, 3]
    assert sent[2]["eval/loss"] == 2.0
    assert sent[2]["eval/rouge-l"] == 10.0
    assert "loss" not in sent[2]


def test_figures_that_are_not_there_are_not_shown():
    assert described(row(20, **{"rouge-1": None})) == "step 20: validation loss 2.0000, perplexity 7.389"
    assert metrics([row(1), row(2, **{"bleu-4": 3.5})])["eval_bleu-4"] == 3.5
    assert set(metrics([row(1)])) <= set(METRIC_NAMES)
    assert metrics([]) == {}


def test_the_progress_line_tells_of_an_evaluation():
    assert describe({"eval_loss": 2.5, "evaluating": 50}, None) == "validation loss 2.5000  evaluating 50 %"


def evaluated(overrides, given):
    return evaluate.evaluated(compose(overrides).config, given)


def test_an_evaluation_has_the_config_of_its_run_but_for_what_is_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    trained = [
        *("data.eval_share=0.1", "eval.every=5", "checkpoint.best=loss", "eval.patience=2", "checkpoint.every=5"),
        *("tracker=tensorboard", "comm=ulysses", "zero=stage3", "kernels.attention=sdpa"),
    ]
    config = evaluated(trained, {"data.eval_path": "dev.jsonl", "eval.metrics": "chatglm3_jieba", "launch.ranks": "2"})
    assert (config.data.eval_path, config.data.eval_share) == (str(tmp_path / "dev.jsonl"), None)
    assert (config.eval.metrics, config.eval.generate, config.eval.every) == (Metric.chatglm3_jieba, True, None)
    assert (config.launch.ranks, config.zero.stage, config.comm.sequence_parallel_size) == (2, 3, None)
    assert config.tracker.name is TrackerName.none
    assert evaluated(["data.eval_share=0.1"], {}).data.eval_share == 0.1
    assert not evaluated(["data.eval_share=0.1", "eval.generate=true"], {"eval.generate": "false"}).eval.generate


def test_groups_can_be_changed(tmp_path):
    config = evaluated(["data.eval_share=0.1", "zero=stage2"], {"zero": "stage3", "offload": "cpu_all"})
    assert (config.zero.stage, config.offload.parameters) == (3, True)
    ds = inference(config, 2, Machine(2, "cpu"))
    assert "optimizer" not in ds
    assert ds["train_batch_size"] == 4
    assert ds["zero_optimization"]["stage"] == 3
    assert ds["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert "offload_optimizer" not in ds["zero_optimization"]
    assert ds["bf16"] == {"enabled": True}
    assert inference(evaluated(["data.eval_share=0.1"], {}), 1, Machine(1, "cpu")) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"eval.max_new_tokens": "0"}, "eval.max_new_tokens=0"),
        ({"eval.metrics": "rouge"}, "chatglm2_char"),
        ({"eval.top_p": "0.5"}, "eval.temperature=0"),
        ({"zero": "stage9"}, "stage9"),
        ({"eval.generate": "flase"}, "eval.generate: flase is not true or false"),
    ],
)
def test_a_wrong_value_is_told_as_on_a_run(given, words):
    with pytest.raises(UserError, match=words):
        evaluated(["data.eval_share=0.1"], given)


@pytest.fixture
def finished(tmp_path):
    from glmexp.config.files import save

    run = tmp_path / "run"
    run.mkdir()
    save(compose([]).config, run / "config.yaml")
    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the folder of one run"),
        (["{run}", "other"], "the folder of one run"),
        (["{run}"], "without validation samples\nname some: data.eval_path=FILE or data.eval_share"),
        (["{run}", "data.eval_path=/nowhere.jsonl"], "/nowhere.jsonl"),
        (["{run}", "optimizer.lr=1"], "evaluate has no option optimizer.lr"),
        (["{run}/nothing"], "is not there"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_starts(finished, arguments, words):
    with pytest.raises(UserError) as refused:
        evaluate.main([word.format(run=finished) for word in arguments] or ["--", *arguments])
    assert words in str(refused.value)
    assert not (finished / "evaluations").exists()


def test_folders_of_one_second_are_two(tmp_path):
    first, second = evaluate.new_folder(tmp_path), evaluate.new_folder(tmp_path)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()


def test_the_table_holds_every_figure(tmp_path):
    text = str(evaluate.table({"eval_loss": 2.0, "eval_rouge-l": 41.25, "eval_bleu-4": None, "steps": 3}, tmp_path))
    assert "loss       2.0000" in text
    assert "rouge-l    41.2500" in text
    assert "bleu-4" not in text
    assert "steps" not in text


def test_a_run_that_ended_early_is_complete_and_says_why(tmp_path):
    from glmexp.trial.outcome import Evidence, classify
    from glmexp.trial.processes import Ending
    from glmexp.trial.record import RankRecord

    record = RankRecord(rank=0, pid=1, outcome=State.complete, early="ended early: loss was not bettered")
    state, reason = classify(Evidence(Ending({0: 0}, None, None), range(1), [record]))
    assert (state, reason) == (State.complete, "ended early: loss was not bettered")
