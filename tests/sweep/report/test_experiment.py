"""recommended.yaml composes to the trial's own configuration in all that it trains, whatever the trial's overrides were."""

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from glmexp.config.compose import VERSION_BASE, conf_dir, from_composition, register
from glmexp.config.errors import UserError
from glmexp.config.files import load, save, to_values
from glmexp.sweep.overrides import values_of
from glmexp.sweep.report.experiment import LEFT_OUT, OF_LAUNCH, experiment
from tests.dsconfig.test_any_overrides import drawn

MIXES = [
    ["zero=stage3", "offload=cpu_all", "batch.micro=4", "batch.total=32", "activation=checkpoint", "train.epochs=0.5"],
    ["precision=fp16", "scaler=static", "scaler.loss_scale=512", "method=ptuning_v2", "optimizer.lr=0.02"],
    ["optimizer=muon", "train.grad_clip=null", "zero=stage2", "scheduler.name=constant", "scheduler.warmup_steps=7"],
    ["experiment=chatglm2_full_zero2", "zero.reduce_bucket_size=1e8"],
    ["experiment=glm4_lora", "model.path='/data/我的 模型=1'", "model.recommended_lr=3e-4"],
    ["experiment=seed_zero2_offload", "batch.total=64", "train.max_steps=null"],
    ["+deepspeed.zero_optimization.sub_group_size=1e8", "+deepspeed.new_key=[1,2]", "lint.allow=[new_key]", "zero=stage3"],
    ["model=auto", "model.path='/模型'", "data.path='/tmp/数据, a=b #1.jsonl'", "data.columns.prompt='问: 题'"],
    ["launch.ranks=2", "launch.device=cpu", "launch.timeout_minutes=3", "hardware=rtx4090", "comm=ulysses", "zero=stage3"],
    ["hardware=h100", "hardware.emulate=true", "hardware.gpu_memory_gib=30"],
    ["method=lora", "method.target_modules=[query_key_value,dense]", "data.path='/tmp/1e-5'", "model.revision='0123'"],
    ["task=train", "lang=zh", "tracker=wandb", "tracker.project=mine", "sweep.objective=memory", "measure.steps=2"],
]  # fmt: skip


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """Overrides -> Config, with the folder of the user's own options among the sources."""
    register()
    own = tmp_path_factory.mktemp("own")
    (own / "experiment").mkdir()

    def composed(*overrides):
        result = hydra_compose("config", [f"hydra.searchpath=[file://{own}]", *overrides], return_hydra_config=True)
        return from_composition(result, result.hydra).config

    with initialize_config_dir(version_base=VERSION_BASE, config_dir=conf_dir(), job_name="glmexp"):
        composed.own = own
        yield composed


def trained(config):
    values = {name: value for name, value in to_values(config).items() if name not in LEFT_OUT}
    if not config.hardware.emulate:
        del values["hardware"]
    return {**values, "launch": {name: values["launch"][name] for name in OF_LAUNCH}}


def check(composed, overrides, tmp_path):
    """Writes the experiment of a trial, composes it as a user would, and compares."""
    config = composed(*overrides)
    save(config, tmp_path / "config.yaml")
    content = experiment(load(tmp_path / "config.yaml"), values_of(overrides))
    text = "# @package _global_\n" + (OmegaConf.to_yaml(OmegaConf.create(content)) if content else "")
    (composed.own / "experiment" / "best.yaml").write_text(text, encoding="utf-8")
    assert trained(composed("experiment=best")) == trained(config), text
    return content


@pytest.mark.parametrize("overrides", MIXES, ids=lambda overrides: " ".join(overrides))
def test_it_composes_to_the_trial(composed, overrides, tmp_path):
    content = check(composed, ["task=measure", *overrides] if "task=train" not in overrides else overrides, tmp_path)
    assert not {"task", "lang", "sweep", "measure", "tracker"} & set(content)
    assert not {"timeout_minutes", "hang_minutes"} & set(content.get("launch", {}))


def composes(composed, overrides):
    try:
        composed(*overrides)
    except (UserError, HydraException, OmegaConfBaseException):  # tests/dsconfig/test_any_overrides.py looks at these
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_composes_to_the_trial_whatever_the_overrides(composed, tmp_path):
    kept = [overrides for overrides, _ in map(drawn, range(60)) if composes(composed, overrides)]
    for overrides in kept:
        check(composed, overrides, tmp_path)
    assert len(kept) >= 10


def test_it_names_the_options_that_were_picked_and_is_short(composed, tmp_path):
    overrides = ["task=measure", "model=tiny", "zero=stage2", "offload=cpu", "batch.micro=4"]
    assert check(composed, overrides, tmp_path) == {
        "defaults": [{"override /model": "tiny"}, {"override /zero": "stage2"}, {"override /offload": "cpu"}],
        "batch": {"micro": 4},
    }


def test_what_was_swept_is_written_even_if_it_is_the_default(composed):
    overrides = ["task=measure", "zero=stage2", "batch.micro=2", "data.max_length=64", "hardware=rtx4090"]
    kept = ["zero", "batch.micro", "data.max_length", "train.no_such", "no.such.key", "batch"]
    config = composed(*overrides)
    assert experiment(config, values_of(overrides), kept) == {
        "defaults": [{"override /zero": "stage2"}], "batch": {"micro": config.batch.micro}, "data": {"max_length": 64},
    }  # fmt: skip


def test_an_option_is_found_where_none_was_named(composed, tmp_path):
    content = check(composed, ["experiment=chatglm2_ptuning_v2"], tmp_path)
    options = {key.removeprefix("override /"): option for entry in content["defaults"] for key, option in entry.items()}
    assert options == {
        "model": "chatglm2_6b", "method": "ptuning_v2", "zero": "stage1", "precision": "fp16", "scheduler": "linear",
        "activation": "checkpoint",
    }  # fmt: skip
    assert not {"method", "zero"} & set(content)


def test_random_weights_are_for_measuring(composed):
    measured = composed("task=measure", "model=chatglm2_6b", "model.init=random")
    assert "model" not in experiment(measured, {})
    trained = composed("task=train", "model=chatglm2_6b", "model.init=random")
    assert experiment(trained, {})["model"]["init"] == "random"
    assert composed("model=tiny").model.init.value == "random"
