"""The command line as a user meets it: verbs, exit codes, messages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from glmexp.config.choices import MeasureSamples, Objective, Order, Retry, Search

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2")


def test_check_writes_both_files_and_loads_nothing(glmexp):
    ran = glmexp("check", "zero=stage3", "batch.total=8", "batch.micro=2", python=("-X", "importtime"))
    assert ran.code == 0, ran.err
    assert ran.json("ds_config.json")["gradient_accumulation_steps"] == 4
    assert yaml.safe_load(ran.only("config.yaml").read_text())["zero"]["stage"] == 3
    assert "micro 2 x accumulation 4 x ranks 1 = 8" in ran.out
    assert not re.search(r"\|\s+(torch|deepspeed|transformers|wandb)$", ran.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["check", "batch.total=7", "batch.micro=2", "batch.accumulation=2"],
            ["batch.total=7", "batch.micro=2", "batch.accumulation=2"],
        ),
        (["check", "batch.micro=null"], ["batch.micro"]),
        (["check", "zreo=stage2"], ["zero"]),
        (["check", "zero=stge2"], ["zero=stge2", "no such option", "did you mean zero=stage2?"]),
        (["lora"], ["no such verb", "did you mean method=lora?"]),
        (["check", "zero"], ["did you mean zero=...?"]),
        (["trian"], ["did you mean train?"]),
        (["check", "--mutirun"], ["--mutirun", "did you mean --multirun?"]),
        (["check", "zero=stage2", "--config-dir"], ["--config-dir needs a value"]),
        (["check", "optimizer.betas=[[0.9],0.99]"], ["optimizer.betas", "plain value"]),
        (["check", "+batch.mirco=2"], ["batch.micro"]),
        (
            ["check", "batch.accumulation=16", "+deepspeed.gradient_accumulation_steps=1"],
            ["gradient_accumulation_steps", "batch.accumulation"],
        ),
        (["check", "data.path=absent.jsonl"], ["absent.jsonl", "data.path"]),
        (["check", "model=auto", "model.path=./absent"], ["absent", "model.path"]),
        (["chek", "zero=stage2"], ["chek", "check"]),
        (["check", "task=train"], ["check", "task"]),
        (["check", "zero=stage2,stage3"], ["--multirun"]),
        (["model=tiny", "precision=fp16", "launch.device=cpu"], ["precision=fp16", "bf16", "fp32"]),
        (["launch.device=cpu", "launch.nodes=2"], ["launch.nodes=2", "torchrun"]),
        (["preview", "data.path=absent.jsonl"], ["absent.jsonl"]),
        (["help"], ["--help"]),
        (["--zero", "stage2"], ["--zero", "zero=..."]),
        (["check", "deepspeed_jsn=x.json"], ["deepspeed_json"]),
        (["check", "offload=nvme"], ["offload=nvme needs zero=stage3", "host memory"]),
    ],
)
def test_a_users_mistake_ends_with_2(glmexp, arguments, words):
    ran = glmexp(*arguments).refused(*words)
    assert not list(ran.folder.rglob("result.json"))


@pytest.mark.parametrize("key", ["model.kwargs.device_map", "model.device_map", "model.low_cpu_mem_usage"])
def test_a_placement_of_weights_is_refused_with_the_reason(glmexp, key):
    glmexp("check", "zero=stage3", f"+{key}=auto").refused(key, "ZeRO")


@pytest.mark.parametrize("overrides", [["method=full"], ["method=lora", "zero=stage3"]])
def test_a_quantised_model_is_refused_at_check(glmexp, tmp_path, overrides):
    (tmp_path / "int4").mkdir()
    (tmp_path / "int4" / "config.json").write_text('{"model_type": "chatglm", "quantization_bit": 4}')
    glmexp("check", "model=auto", "model.path=int4", *overrides).refused("quantization_bit=4", "unquantised", "ZeRO")


def test_a_file_where_an_override_is_due_is_told_what_it_can_be(glmexp, tmp_path):
    (tmp_path / "ds_config.json").write_text("{}")
    glmexp("check", "ds_config.json").refused("deepspeed_json=ds_config.json", "lint ds_config.json")


def test_the_version_is_glmexps(glmexp):
    ran = glmexp("--version")
    assert ran.code == 0
    assert re.fullmatch(r"glmexp \S+, DeepSpeed \S+, torch \S+, transformers \S+, Hydra \S+\n", ran.out)


def test_an_absent_file_is_named_by_its_absolute_path(glmexp, tmp_path):
    glmexp("check", "data.path=data/absent.jsonl").refused(f"{tmp_path}/data/absent.jsonl")


def test_full_errors_on_request(glmexp):
    ran = glmexp("check", "batch.micro=0", env={"HYDRA_FULL_ERROR": "1"})
    assert ran.code == 1
    assert "Traceback" in ran.err


def test_local_rank_of_a_launcher_is_tolerated(glmexp):
    assert glmexp("check", "--local_rank=0", "model=tiny").code == 0


def test_paths_are_absolute_in_the_saved_config(glmexp, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    ran = glmexp("check", "data.path=x.jsonl")
    assert ran.code == 0, ran.err
    assert yaml.safe_load(ran.only("config.yaml").read_text())["data"]["path"] == f"{tmp_path}/x.jsonl"


def test_the_global_batch_holds_under_torchrun(glmexp):
    ran = glmexp("check", "batch.total=8", "batch.micro=1", launcher=TORCHRUN)
    assert ran.code == 0, ran.err
    ds = ran.json("ds_config.json")
    assert (ds["train_batch_size"], ds["gradient_accumulation_steps"]) == (8, 4)


def test_fewer_samples_than_ranks_is_told_in_words(glmexp):
    ran = glmexp("check", "batch.total=1", "batch.micro=1", launcher=TORCHRUN)
    assert ran.code != 0
    assert "batch.total=1 is smaller than the number of ranks (2)" in ran.err
    assert "batch.total=2" in ran.err


def test_multirun_under_a_launcher_is_refused(glmexp):
    ran = glmexp("-m", "train.seed=1,2", launcher=TORCHRUN)
    assert ran.code != 0
    assert "--multirun" in ran.err
    assert "launch.ranks=2" in ran.err


def test_a_clean_combination_of_a_grid_is_checked_and_an_impossible_one_told(glmexp):
    ran = glmexp("check", "-m", "zero=stage0,stage2", "offload=none,cpu")
    assert ran.code == 0
    assert len(list(ran.folder.rglob("ds_config.json"))) == 3
    assert "offload=cpu needs zero=stage1" in ran.out


def test_a_preview_goes_to_any_terminal(glmexp, tmp_path):
    sample = '{"prompt": "问", "response": "答\\ud83d\\ude00"}'
    (tmp_path / "a.jsonl").write_text(f'{sample}\n{{"\\ud800": "x"}}\n', encoding="utf-8")
    told = glmexp("preview", "data.path=a.jsonl", "data.limit=1", env={"PYTHONIOENCODING": "ascii"})
    assert told.code == 0, told.err
    assert r"\u7b54\U0001f600" in told.out
    glmexp("preview", "data.path=a.jsonl").refused("a.jsonl:2: no column 'prompt'", r"found: \ud800")


def test_help_names_the_verbs(glmexp):
    ran = glmexp("--help")
    assert ran.code == 0
    told = ("train", "check", "preview", "evaluate RUN", "predict  RUN", "export   RUN", "zero: stage0, stage1, stage2, stage3")
    assert all(word in ran.out for word in told)


def test_help_has_the_values_of_a_sweeps_settings(glmexp):
    _, _, told = glmexp("--help").out.partition("\nSweeps: ")
    told, _, _ = told.partition("\nFields, ")
    assert {f"sweep.{field}" for field in ("name", "resume", "retry", "slots", "order", "search", "objective")} <= set(
        re.findall(r"sweep\.\w+", told)
    )
    for kind in (Order, Search, Objective, Retry, MeasureSamples):
        assert {value.value for value in kind} <= set(re.findall(r"\w+", told)), kind


def test_help_of_a_verb_that_only_shows_something(glmexp):
    ran = glmexp("explain", "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "explain" in ran.out


def test_a_defaults_list_that_is_none_is_the_users_error(glmexp, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: null\n")
    glmexp("check", "--config-dir", "conf", "experiment=mine").refused("experiment/mine", "defaults must be a list")


def test_completion_and_info_still_work(glmexp):
    assert "searchpath" in glmexp("--info", "searchpath").out.lower() or glmexp("--info", "searchpath").code == 0
    assert Path(glmexp("check").only("config.yaml")).is_file()


def test_nothing_is_written_over(glmexp, tmp_path):
    (tmp_path / "config.yaml").write_text("mine: true\n")
    glmexp("check", "hydra.run.dir=.").refused("config.yaml", "hydra.run.dir")
    assert (tmp_path / "config.yaml").read_text() == "mine: true\n"


@pytest.mark.parametrize("text", ["a: [1\n", "a: 1\na: 2\n", "train:\n\tseed: 1\n"])
def test_a_yaml_file_that_cannot_be_read_is_the_users_error(glmexp, tmp_path, text):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    glmexp("check", "--config-dir", "conf", "experiment=mine").refused("mine.yaml")


@pytest.mark.parametrize("arguments", [["check"], ["-m", "task=check", "train.seed=1,2"]])
def test_a_secret_that_was_typed_is_in_no_file_and_on_no_screen(glmexp, tmp_path, arguments):
    refused = glmexp(*arguments, "data.path=canary-5f1d.jsonl", env={"MY_API_TOKEN": "canary-5f1d"}).refused("MY_API_TOKEN")
    assert "canary" not in refused.err + refused.out
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_type_in_an_experiment_names_the_key(glmexp, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\ntrain: {max_steps: x}\n")
    glmexp("check", "--config-dir", "conf", "experiment=mine").refused("max_steps")


def test_a_url_with_credentials_is_refused_however_it_comes(glmexp):
    env = {"SOME_URL": "https://user:canary@host/x"}
    ran = glmexp("check", "tracker=wandb", "tracker.project=${oc.env:SOME_URL}", env=env).refused("credentials")
    assert "canary" not in ran.err + ran.out


def test_a_terminal_that_lacks_a_character_gets_its_code(glmexp):
    ran = glmexp("explain", "lang=zh", env={"PYTHONIOENCODING": "ascii"})
    assert (ran.code, ran.err) == (0, "")
    assert r"\u6765\u6e90" in ran.out
    rows = json.loads(glmexp("explain", "lang=zh", "--json", env={"PYTHONIOENCODING": "ascii"}).out)
    assert "全局批大小" in rows[0]["text"]


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_width_that_holds_nothing_is_no_width(glmexp, columns):
    ran = glmexp("explain", env={"COLUMNS": columns})
    assert "origin: derived: batch.micro x" in ran.out


@pytest.mark.parametrize("verb", ["explain", "check"])
def test_a_reader_that_is_gone_is_no_error(verb, tmp_path):
    command = [sys.executable, "-m", "glmexp", verb]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
