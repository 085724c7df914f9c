"""Errors that Hydra and OmegaConf raise late, vaguely or as another class, in the user's words."""

import pytest

from glmexp.config import UserError, compose


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("deepspeed=null", ["deepspeed: null is no value here", "leave it out"]),
        ("lint.allow=null", ["lint.allow: null is no value here"]),
        ("lint.allow=foo", ["lint.allow: must be a list"]),
        ("optimizer.betas=0.9", ["optimizer.betas: must be a list"]),
        ("lint.allow=[[a]]", ["lint.allow=[['a']]", "plain value"]),
        ("optimizer.betas=[[0.9],0.99]", ["optimizer.betas", "plain value"]),
        ("optimizer.betas=[{a:1},0.99]", ["optimizer.betas", "plain value"]),
        ("tracker.tags=[[a]]", ["tracker.tags", "plain value"]),
    ],
)
def test_a_value_of_the_wrong_shape(override, words):
    with pytest.raises(UserError) as raised:
        compose([override])
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("deepspeed:\n  steps_per_print: 3", ["experiment/mine.yaml", "# @package _global_"]),
        ("\ufeff# @package _global_\ndeepspeed:\n  steps_per_print: 3", ["# @package _global_", "byte order mark"]),
        ("# @package _global_\ndeepspeed: {null: 3}", ["deepspeed", "key type"]),
        ("# @package _global_\nzero: stage3", ["- override /GROUP: stage3"]),
        ("# @package _global_\nlint: null", ["lint: null is no value here"]),
    ],
)
def test_an_experiment_that_is_wrong_as_a_whole(content, words, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        compose(["experiment=mine"], config_dir=str(tmp_path))
    assert all(word in str(raised.value) for word in words), raised.value
