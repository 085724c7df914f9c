"""Rules of ``method``: each field has an effect or is refused, with the method that uses it."""

import pytest

from glmexp.config import UserError, compose
from glmexp.config.choices import Method
from glmexp.config.method import NEEDED, fields
from glmexp.config.rules import warnings

VALUES = {
    "rank": "8", "alpha": "16", "dropout": "0.1", "target_modules": "[q_proj]", "dora": "true", "rslora": "true",
    "quant_type": "nf4", "double_quant": "true", "last_layers": "1", "trainable": "[lm_head.weight]", "prefix_length": "4",
    "prefix_projection": "true",
}  # fmt: skip


@pytest.mark.parametrize("method", list(Method))
def test_the_option_of_each_method_has_exactly_its_fields(method):
    chosen = compose([f"method={method.value}"]).config.method
    assert chosen.name is method
    given = {field for field in VALUES if getattr(chosen, field) is not None}
    assert set(NEEDED[method]) <= given <= set(fields(method))


@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize("method", list(Method))
def test_a_field_of_another_method_is_refused_with_the_method_that_uses_it(method, field):
    overrides = [f"method={method.value}", f"method.{field}={VALUES[field]}"]
    if field in fields(method):
        assert getattr(compose(overrides).config.method, field) is not None
        return
    with pytest.raises(UserError) as error:
        compose(overrides)
    assert f"method.{field} has no effect with method={method.value}" in str(error.value)
    named = {other for other in Method if f"method={other.value}" in str(error.value).split(";")[1]}
    assert named >= {other for other in Method if field in fields(other)}
    assert method not in named


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method=lora", "method.rank=null"], ["method.rank must be set with method=lora"]),
        (["method=qlora", "method.quant_type=null"], ["method.quant_type must be set"]),
        (["method=qlora", "method.target_modules=[]"], ["train nothing", "null"]),
        (["method=freeze", "method.last_layers=null"], ["train nothing", "method.last_layers=2", "method.trainable"]),
        (["method=freeze", "method.last_layers=null", "method.trainable=[]"], ["train nothing"]),
        (["method=freeze", "method.last_layers=0"], ["method.last_layers=0", "at least 1"]),
        (["method=lora", "method.dropout=1"], ["method.dropout=1", "less than 1"]),
        (["method=qlora", "zero=stage3", "zero.zero_quantized_weights=true"], ["quantised already"]),
        (["method=qlora", "zero=stage3", "offload=nvme", "offload.nvme_path=/tmp"], ["offload=nvme", "offload=cpu_all"]),
    ],
)
def test_what_would_train_nothing_or_break_is_refused(overrides, words):
    with pytest.raises(UserError) as error:
        compose(overrides)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_what_fits_only_random_weights_is_warned_of():
    def warned(method):
        return any("on random weights" in line for line in warnings(compose(["model=tiny", f"method={method}"]).config))

    assert {method for method in Method if warned(method.value)} == {Method.lora, Method.qlora, Method.ptuning_v2}
