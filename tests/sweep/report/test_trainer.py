"""recommended_ds_config.hf.json in the hands of the HF Trainer, and of our linter."""

import json

import pytest

from glmexp.config.compose import compose
from glmexp.dsconfig import build
from glmexp.dsconfig.findings import Severity, Situation
from glmexp.dsconfig.lint import lint
from glmexp.dsconfig.machine import Machine
from glmexp.sweep.report.trainer import arguments, for_trainer

TRIALS = [
    ["zero=stage2", "batch.micro=4", "batch.total=32"],
    ["zero=stage3", "offload=cpu_all", "optimizer.lr=3e-4", "optimizer.betas=[0.8,0.95]", "optimizer.weight_decay=0.1"],
    ["zero=stage2", "precision=fp16", "scaler.initial_scale_power=12", "train.grad_clip=0.5", "optimizer.eps=1e-7"],
    ["zero=stage1", "precision=fp32", "train.grad_clip=null"],
    ["experiment=chatglm2_full_zero2"],
]


@pytest.mark.parametrize("overrides", TRIALS, ids=" ".join)
def test_the_trainer_fills_in_the_trials_own_numbers(overrides, tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from transformers import HfArgumentParser, TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    ds_config = build(compose(overrides).config, Machine(1, "gpu"))
    made = for_trainer(ds_config)
    assert clean(made)

    path = tmp_path / "hf.json"
    path.write_text(json.dumps(made))
    # As on the Trainer's command line; no bf16 on this machine's say-so, hence use_cpu.
    words = [*arguments(ds_config).split(), "--output_dir", str(tmp_path), "--use_cpu", "True"]
    (given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    filled = HfTrainerDeepSpeedConfig(str(path))
    filled.trainer_config_process(given)
    filled.trainer_config_finalize(given, None, 100)
    assert filled.config == ds_config


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_our_linter_finds_nothing_to_say_against_it(stage, precision):
    if (stage, precision) == (0, "fp16"):
        pytest.skip("refused: DeepSpeed scales it wrongly")
    ds_config = build(compose([f"zero=stage{stage}", f"precision={precision}"]).config, Machine(1, "gpu"))
    made = for_trainer(ds_config)
    assert clean(made)
    assert {name for name in ("bf16", "fp16") if name in made} == {precision} - {"fp32"}


def clean(made):
    return not [finding for finding in lint(made, Situation(reader="hf")) if finding.severity is not Severity.info]


def test_the_trainer_refuses_another_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    path = tmp_path / "hf.json"
    path.write_text(json.dumps(for_trainer(build(compose(["zero=stage2"]).config, Machine(1, "gpu")))))
    given = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    filled = HfTrainerDeepSpeedConfig(str(path))
    filled.trainer_config_process(given)
    with pytest.raises(ValueError, match=r"bf16\.enabled=True vs hf bf16"):
        filled.trainer_config_finalize(given, None, 100)


def test_what_was_tuned_stays():
    ds_config = build(compose(["zero=stage3", "zero.reduce_bucket_size=1e7"]).config, Machine(1, "gpu"))
    made = for_trainer(ds_config)
    assert made["zero_optimization"] == ds_config["zero_optimization"]
    assert made["optimizer"]["params"]["torch_adam"] is True
    assert "scheduler" not in made
    assert ds_config["train_batch_size"] != "auto", "the trial's own dict is left alone"


def test_an_adapted_optimizer_keeps_what_the_trainer_has_no_argument_for():
    ds_config = build(compose(["optimizer=muon", "train.grad_clip=null"]).config, Machine(1, "gpu"))
    params = for_trainer(ds_config)["optimizer"]["params"]
    assert params["momentum"] == 0.95
    assert params["lr"] == "auto"
