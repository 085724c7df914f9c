"""What is refused and what is warned of in ``checkpoint``, ``train.resume``, ``train.stop_after`` and ``eval.patience``."""

import pytest

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.config.rules import warnings

VALIDATES = "data.eval_share=0.1"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.stop_after=5", "train.max_steps=3"], ["train.stop_after=5", "train.max_steps=3"]),
        (["train.resume=''"], ["train.resume is empty", "auto"]),
        (["checkpoint.best=loss"], ["validation samples", "data.eval_path", "data.eval_share"]),
        (["checkpoint.best=los", VALIDATES], ["no such score", "did you mean loss?"]),
        (["checkpoint.best=rouge-l", VALIDATES], ["eval.generate=true"]),
        (["eval.patience=2", VALIDATES, "eval.every=1"], ["eval.patience=2", "checkpoint.best=loss"]),
        (["eval.patience=2", VALIDATES, "checkpoint.best=loss"], ["eval.patience=2", "eval.every=N"]),
        (["checkpoint.keep=3"], ["checkpoint.keep=3 has no effect", "checkpoint.every=N"]),
        (
            ["checkpoint.every=3", "offload=nvme", "offload.nvme_path=/tmp", "zero=stage3"],
            ["checkpoint.every=3", "offload=nvme", "offload=cpu"],
        ),
        (["train.resume=auto", "offload=cpu", "offload.ratio=0.5", "zero=stage3"], ["train.resume=auto", "offload.ratio=0.5"]),
    ],
)
def test_what_contradicts_itself_is_refused(overrides, words):
    with pytest.raises(UserError) as refused:
        compose(overrides)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.stop_after=3", "train.max_steps=3", "checkpoint.keep=3"],
        ["train.resume=auto", "checkpoint.keep=3", "checkpoint.every=5"],
        ["checkpoint.best=rouge-l", VALIDATES, "eval.generate=true", "eval.every=2", "eval.patience=3"],
        ["task=measure", "checkpoint.keep=3"],
    ],
)
def test_what_fits_together_is_taken(overrides):
    compose(overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.resume=auto"], "without checkpoint.every"),
        (["train.resume=auto", "task=check"], "train.resume=auto has no effect on check"),
        (["train.resume=auto", "task=measure"], "train.resume has no effect on measure"),
        (["checkpoint.every=5", "task=measure"], "checkpoint.every has no effect on measure"),
        (["eval.every=5", "task=measure"], "eval.every has no effect on measure"),
        (["train.stop_after=5", "task=measure"], "train.stop_after has no effect on measure"),
    ],
)
def test_what_has_no_effect_is_said(overrides, words):
    composed = compose(overrides)
    assert any(words in line for line in warnings(composed.config, composed.sources))


def test_nothing_is_said_of_a_run_that_saves_now_and_then():
    composed = compose(["train.resume=auto", "checkpoint.every=5"])
    assert warnings(composed.config, composed.sources) == []
