"""``python -m glmexp convert FILE`` as a user meets it."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

OFFICIAL = Path(__file__).parent.parent / "golden" / "official"
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "weight_decay": 0.0}},
    "zero_optimization": {"stage": 2, "cpu_offload": True},
    "tensorboard": {"enabled": False, "job_name": 'it\'s a "name"'},
}


def test_what_it_prints_can_be_passed_on_and_notes_are_apart(glmexp, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    ran = glmexp("convert", "ds.json", python=("-X", "importtime"))
    assert ran.code == 0, ran.err
    overrides = [shlex.split(line) for line in ran.out.splitlines()]
    assert all(len(words) == 1 for words in overrides)
    assert ["optimizer.betas=[0.9,0.95]"] in overrides
    assert ["offload=cpu"] in overrides
    assert "note: gradient_clipping is left out" in ran.err
    assert "cpu_offload" in ran.err
    loaded = {line.split("|")[-1].strip() for line in ran.err.splitlines() if line.startswith("import time:")}
    assert not loaded & {"torch", "deepspeed", "transformers", "hydra"}

    command = f"xargs {shlex.quote(sys.executable)} -m glmexp check hydra.run.dir=checked"
    environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, shell=True, input=ran.out, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    ds = json.loads((tmp_path / "checked" / "ds_config.json").read_text())
    assert ds["optimizer"]["params"] == CONFIG["optimizer"]["params"] | {"eps": 1e-8}
    assert ds["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert ds["tensorboard"]["job_name"] == CONFIG["tensorboard"]["job_name"]


def test_errors_of_the_file_end_with_2_and_all_findings(glmexp, tmp_path):
    wrong = {"train_batch_size": 2, **{f"gradient_cliping{number}": 1 for number in range(9)}}
    (tmp_path / "ds.json").write_text(json.dumps(wrong))
    ran = glmexp("convert", "ds.json")
    assert ran.code == 2
    assert ran.out == ""
    assert all(f"gradient_cliping{number}" in ran.err for number in range(9))
    assert "python -m glmexp lint ds.json lists everything; lint.allow=[KEY] lets an unknown key through" in ran.err
    assert "Traceback" not in ran.err


def test_the_linter_is_recommended_for_the_reader_of_the_file(glmexp, tmp_path):
    trainers = {"train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": "auto", "hysteresis": 0}}
    (tmp_path / "my ds.json").write_text(json.dumps({**trainers, "zero_optimization": {"stage": 1}}))
    glmexp("convert", "my ds.json").refused("python -m glmexp lint 'my ds.json' --for hf lists everything")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["absent.json"], "not there"),
        (["a.json", "b.json"], "one file"),
        (["--json", "a.json"], "--json"),
        (["."], "folder"),
        (["a.json", "lint.allow=x"], "must be a list"),
        (["a.json", "--for", "hf"], "no --for is needed"),
    ],
)
def test_wrong_arguments_are_refused(glmexp, arguments, word):
    glmexp("convert", *arguments).refused(word)


def test_a_new_key_can_be_let_through(glmexp, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 2, "brand_new": True}))
    ran = glmexp("convert", "ds.json", "lint.allow=[brand_new]")
    assert ran.code == 0, ran.err
    assert "++deepspeed.brand_new=true" in ran.out.splitlines()
    assert "'lint.allow=[brand_new]'" in ran.out.splitlines()
    assert "brand_new: let through" in ran.err


def test_help_and_an_official_file(glmexp):
    told = glmexp("convert", "--help").out
    assert "usage: python -m glmexp convert FILE" in told
    assert "python -m glmexp check deepspeed_json=FILE" in told
    ran = glmexp("convert", str(OFFICIAL / "chatglm3_ds_zero_3.json"))
    assert ran.code == 0, ran.err
    assert "zero.stage3_gather_16bit_weights_on_model_save=true" in ran.out
    assert "auto" not in ran.out
    assert "hidden_size squared" in ran.err


def test_odd_names_are_escaped(glmexp, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 8, "\x1b[31mred\n": 1, "": 2}))
    ran = glmexp("convert", "ds.json")
    assert ran.code == 2
    assert "\\u001b[31mred\\n: no such key" in ran.err
    assert '"": no such key' in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("text", ["s3://user:hunter2@bucket/x", "${oc.env:MY_TOKEN}"])
@pytest.mark.parametrize("how", [("convert", "ds.json"), ("check", "deepspeed_json=ds.json")])
def test_a_secret_in_the_file_is_refused_and_not_printed(glmexp, tmp_path, text, how):
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 8, "tensorboard": {"output_path": text}}))
    ran = glmexp(*how, env={"MY_TOKEN": "hunter2"}).refused("ds.json: ")
    assert "hunter2" not in ran.out + ran.err
