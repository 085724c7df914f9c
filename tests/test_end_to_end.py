"""Whole runs from the command line, as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "chatglm2"
SHORT = ("train.max_steps=3", "train.save_weights=false", "launch.device=cpu")
SPY = """
import importlib.abc, importlib.machinery, json, os, sys
class Spy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "deepspeed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            real = module.initialize
            def initialize(*args, **kwargs):
                with open(os.path.join(os.environ["SPY_FOLDER"], f"{os.getpid()}.json"), "w") as file:
                    json.dump(kwargs["config"], file)
                return real(*args, **kwargs)
            module.initialize = initialize
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Spy())
"""


@pytest.mark.parametrize(
    ("overrides", "share"), [pytest.param((), 0.7, id="whole", marks=pytest.mark.slow), (("train.max_steps=150",), 0.87)]
)
def test_the_default_run_learns(glmexp, tmp_path, overrides, share):
    ran = glmexp("launch.device=cpu", *overrides, env={"HOME": str(tmp_path)})
    assert ran.code == 0, ran.out + ran.err
    result, rows = ran.json("result.json"), ran.rows()
    metrics = result["metrics"]
    assert result["state"] == "complete"
    assert metrics["loss_last"] < share * metrics["loss_first"]
    assert len(rows) == metrics["steps"]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["lr"] > 0 for row in rows)
    assert metrics["tokens_per_second"] > 0
    assert (ran.only("export") / "model.safetensors").is_file()


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_engine_gets_ds_config_to_the_letter(glmexp, tmp_path, ranks):
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(SPY)
    path = f"{spy}{os.pathsep}{Path(__file__).parent.parent}"
    ran = glmexp("zero=stage3", f"launch.ranks={ranks}", *SHORT, env={"PYTHONPATH": path, "SPY_FOLDER": str(spy)})
    assert ran.code == 0, ran.out + ran.err
    seen = [json.loads(file.read_text()) for file in spy.glob("*.json")]
    assert len(seen) == ranks
    assert all(config == ran.json("ds_config.json") for config in seen)
    assert len(list(tmp_path.rglob("result.json"))) == 1


def test_clipping_does_not_hide_the_norm(glmexp):
    ran = glmexp("train.grad_clip=1e-6", *SHORT)
    assert ran.code == 0, ran.out + ran.err
    assert all(row["grad_norm"] > 0.1 for row in ran.rows())


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_accumulation_changes_no_loss(glmexp, stage):
    common = (f"zero=stage{stage}", "precision=fp32", *SHORT)
    whole = glmexp("batch.micro=4", "batch.accumulation=1", f"hydra.run.dir=whole{stage}", *common)
    parts = glmexp("batch.micro=1", "batch.accumulation=4", f"hydra.run.dir=parts{stage}", *common)
    assert whole.code == parts.code == 0, whole.err + parts.err

    def rows(folder):
        return [json.loads(line) for line in (whole.folder / folder / "metrics.jsonl").read_text().splitlines()]

    for one, many in zip(rows(f"whole{stage}"), rows(f"parts{stage}"), strict=True):
        assert many["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)


def test_an_original_chatglm2_folder_trains_at_stage_3_on_two_ranks(glmexp):
    synthetic = ("data=synthetic", "data.max_length=24", "data.limit=8")
    ran = glmexp("model=auto", f"model.path={GOLDEN}", "zero=stage3", "launch.ranks=2", *synthetic, *SHORT)
    assert ran.code == 0, ran.out + ran.err
    assert ran.json("result.json")["world_size"] == 2


def test_no_secret_is_in_any_file(glmexp):
    secrets = {"MY_API_TOKEN": "canary-5f1d", "HF_TOKEN": "hf_canary-7a2e", "WANDB_API_KEY": "c" * 36 + "5f1d"}
    ran = glmexp("tracker=wandb", "tracker.mode=offline", *SHORT, env=secrets)
    assert ran.code == 0, ran.out + ran.err
    written = [(path, path.read_bytes()) for path in ran.folder.rglob("*") if path.is_file()]
    assert len(written) > 5
    leaks = [path for path, content in written if any(secret.encode() in content for secret in secrets.values())]
    assert not leaks


def test_a_bad_line_ends_with_2_before_the_model(glmexp, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "天为什么是蓝的", "response": }\n')
    ran = glmexp("data.path=bad.jsonl", *SHORT).refused("bad.jsonl:2")
    assert ran.json("result.json")["state"] == "invalid"
    kept = glmexp("data.path=bad.jsonl", "data.on_bad=skip", "hydra.run.dir=kept", *SHORT)
    assert kept.code == 0, kept.err


def test_a_run_that_diverges_says_so(glmexp):
    ran = glmexp("optimizer.lr=1e25", *SHORT)
    assert ran.code == 1
    result = ran.json("result.json")
    assert result["state"] == "diverged"
    assert "optimizer.lr" in result["reason"]


def test_what_became_of_the_samples_is_on_the_screen_and_in_the_result(glmexp, tmp_path):
    lines = ['{"prompt": "a", "response": "b"}', '{"prompt": "c", "response": "%s"}' % ("word " * 60), "not json"]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    ran = glmexp("data.path=x.jsonl", "data.on_bad=skip", "data.max_length=30", *SHORT)
    assert ran.code == 0, ran.err
    warnings = ran.json("result.json")["warnings"]
    assert len(warnings) == 1
    assert "1 cut" in warnings[0]
    assert "1 bad" in warnings[0]
    assert "1 cut" in ran.out + ran.err
    longer = glmexp("data.max_length=4096", "data.limit=4", "hydra.run.dir=long", *SHORT)
    assert "2048" in json.loads((tmp_path / "long" / "result.json").read_text())["warnings"][0]
    assert "data: 4 samples read, 4 kept" in longer.out


def test_weights_that_the_last_update_broke_are_not_exported(glmexp):
    ran = glmexp(
        "optimizer.lr=1e30", "optimizer.weight_decay=1e30", "scheduler=constant", "train.max_steps=1", "launch.device=cpu"
    )
    assert ran.code == 1
    assert ran.json("result.json")["state"] == "diverged"
    assert not list(ran.folder.rglob("export"))


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
    command = f"{sys.executable} -m glmexp train.max_steps=3 train.save_weights=false launch.device=cpu | head -1"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=120)
    assert json.loads(next(tmp_path.rglob("result.json")).read_text())["state"] == "complete"
