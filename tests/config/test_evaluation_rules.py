"""What is refused and what is warned of in ``eval``."""

import pytest

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.config.rules import warnings

VALIDATES = "data.eval_share=0.1"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval.every=10"], ["eval.every=10 has no effect", "data.eval_path=FILE"]),
        (["eval.generate=true"], ["eval.generate=true has no effect", "data.eval_share"]),
        (["eval.top_p=0.9", VALIDATES], ["eval.top_p=0.9", "eval.temperature=0"]),
        (
            ["eval.generate=true", VALIDATES, "comm=ulysses", "zero=stage3", "kernels.attention=sdpa"],
            ["comm=ulysses", "evaluate"],
        ),
        (
            ["eval.micro=3", VALIDATES, "comm=ulysses", "zero=stage3", "kernels.attention=sdpa"],
            ["eval.micro=3", "comm=ulysses"],
        ),
        (["eval.micro=0"], ["eval.micro=0"]),
        (["eval.temperature=-1"], ["eval.temperature=-1"]),
        (["eval.metrics=rouge"], ["eval.metrics", "chatglm2_char"]),
    ],
)
def test_what_has_no_effect_or_contradicts_itself_is_refused(overrides, words):
    with pytest.raises(UserError) as refused:
        compose(overrides)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    "overrides",
    [
        [VALIDATES, "eval.every=10", "eval.generate=true", "eval.temperature=0.8", "eval.top_p=0.9"],
        ["task=measure", "eval.every=10"],
        ["eval.temperature=0.8", "eval.top_p=0.9"],
    ],
)
def test_what_fits_together_is_taken(overrides):
    compose(overrides)


def test_settings_of_answers_that_no_run_gives_are_told_of():
    composed = compose([VALIDATES, "eval.metrics=chatglm3_jieba", "eval.max_new_tokens=8"])
    (told,) = [line for line in warnings(composed.config, composed.sources) if "eval." in line]
    assert "eval.metrics, eval.max_new_tokens" in told
    assert "eval.generate=true" in told
    answered = compose([VALIDATES, "eval.metrics=chatglm3_jieba", "eval.generate=true"])
    assert not [line for line in warnings(answered.config, answered.sources) if "eval." in line]
