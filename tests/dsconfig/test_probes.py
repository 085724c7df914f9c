"""36 wrong configs, each named by key and kind, and two right ones; and what DeepSpeed says about each: mostly nothing."""

import contextlib
import os
from typing import NamedTuple

import pytest
from rule_cases import ADAMW, FP16, config

from glmexp.dsconfig.findings import Situation
from glmexp.dsconfig.lint import lint

ZERO, STAGE = "zero_optimization", "zero_optimization.stage"
OPTIMIZER, PARAM = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
DECAY = {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000, "warmup_max_lr": 1e-5}}


class Probe(NamedTuple):
    key: str
    kind: str
    changes: dict
    raised: str | None = None
    """What DeepSpeed's parser raises; None: it takes the config without a word."""


SILENT = [
    Probe("gradient_clip", "unknown", {"gradient_clip": 1.0}),
    Probe("zero_optimisation", "unknown", {ZERO: None, "zero_optimisation": {"stage": 2}}),
    Probe(PARAM, "no_effect", {PARAM: {"device": "cpu"}}),
    Probe(OPTIMIZER, "no_effect", {STAGE: 0, OPTIMIZER: {"device": "cpu"}}),
    Probe(f"{OPTIMIZER}.device", "auto", {OPTIMIZER: {"device": "auto"}}),
    Probe(f"{OPTIMIZER}.super_offload", "no_effect", {OPTIMIZER: {"device": "cpu", "super_offload": True}}),
    Probe(f"{OPTIMIZER}.nvme_path", "value", {STAGE: 3, OPTIMIZER: {"device": "nvme"}}),
    Probe(f"{ZERO}.stage3_max_live_parameters", "no_effect", {f"{ZERO}.stage3_max_live_parameters": 1_000_000_000}),
    Probe(f"{ZERO}.zero_hpz_partition_size", "no_effect", {f"{ZERO}.zero_hpz_partition_size": 8}),
    Probe(f"{ZERO}.zero_quantized_weights", "no_effect", {f"{ZERO}.zero_quantized_weights": True}),
    Probe("fp16.initial_scale_power", "value", {**FP16, "fp16.initial_scale_power": 32}),
    Probe("fp16.loss_scale_window", "no_effect", {**FP16, "fp16.loss_scale": 128, "fp16.loss_scale_window": 500}),
    Probe(
        "activation_checkpointing.partition_activation", "unknown", {"activation_checkpointing": {"partition_activation": True}}
    ),
    Probe("flops_profiler.profile_steps", "unknown", {"flops_profiler": {"enabled": True, "profile_steps": 5}}),
    Probe("checkpoint.tag_validate", "unknown", {"checkpoint": {"tag_validate": "Fail"}}),
    Probe("aio.blocksize", "unknown", {"aio": {"blocksize": 1048576}}),
    Probe("data_types.grad_accumulation_dtype", "unknown", {"data_types": {"grad_accumulation_dtype": "fp32"}}),
    Probe("scheduler.typ", "unknown", {"scheduler": {"typ": "WarmupLR", "params": {}}}),
    Probe("scheduler.params.warmup_steps", "unknown", {"scheduler": DECAY, "scheduler.params.warmup_steps": 100}),
    Probe("optimizer.params.learning_rate", "unknown", {**ADAMW, "optimizer.params.learning_rate": 1e-5}),
    Probe(f"{ZERO}.reduce_bucket_size", "auto", {f"{ZERO}.reduce_bucket_size": "auto"}),
    Probe("gradient_clipping", "auto", {"gradient_clipping": "auto"}),
]

RAISED = [
    Probe(f"{ZERO}.reduce_bucket", "unknown", {f"{ZERO}.reduce_bucket": 5}, "ValidationError"),
    Probe(f"{OPTIMIZER}.pin_mem", "unknown", {OPTIMIZER: {"device": "cpu", "pin_mem": True}}, "ValidationError"),
    Probe(f"{PARAM}.fast_init", "misplaced", {STAGE: 3, PARAM: {"device": "cpu", "fast_init": True}}, "ValidationError"),
    Probe("fp16.loss_scale_windows", "unknown", {**FP16, "fp16.loss_scale_windows": 100}, "ValidationError"),
    Probe("bf16.loss_scale", "misplaced", {"bf16.loss_scale": 0}, "ValidationError"),
    Probe("comms_logger.verbos", "unknown", {"comms_logger": {"enabled": True, "verbos": True}}, "ValidationError"),
    Probe(f"{OPTIMIZER}.ratio", "contradiction", {OPTIMIZER: {"device": "cpu", "ratio": 0.5}}, "ValidationError"),
    Probe("fp16.enabled", "contradiction", {"fp16": {"enabled": True}}, "AssertionError"),
    Probe("train_batch_size", "contradiction", {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}, "AssertionError"),
    Probe("train_micro_batch_size_per_gpu", "auto", {"train_micro_batch_size_per_gpu": "auto"}, "TypeError"),
    Probe("elasticity", "removed", {"elasticity": {"enabled": False}}, "DeepSpeedConfigError"),
    Probe("amp", "removed", {"amp": {}}, "DeepSpeedConfigError"),
    Probe("sparse_attention", "removed", {"sparse_attention": {"mode": "fixed"}}, "DeepSpeedConfigError"),
    Probe(f"{ZERO}.mics_shard_size", "removed", {STAGE: 3, f"{ZERO}.mics_shard_size": 8}, "DeepSpeedConfigError"),
]

RIGHT = {
    "zero2_offload": {
        **FP16,
        **ADAMW,
        "train_batch_size": 32,
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": None,
        "steps_per_print": 50,
        "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 100, "initial_scale_power": 16, "hysteresis": 2},
        ZERO: {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "none"},
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 500_000_000,
            "contiguous_gradients": True,
        },
    },
    "zero3": {
        **ADAMW,
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"total_num_steps": 5000, "warmup_num_steps": 100, "warmup_max_lr": 2e-5},
        },
        ZERO: {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1e9,
            "stage3_max_live_parameters": 1e9,
            "stage3_prefetch_bucket_size": 5e7,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "wall_clock_breakdown": False,
    },
}


@pytest.fixture(scope="module")
def parse():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    def parsed(values):
        with contextlib.redirect_stdout(None):
            return DeepSpeedConfig(values)

    return parsed


def test_there_are_36_of_which_deepspeed_takes_22():
    assert (len(SILENT), len(RAISED)) == (22, 14)


@pytest.mark.parametrize("probe", SILENT + RAISED, ids=lambda probe: f"{probe.key} {probe.kind}")
def test_each_wrong_config_is_named_by_key_and_kind(probe):
    errors = [found for found in lint(config(probe.changes), Situation()) if found.severity.value == "error"]
    assert (probe.key, probe.kind) in {(found.key, found.kind.value) for found in errors}


@pytest.mark.parametrize("probe", SILENT + RAISED, ids=lambda probe: f"{probe.key} {probe.kind}")
def test_what_deepspeed_says_of_it(probe, parse):
    raised = None
    try:
        parse(config(probe.changes))
    except Exception as refusal:
        raised = type(refusal).__name__
    assert raised == probe.raised


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_a_right_config(name, parse):
    assert not lint(config(RIGHT[name]), Situation(world_size=1))
    parse(config(RIGHT[name]))


def test_an_auto_that_deepspeed_does_not_drop_stays_a_word(parse):
    assert parse(config({"gradient_clipping": "auto"})).gradient_clipping == "auto"
    assert parse(config({f"{ZERO}.reduce_bucket_size": "auto"})).zero_config.reduce_bucket_size == 500_000_000
