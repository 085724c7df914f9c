"""The order of ``cheap_first``: every knob by itself."""

import pytest

from glmexp.config.choices import Attention, Dtype, Method, OffloadDevice, Order
from glmexp.sweep.search import select
from glmexp.sweep.search.cost import cheap_first
from tests.sweep.search.fakes import base, make_job

CHEAPER = {
    "fewer samples": ({"batch.micro": 1}, {"batch.micro": 2}),
    "shorter samples": ({"data.max_length": 128}, {"data.max_length": 512}),
    "higher stage": ({"zero.stage": 3}, {"zero.stage": 2}),
    "any stage": ({"zero.stage": 1}, {"zero.stage": 0}),
    "offload": ({"offload.device": OffloadDevice.cpu}, {"offload.device": OffloadDevice.none}),
    "more offload": (
        {"offload.device": OffloadDevice.cpu, "offload.parameters": True},
        {"offload.device": OffloadDevice.cpu, "offload.parameters": False},
    ),
    "checkpointing": ({"activation.checkpoint": True}, {"activation.checkpoint": False}),
    "lora": ({"method.name": Method.lora, "method.rank": 8}, {}),
    "smaller rank": ({"method.name": Method.lora, "method.rank": 8}, {"method.name": Method.lora, "method.rank": 64}),
    "qlora": (
        {"method.name": Method.qlora, "method.rank": 8, "method.double_quant": False},
        {"method.name": Method.lora, "method.rank": 8},
    ),
    "quantised constants": (
        {"method.name": Method.qlora, "method.double_quant": True},
        {"method.name": Method.qlora, "method.double_quant": False},
    ),
    "freeze": ({"method.name": Method.freeze, "method.last_layers": 2}, {}),
    "fewer layers": (
        {"method.name": Method.freeze, "method.last_layers": 2},
        {"method.name": Method.freeze, "method.last_layers": 4},
    ),
    "shorter prefix": (
        {"method.name": Method.ptuning_v2, "method.prefix_length": 64},
        {"method.name": Method.ptuning_v2, "method.prefix_length": 128},
    ),
    "bf16 states": ({"precision.bf16_optimizer_states": True}, {}),
    "bf16": ({"precision.dtype": Dtype.bf16}, {"precision.dtype": Dtype.fp32}),
    "fused attention": ({"kernels.attention": Attention.sdpa}, {"kernels.attention": Attention.eager}),
    "smaller bucket": ({"zero.reduce_bucket_size": 1e7}, {"zero.reduce_bucket_size": 1e8}),
}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("case", CHEAPER)
def test_what_needs_less_comes_first(case, ranks):
    less, more = (make_job(number, changes, ranks=ranks) for number, changes in enumerate(CHEAPER[case]))
    assert cheap_first([more, less]) == [less, more]


def test_equals_stay_in_their_order():
    jobs = [make_job(number, {"train.seed": number}) for number in (3, 1, 2)]
    assert cheap_first(jobs) == jobs


def test_on_the_cpu_offload_saves_nothing():
    jobs = [make_job(0, {}, "cpu"), make_job(1, {"offload.device": OffloadDevice.cpu}, "cpu")]
    assert cheap_first(jobs) == jobs


@pytest.mark.parametrize(("order", "first"), [(Order.grid, 8), (Order.cheap_first, 1)])
def test_the_order_is_a_choice(order, first, tmp_path):
    from dataclasses import replace

    jobs = [make_job(number, {"batch.micro": micro}) for number, micro in enumerate((8, 1, 4))]
    search = select(replace(base().sweep, order=order), jobs, None, tmp_path)
    assert search.ask().composed.config.batch.micro == first
