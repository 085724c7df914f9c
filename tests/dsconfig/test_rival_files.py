"""Configs after those that other projects ship: each yields its known defects and nothing false."""

import json
from pathlib import Path

import pytest

from glmexp.dsconfig.findings import Situation
from glmexp.dsconfig.lint import lint

FILES = Path(__file__).parent.parent / "golden" / "rival_files"

COMPILE = {("compile.disable", "unknown", "error"), ("compile.backend", "removed", "error")}
POWER_32 = ("fp16.initial_scale_power", "value", "error")
CLIPPING, ACCUMULATION = (
    (key, "no_effect", "warning") for key in ("gradient_clipping", "gradient_accumulation_steps")
)  # the Trainer's own values never reach DeepSpeed

DEFECTS = {
    "axolotl_zero1_torch_compile": ("hf", COMPILE | {POWER_32}),
    "axolotl_zero2_torch_compile": ("hf", COMPILE | {POWER_32}),
    "axolotl_zero2": ("hf", {POWER_32}),
    "llamafactory_z3_fp8": ("hf", {("comms_config", "unknown", "error"), ("monitor_config", "unknown", "error")}),
    "liucongg_zero2_no_offload": (
        "deepspeed",
        {
            ("zero_optimization.offload_param", "no_effect", "error"),
            ("zero_optimization.offload_param.device", "auto", "error"),
        },
    ),
    "liucongg_zero3_offload": (
        "deepspeed",
        {
            ("zero_optimization.offload_optimizer.device", "auto", "error"),
            ("zero_optimization.offload_param.device", "auto", "error"),
            ("scheduler.params.warmup_type", "value", "error"),
        },
    ),
    "chatglm2_deepspeed": ("hf", {CLIPPING, ACCUMULATION}),
    "chatglm3_zero3": ("hf", {CLIPPING, ACCUMULATION, ("bf16.enabled", "auto", "warning")}),
}
"""File -> its reader, and every error and warning."""


def read(name):
    return json.loads((FILES / f"{name}.json").read_text())


def accused(config, reader):
    found = lint(config, Situation(reader))
    return {(each.key, each.kind.value, each.severity.value) for each in found if each.severity.value != "info"}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_shipped_config_yields_its_defects_alone(name):
    reader, defects = DEFECTS[name]
    assert accused(read(name), reader) == defects


def test_each_file_is_looked_at():
    assert {path.stem for path in FILES.glob("*.json")} == set(DEFECTS)


@pytest.mark.parametrize(
    ("device", "reader", "named"), [("auto", "hf", False), ("cpu", "hf", True), ("none", "deepspeed", False)]
)
def test_parameters_offloaded_at_stage_2_are_named_if_anything_is_asked(device, reader, named):
    config = read("liucongg_zero2_no_offload")
    config["zero_optimization"]["offload_param"]["device"] = device
    assert (("zero_optimization.offload_param", "no_effect", "error") in accused(config, reader)) is named
