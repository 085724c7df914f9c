"""``evaluate``: whole runs from the command line, finished and killed, at stage 3 on two ranks and below."""

import json

import pytest

pytestmark = pytest.mark.slow

RUN = (
    *("model=tiny", "launch.device=cpu", "train.max_steps=3", "optimizer.lr=1e-3", "precision=fp32", "data.max_length=64"),
    *("data.limit=12", "eval.max_new_tokens=8", "hydra.run.dir=run"),
)


def samples(folder, name, count):
    rows = [{"prompt": f"问题{i}" + "，请回答" * (i % 3), "response": f"答案是{i}。"} for i in range(count)]
    (folder / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return name


def evaluation(ran):
    """(result.json, predictions) of the newest evaluation."""
    folder = max((ran.folder / "run" / "evaluations").iterdir())
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    return json.loads((folder / "result.json").read_text(encoding="utf-8")), rows


def test_a_finished_run_scores_as_it_did_while_it_was_trained(glmexp, tmp_path):
    dev = f"data.eval_path={samples(tmp_path, 'dev.jsonl', 3)}"
    apart = ("zero=stage3", "zero.stage3_param_persistence_threshold=0", "launch.ranks=2")
    ran = glmexp(*RUN, dev, *apart, "eval.generate=true", "method=lora")
    assert ran.code == 0, ran.err
    trained = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["metrics"]
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    again = glmexp("evaluate", "run")
    assert again.code == 0, again.err
    result, rows = evaluation(again)
    assert (result["state"], result["world_size"], len(rows)) == ("complete", 2, 3)
    for name in ("eval_loss", "eval_rouge-l", "eval_bleu-4"):
        assert result["metrics"][name] == pytest.approx(trained[name], rel=1e-4)
    assert "rouge-l" in again.out
    assert "weights: export" in again.out
    assert {path: path.read_bytes() for path in before} == before
    other = glmexp("evaluate", "run", f"data.eval_path={samples(tmp_path, 'five.jsonl', 5)}", "zero=stage2", "launch.ranks=1")
    assert other.code == 0, other.err
    result, rows = evaluation(other)
    assert (result["world_size"], len(rows)) == (1, 5)
    assert len(list((tmp_path / "run" / "evaluations").iterdir())) == 2


def test_a_run_without_export_is_scored_from_its_checkpoint(glmexp, tmp_path):
    ran = glmexp(*RUN, "data.eval_share=0.25", "checkpoint.every=2", "train.save_weights=false", "train.stop_after=2")
    assert ran.code == 0, ran.err
    trained = json.loads((tmp_path / "run" / "evaluations.jsonl").read_text(encoding="utf-8"))
    again = glmexp("evaluate", "run", "eval.metrics=chatglm3_jieba")
    assert again.code == 0, again.err
    assert "weights: checkpoint step-000002" in again.out
    result, rows = evaluation(again)
    assert len(rows) == trained["samples"] == 3
    assert result["metrics"]["eval_loss"] == pytest.approx(trained["loss"], rel=1e-4)
    alone = glmexp("evaluate", "run", "eval.generate=false")
    assert alone.code == 0, alone.err
    assert ("perplexity" in alone.out, "rouge" in alone.out, "answers" in alone.out) == (True, False, False)
    glmexp("evaluate", "run", "checkpoint=best").refused("checkpoint=best")
    glmexp("evaluate", "run", "checkpoint=step-000009").refused("step-000002")
