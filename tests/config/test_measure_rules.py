"""What ``task=measure`` makes of a configuration, and what is said to have no effect."""

import pytest

from glmexp.config import UserError, compose
from glmexp.config.choices import Init
from glmexp.config.measure import initialisation, random_tokens
from glmexp.config.rules import warnings, without_sweep

R, P = Init.random, Init.pretrained


@pytest.mark.parametrize(
    ("task", "overrides", "wanted"),
    [
        ("train", ["model=tiny"], R),
        ("measure", ["model=tiny"], R),
        ("train", ["model=chatglm2_6b"], P),
        ("check", ["model=chatglm2_6b"], P),
        ("measure", ["model=chatglm2_6b"], R),
        ("measure", ["model=glm4_9b"], R),
        ("measure", ["model=auto", "model.path=Qwen/Qwen3-8B"], R),
        ("measure", ["model=auto", "model.path=./here"], P),
        ("measure", ["model=auto", "model.path=/models/here"], P),
        ("measure", ["model=chatglm2_6b", "model.init=pretrained"], P),
        ("measure", ["model=auto", "model.path=./here", "model.init=random"], R),
        ("train", ["model=chatglm2_6b", "model.init=random"], R),
    ],
)
def test_where_the_weights_come_from(task, overrides, wanted):
    assert initialisation(compose([f"task={task}", *overrides]).config) is wanted


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ([], False),
        (["data=synthetic"], True),
        (["task=measure"], True),
        (["task=measure", "measure.samples=longest"], False),
        (["measure.samples=synthetic"], False),
    ],
)
def test_whether_a_data_file_is_read(overrides, wanted):
    assert random_tokens(compose(overrides).config) is wanted


def test_the_longest_samples_of_no_file_are_refused():
    with pytest.raises(UserError, match=r"measure\.samples=longest needs real samples.*data=instruct"):
        compose(["task=measure", "data=synthetic", "measure.samples=longest"])
    compose(["task=train", "data=synthetic", "measure.samples=longest"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["measure.steps=3"], ["measure.steps has no effect on train"]),
        (["task=measure", "measure.steps=3"], []),
        (["task=check", "measure.steps=3", "train.max_steps=2"], []),
        (
            ["task=measure", "train.max_steps=3"],
            ["train.max_steps has no effect", "measure.warmup_steps=3 and measure.steps=10"],
        ),
        (["task=measure", "train.epochs=1"], ["train.epochs has no effect"]),
        (["task=measure", "train.save_weights=true"], ["train.save_weights has no effect", "saves nothing"]),
        (["task=measure", "data.path=x.jsonl"], ["data.path has no effect", "measure.samples=longest"]),
        (["task=measure", "data.columns.prompt=question"], ["data.columns.prompt has no effect"]),
        (["task=measure", "data.path=x.jsonl", "measure.samples=longest"], []),
        (["task=measure", "data=synthetic"], []),
        (["task=measure", "data.max_length=64"], []),
        (["task=measure", "train.seed=1", "train.grad_clip=0.5"], []),
    ],
)
def test_what_has_no_effect_on_the_task_is_said(overrides, said):
    composed = compose(overrides)
    found = warnings(composed.config, composed.sources)
    assert len(found) == bool(said), found
    for words in said:
        assert words in found[0]
    assert warnings(composed.config) == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], []),
        (["sweep.name=x"], ["sweep.name has no effect without --multirun"]),
        (
            ["task=check", "sweep.slots=2", "sweep.name=x", "sweep.resume=true"],
            ["sweep.name, sweep.resume and sweep.slots have no effect without --multirun"],
        ),
    ],
)
def test_settings_of_a_sweep_have_no_effect_on_a_run(overrides, said):
    assert without_sweep(compose(overrides).sources) == said


def test_a_measurement_learns_nothing_that_could_be_wrong():
    quick = ["model=chatglm2_6b", "model.init=random", "method=ptuning_v2"]
    assert len(warnings(compose(quick).config)) == 2
    assert warnings(compose([*quick, "task=measure"]).config) == []
