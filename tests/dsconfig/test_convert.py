"""From a DeepSpeed JSON to overrides: which field each key finds, what is refused and what is noted."""

import contextlib

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.config import UserError, compose
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.convert import convert
from glmexp.dsconfig.convert.options import written
from glmexp.dsconfig.convert.retired import modernise

BASE = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ({}, ["zero=stage0", "offload=none", "precision=bf16"]),
        ({"zero_optimization": {"stage": 2}}, ["zero=stage2", "zero.reduce_bucket_size=500000000"]),
        ({"zero_optimization": {"stage": 2, "zero_quantized_weights": False}}, ["zero=stage2"]),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4, "zero_quantized_weights": True}},
            ["zero=stage3", "zero.zero_hpz_partition_size=4", "zero.zero_quantized_weights=true"],
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}},
            ["offload=cpu", "offload.pin_memory=false"],
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "fast_init": False, "ratio": 1.0}}},
            ["offload=cpu"],
        ),
        (
            {
                "zero_optimization": {
                    "stage": 3,
                    "offload_optimizer": {"device": "nvme", "nvme_path": "/fast disk/1", "pipeline_write": True},
                    "offload_param": {"device": "nvme", "nvme_path": "/fast disk/1", "buffer_size": 4},
                },
                "aio": {"queue_depth": 32, "use_gds": True},
            },
            [
                "offload=nvme",
                "offload.nvme_path='/fast disk/1'",
                "offload.pipeline_read=false",
                "offload.aio.queue_depth=32",
                "offload.buffer_size=4",
                "++deepspeed.aio.use_gds=true",
            ],
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
            ["offload=super_offload"],
        ),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": None}, ["batch.total=32", "batch.micro=null"]),
        ({"gradient_clipping": None}, ["train.grad_clip=1.0"]),
        ({"gradient_clipping": 0}, ["train.grad_clip=0"]),
        ({"bf16": {"enabled": False}}, ["precision=fp32"]),
        ({"bf16": None, "torch_autocast": {"enabled": True, "dtype": "float16"}}, ["precision.autocast_dtype=fp16"]),
        ({"bf16": None, "fp16": {"enabled": True, "loss_scale": 128}}, ["scaler=static", "scaler.loss_scale=128"]),
        ({"bf16": None, "fp16": {"enabled": True, "hysteresis": 4}}, ["scaler=dynamic", "scaler.hysteresis=4"]),
        ({"bf16": None, "fp16": {"enabled": True, "auto_cast": True}}, ["++deepspeed.fp16.auto_cast=true"]),
        ({"data_types": {"grad_accum_dtype": "float32"}}, ["precision.grad_accum_dtype=fp32"]),
        ({"optimizer": {"type": "Adam", "params": {"lr": 1e-5}}}, ["optimizer=adamw", "optimizer.weight_decay=0.0"]),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, ["optimizer=adamw", "optimizer.lr=0.001"]),
        (
            {"optimizer": {"type": "Muon", "params": {"lr": 1e-4, "muon_lr": 0.02, "ns_method": "standard"}}},
            [
                "optimizer=muon",
                "optimizer.lr=0.02",
                "optimizer.adam_lr=0.0001",
                "++deepspeed.optimizer.params.ns_method=standard",
            ],
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}}},
            ["scheduler=constant", "scheduler.warmup_steps=7"],
        ),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "cos_min_ratio": 0.1}}},
            ["scheduler=cosine", "scheduler.warmup_steps=1000", "scheduler.min_lr_ratio=0.1"],
        ),
        (
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 2e-5}},
                "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": "auto"}},
            },
            ["optimizer.lr=0.001", "scheduler=linear", "scheduler.min_lr_ratio=0.0"],
        ),
        ({"compile": {"deepcompile": True}}, ["kernels=deepcompile"]),
        ({"tensorboard": {"enabled": True, "output_path": "a b"}}, ["++deepspeed.tensorboard.output_path='a b'"]),
        ({"checkpoint": {}}, []),
        (
            {"data_types": {"keep_in_fp32_modules": ["norm", "it's"]}},
            ["++deepspeed.data_types.keep_in_fp32_modules=[norm,'it\\'s']"],
        ),
    ],
)
def test_each_key_finds_its_field(config, overrides):
    found = convert({**BASE, **config}).overrides
    assert set(overrides) <= set(found), found
    assert not [text for text in found if text.partition("=")[2].strip("'\"") == "auto"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"optimizer": {"type": "Lamb"}}, ["optimizer.type=Lamb", "AdamW", "Muon"]),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, ["adam_w_mode", "AdamW"]),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            ["offload_param.device=cpu", "offload_optimizer.device=none"],
        ),
        ({"tensorboard": {"job_name": "${oc.env:HOME}"}}, ["tensorboard.job_name", "${oc.env:HOME}"]),
        ({"zero_optimization": 7}, ["zero_optimization=7"]),
        ({"zero_optimization": {"stage": "two"}}, ["zero_optimization.stage='two'"]),
        ({"gradient_clipping": [1]}, ["gradient_clipping=[1]"]),
        ({"timers": {"through put": 1}}, ["'timers.through put'"]),
    ],
)
def test_what_cannot_be_said_is_refused_in_words(config, words):
    with pytest.raises(UserError) as error:
        convert({**BASE, **config})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"gradient_clipping": None}, "clips at 1.0 since 0.19.3"),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type=OneCycle has no counterpart"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}}, "DeepSpeed's WarmupLR does so logarithmically"),
        ({"scheduler": {"type": "WarmupLR", "params": {}}}, "does so logarithmically by default"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5}}},
            "optimizer.lr=3e-05 is the scheduler's warmup_max_lr",
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}},
            "scheduler.params.total_num_steps (train.max_steps or train.epochs)",
        ),
        ({"activation_checkpointing": {"partition_activations": True}}, "use activation=checkpoint"),
        ({"bf16": {"enabled": True, "check_grad_overflow": False}}, "always skips a step whose gradients overflow"),
        ({"optimizer": {"type": "AdamW", "params": {"bias_correction": False}}}, "torch's AdamW has no such parameter"),
        ({"bf16": {"enabled": "auto"}}, "bf16.enabled (precision.dtype)"),
        ({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"}}, "0.9 hidden_size squared"),
        (
            {"bf16": None, "fp16": {"enabled": "auto", "loss_scale_window": 100}},
            "the composed precision is used (bf16 as shipped); add precision=fp16 scaler=dynamic scaler.loss_scale_window=100",
        ),
        (
            {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale_window": 100}},
            "with precision=fp16 add scaler=dynamic scaler.loss_scale_window=100",
        ),
    ],
)
def test_what_is_not_carried_over_is_said(config, note):
    assert any(note in line for line in convert({**BASE, **config}).notes)


def test_retired_keys_are_what_means_the_same_today():
    config, lines = modernise(
        {
            "bfloat16": {"enabled": True},
            "fp32_allreduce": True,
            "zero_optimization": {
                "cpu_offload": True,
                "cpu_offload_use_pin_memory": False,
                "cpu_offload_param": False,
                "max_live_parameters": 5,
            },
        }
    )
    assert config == {
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
        "zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}, "stage3_max_live_parameters": 5},
    }
    assert len(lines) == 6
    assert modernise({"zero_optimization": True})[0] == {"zero_optimization": {"stage": 1}}
    with pytest.raises(UserError, match="two forms"):
        modernise({"bfloat16": {"enabled": True}, "bf16": {"enabled": True}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b_1", "K"]), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(JSON)
def test_any_value_comes_back_from_hydra_or_is_refused(value):
    try:
        text = f"+a={written(value, 'a')}"
    except UserError:
        return
    assert OverridesParser.create().parse_overrides([text])[0].value() == value


SECTION = ("zero_optimization", "optimizer", "fp16", "bf16", "scheduler", "aio", "data_types", "compile", "train_batch_size")
HOSTILE = st.dictionaries(st.sampled_from(SECTION), JSON | st.dictionaries(st.sampled_from(("stage", "type", "params")), JSON))


@settings(max_examples=80, deadline=None)
@given(HOSTILE)
def test_whatever_a_file_holds_there_is_no_traceback(config):
    with contextlib.suppress(UserError):
        convert(modernise(config)[0])


def test_remarks_are_no_keys_of_a_run():
    remarks = {"_comment": "see https://example.org", "// units: elements": "", "comment": ["two", "lines"]}
    assert convert({**BASE, **remarks}) == convert(BASE)


def test_a_sub_group_of_each_parameter():
    """sub_group_size 0 steps one parameter at a time; it is in files of other projects, and DeepSpeed trains with it."""
    found = convert({**BASE, "zero_optimization": {"stage": 3, "sub_group_size": 0}})
    built = build(compose(found.overrides).config, Machine(1, "cpu"))
    assert built["zero_optimization"]["sub_group_size"] == 0


@pytest.mark.parametrize("rise", ["linear", "log"])
def test_the_warm_up_is_noted_where_it_differs(rise):
    notes = convert({**BASE, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": rise}}}).notes
    assert any("warms up linearly" in line for line in notes) is (rise == "log")


def test_an_lr_of_auto_is_not_open_where_the_schedule_has_a_peak():
    schedule = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-5, "total_num_steps": 100}}
    adamw = {"type": "AdamW", "params": {"lr": "auto", "eps": "auto"}}
    found = convert({**BASE, "optimizer": adamw, "scheduler": schedule})
    assert "optimizer.lr=3e-05" in found.overrides
    assert found.auto == {"optimizer.params.eps"}
