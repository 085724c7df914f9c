import dataclasses
import random
from pathlib import Path

import pytest
from omegaconf import MISSING, OmegaConf

from glmexp.config import UserError, compose, load, save
from glmexp.config.choices import Dtype, Method
from glmexp.config.compose import absolute_paths, conf_dir
from glmexp.config.wording import known_keys
from glmexp.dsconfig import Machine, build


def message(*overrides, **kwargs):
    with pytest.raises(UserError) as error:
        compose(list(overrides), **kwargs)
    assert len(str(error.value).splitlines()) <= 6
    return str(error.value)


def test_the_defaults_compose():
    config = compose([]).config
    assert config.model.path == "tiny"
    assert config.zero.stage == 2
    assert config.precision.dtype is Dtype.bf16
    assert config.method.name is Method.full


def test_saved_and_loaded_is_the_same(tmp_path):
    config = compose(["zero=stage3", "offload=cpu_all", "method=lora", "method.target_modules=[query_key_value]"]).config
    save(config, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == config


def test_a_saved_config_with_a_broken_rule_is_refused(tmp_path):
    save(compose([]).config, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("micro: 2", "micro: 0"))
    with pytest.raises(UserError, match=r"batch\.micro=0"):
        load(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["zero=stage4"], ["zero=stage4", "zero=stage3", "stage0, stage1, stage2, stage3"]),
        (["zero=stage7"], ["zero=stage7", "stage0, stage1, stage2, stage3"]),
        (["zreo=stage2"], ["zreo", "zero"]),
        (["batch.mirco=2"], ["batch.mirco", "batch.micro"]),
        (["+batch.mirco=2"], ["batch.mirco", "batch.micro"]),
        (["++batch.mirco=2"], ["batch.mirco", "batch.micro"]),
        (["optimizer.learning_rate=1e-4"], ["optimizer.lr"]),
        (["gradient_accumulation_steps=4"], ["batch.accumulation"]),
        (["+foo=1"], ["foo", "model", "data"]),
        (["batch.micro=abc"], ["batch.micro", "abc", "whole number"]),
        (["batch.micro=0"], ["batch.micro=0", "at least 1"]),
        (["batch.micro=true"], ["batch.micro", "whole number"]),
        (["batch.micro=[1,2]"], ["batch.micro"]),
        (["batch=[1,2]"], ["batch", "one option"]),
        (["batch.accumulation=-1"], ["batch.accumulation=-1", "at least 1"]),
        (["optimizer.lr=-1"], ["optimizer.lr=-1", "greater than 0"]),
        (["optimizer.lr=nan"], ["optimizer.lr=nan"]),
        (["optimizer.lr=inf"], ["optimizer.lr=inf"]),
        (["optimizer.lr=fast"], ["optimizer.lr", "fast", "a number"]),
        (["train.max_steps=1.5"], ["train.max_steps", "1.5"]),
        (["scheduler.warmup_steps=-1"], ["scheduler.warmup_steps=-1", "at least 0"]),
        (["data.max_length=0"], ["data.max_length=0", "at least"]),
        (["zero.reduce_bucket_size=1.5"], ["zero.reduce_bucket_size=1.5", "whole number"]),
        (["launch.device=tpu"], ["launch.device", "tpu", "auto, gpu, cpu"]),
        (["train.save_weights=maybe"], ["train.save_weights", "maybe"]),
        (["~batch"], ["batch"]),
        (["~train.seed"], ["train.seed"]),
        (["zero"], ["zero", "key=value"]),
        (["model=auto"], ["model.path", "not set"]),
        (["data.path=out/epoch=3"], ["quote it", "'data.path=\"out/epoch=3\"'"]),
        (["data.path=[x].jsonl"], ["quote it", "'data.path=\"[x].jsonl\"'"]),
        (["data.path=it's\"a,b"], ["quote it", """'data.path="it'"'"'s\\"a,b"'"""]),
        (["deepspeed={a: {b: 1}}"], ["+deepspeed."]),
        (["zero=stage2,stage3"], ["--multirun"]),
        (["zero=stage3", "+model.kwargs.device_map=auto"], ["device_map", "never"]),
        (["+model.trust_remote_code=true"], ["trust_remote_code", "never"]),
        (
            ["experiment=none_such"],
            ["experiment=none_such", "no such option", "--config-dir DIR", "DIR/experiment/none_such.yaml"],
        ),
        (["model=SmolLM2"], ["no such option", "model=auto model.path=SmolLM2"]),
        (["model=HuggingFaceTB/SmolLM2"], ["no such option", "model=auto model.path=HuggingFaceTB/SmolLM2"]),
        (["model=./SmolLM2"], ["one option", "model=auto model.path=./SmolLM2"]),
        (["model=chatglm2-6b"], ["did you mean model=chatglm2_6b?"]),
        (["data=mine.jsonl"], ["data.path=mine.jsonl"]),
        (["zero=2"], ["did you mean zero=stage2?", "stage3_zeropp", "zero.FIELD"]),
        (["train.max_steps=4", "train.epochs=2"], ["train.epochs=2 has no effect", "train.max_steps=null"]),
        (["experiment=chatglm2_ptuning_v2", "train.epochs=2"], ["train.max_steps=3000", "train.max_steps=null"]),
        (["lr=1e-4"], ["did you mean optimizer.lr?"]),
        (["rank=8"], ["did you mean method.rank?"]),
        (["method=lora", "method.target_modules=q_proj"], ["must be a list, as method.target_modules=[...]"]),
    ],
)
def test_a_mistake_is_named_with_the_next_move(overrides, words):
    text = message(*overrides)
    for word in words:
        assert word in text, text


def test_an_unset_variable_is_named_with_its_key():
    text = message("data.path=${oc.env:GLMEXP_NO_SUCH_VARIABLE}/x.jsonl")
    assert "data.path" in text
    assert "GLMEXP_NO_SUCH_VARIABLE" in text


@pytest.mark.parametrize("name", ["MY_API_TOKEN", "WANDB_API_KEY", "Some_Secret", "PASSWORD"])
def test_a_secret_from_the_environment_is_refused(name, monkeypatch):
    monkeypatch.setenv(name, "canary-value")
    for override in (
        f"data.path=${{oc.env:{name}}}/x",
        f"hydra.run.dir=${{oc.env:{name}}}",
        f"+deepspeed.a=${{oc.env:{name},x}}",
    ):
        text = message(override)
        assert name in text
        assert "canary-value" not in text


def test_other_variables_are_resolved(monkeypatch, tmp_path):
    monkeypatch.setenv("GLMEXP_TEST_DATA", str(tmp_path))
    composed = compose(["data.path=${oc.env:GLMEXP_TEST_DATA}/x.jsonl"])
    assert composed.config.data.path == f"{tmp_path}/x.jsonl"


@pytest.mark.parametrize("written", ["1e-5", "1.0e-5", '"1e-5"'])
def test_small_numbers_are_numbers_however_they_are_written(written, tmp_path):
    assert compose([f"optimizer.lr={written}"]).config.optimizer.lr == 1e-5
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\noptimizer:\n  lr: {written}\n")
    assert compose(["experiment=mine"], config_dir=str(tmp_path)).config.optimizer.lr == 1e-5


def test_large_counts_may_be_written_with_an_exponent():
    assert compose(["zero.reduce_bucket_size=5e8"]).config.zero.reduce_bucket_size == 500_000_000


def test_sources_tell_who_set_a_value():
    sources = compose(["zero=stage3", "batch.total=8"]).sources
    assert sources["zero.stage"] == "command line: zero=stage3"
    assert sources["batch.total"] == "command line: batch.total=8"
    assert sources["batch.micro"] == "batch=default"
    assert sources["train.seed"] == "config.yaml"
    assert sources["offload.device"] == "offload=none"


EXPERIMENT = """# @package _global_
defaults:
  - override /zero: stage3
  - override /method: lora
batch:
  micro: 2
train:
  max_steps: 7
"""


@pytest.fixture
def experiments(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(EXPERIMENT)
    return tmp_path


def test_an_experiment_picks_options_and_sets_values(experiments):
    composed = compose(["experiment=mine"], config_dir=str(experiments))
    assert (composed.config.zero.stage, composed.config.batch.micro, composed.config.train.max_steps) == (3, 2, 7)
    assert composed.config.method.name is Method.lora
    assert composed.sources["batch.micro"] == "experiment=mine"
    assert composed.sources["zero.stage"] == "zero=stage3"


def test_the_command_line_wins_over_an_experiment(experiments):
    composed = compose(["experiment=mine", "zero=stage1", "batch.micro=4"], config_dir=str(experiments))
    assert (composed.config.zero.stage, composed.config.batch.micro) == (1, 4)
    assert composed.sources["batch.micro"] == "command line: batch.micro=4"


def test_an_option_that_an_experiment_would_silently_beat_is_refused(experiments):
    text = message("experiment=mine", "batch=default", config_dir=str(experiments))
    assert "experiment=mine" in text
    assert "batch.micro" in text


def test_a_typo_in_an_experiment_names_the_file(experiments):
    (experiments / "experiment" / "mine.yaml").write_text("# @package _global_\nbatch:\n  micr: 2\n")
    text = message("experiment=mine", config_dir=str(experiments))
    assert "experiment/mine" in text
    assert "batch.micro" in text


def test_an_experiment_may_not_rewire_hydra(experiments):
    (experiments / "experiment" / "mine.yaml").write_text("# @package _global_\nhydra:\n  job:\n    chdir: true\n")
    assert "hydra.job.chdir" in message("experiment=mine", config_dir=str(experiments))


def test_paths_are_relative_to_the_folder_of_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    values = {
        "data": {"path": "data/../x.jsonl"},
        "model": {"path": "model"},
        "offload": {"nvme_path": "swap"},
        "train": {"resume": "outputs/a/checkpoints/step-000003"},
    }
    assert absolute_paths(values) == {
        "data": {"path": f"{tmp_path}/x.jsonl"},
        "model": {"path": f"{tmp_path}/model"},
        "offload": {"nvme_path": f"{tmp_path}/swap"},
        "train": {"resume": f"{tmp_path}/outputs/a/checkpoints/step-000003"},
    }
    hub = {"data": {"path": None}, "model": {"path": "THUDM/chatglm2-6b"}, "offload": {"nvme_path": None}}
    hub["train"] = {"resume": "auto"}
    assert absolute_paths(hub) == hub


def options():
    return sorted((path.parent.name, path.stem) for path in Path(conf_dir()).glob("*/*.yaml"))


NEEDS = {
    "model=auto": ["model.path=some/model"],
    "scaler=dynamic": ["precision=fp16"],
    "scaler=static": ["precision=fp16"],
    "offload=cpu_all": ["zero=stage3"],
    "offload=nvme": ["zero=stage3", "offload.nvme_path=/nvme"],
    "offload=super_offload": ["zero=stage3"],
    "offload=zenflow": ["batch.accumulation=4"],
    "kernels=deepcompile": ["zero=stage3"],
    "comm=ulysses": ["zero=stage3"],
    "data=hub": ["data.path=owner/name"],
}
"""Option -> what else must be chosen with it."""


@pytest.mark.parametrize(("group", "option"), options())
def test_every_option_composes(group, option):
    config = compose([f"{group}={option}", *NEEDS.get(f"{group}={option}", [])]).config
    written = OmegaConf.load(Path(conf_dir()) / group / f"{option}.yaml")
    if group not in ("experiment", "sweep"):  # which are of the whole configuration
        fields = dataclasses.fields(getattr(config, group))
        required = {field.name for field in fields if field.default == MISSING}
        assert required <= set(written) <= {field.name for field in fields}


ODD_VALUES = ("null", "-1", "0", "1e999", "x", "[]", "{}", "true", "''", "1.5", "[1,2]", "'a b'")
ODD_OVERRIDES = [f"{key}={value}" for key in known_keys() for value in ODD_VALUES]

NO_GROUPS = ("task", "lang", "train", "measure", "deepspeed", "lint")
GROUP_OVERRIDES = [text for text in ODD_OVERRIDES if "." not in text.split("=")[0] and text.split("=")[0] not in NO_GROUPS]


@pytest.mark.parametrize("override", random.Random(7).sample(ODD_OVERRIDES, 80))
def test_an_odd_value_composes_or_is_refused_by_name(override):
    told = ""
    try:
        build(compose([override]).config, Machine(1, "cpu"))
    except UserError as error:
        told = str(error)
    assert len(told.splitlines()) <= 5
    assert not told or override.split(".")[0].split("=")[0] in told


@pytest.mark.parametrize("override", GROUP_OVERRIDES[::5])
def test_a_value_where_an_option_is_due_is_refused(override):
    assert override.split("=")[0] in message(override)
