"""Rules about the batch, the optimizer, the schedule, precision and the loss scaler."""

import pytest
from rule_cases import ABSENT, ADAMW, FP16, Case, found, holds, name

from glmexp.dsconfig.findings import Situation

STAGE = "zero_optimization.stage"
OFFLOAD = {"zero_optimization.offload_optimizer": {"device": "cpu"}}
TOTAL, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
WORLD4, HF = Situation(world_size=4), Situation(reader="hf")
FP32 = {"bf16": None}
DECAY = {**ADAMW, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000, "warmup_max_lr": 2e-5}}}
STATES = {"bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True}
PARAMS = "optimizer.params"

BATCH = [
    Case(MICRO, "contradiction", "error", {MICRO: ABSENT}, {}),
    Case(MICRO, "contradiction", "error", {MICRO: ABSENT, ACCUMULATION: ABSENT}, {MICRO: ABSENT, TOTAL: 8}),
    Case(TOTAL, "contradiction", "error", {TOTAL: 8, MICRO: 2, ACCUMULATION: 3}, {TOTAL: 12, MICRO: 2, ACCUMULATION: 3}),
    Case(
        TOTAL, "contradiction", "error", {TOTAL: 12, MICRO: 2, ACCUMULATION: 3}, {TOTAL: 24, MICRO: 2, ACCUMULATION: 3}, WORLD4
    ),
    Case(
        TOTAL, "contradiction", "error", {TOTAL: 7, MICRO: 2, ACCUMULATION: ABSENT}, {TOTAL: 6, MICRO: 2, ACCUMULATION: ABSENT}
    ),
    Case(
        TOTAL, "contradiction", "error", {TOTAL: 1, MICRO: 2, ACCUMULATION: ABSENT}, {TOTAL: 2, MICRO: 2, ACCUMULATION: ABSENT}
    ),
    Case(
        TOTAL, "contradiction", "error", {TOTAL: 7, MICRO: ABSENT, ACCUMULATION: 2}, {TOTAL: 8, MICRO: ABSENT, ACCUMULATION: 2}
    ),
    Case(TOTAL, "contradiction", "error", {TOTAL: 3, MICRO: ABSENT, ACCUMULATION: ABSENT}, {TOTAL: 4, MICRO: ABSENT}, WORLD4),
    Case(
        TOTAL,
        "contradiction",
        "error",
        {TOTAL: 8, MICRO: 2, ACCUMULATION: 1, STAGE: 3, "sequence_parallel_size": 2},
        {TOTAL: 4, MICRO: 2, ACCUMULATION: 1, STAGE: 3, "sequence_parallel_size": 2},
        Situation(world_size=4, splits_sequences=True),
    ),
]

OPTIMIZER = [
    Case("optimizer", "no_effect", "error", {"optimizer": {"params": {"lr": 1e-5}}}, ADAMW),
    Case("optimizer.type", "contradiction", "error", {"optimizer": {"type": "SGD"}}, {STAGE: 0, "optimizer": {"type": "SGD"}}),
    Case("optimizer.type", "value", "warning", {"optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": True}, ADAMW),
    Case("optimizer.type", "value", "warning", {"optimizer": {"type": "Lamb"}, "zero_allow_untested_optimizer": True}, ADAMW),
    Case(
        "optimizer.type",
        "value",
        "info",
        {"optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}}},
        {"optimizer": {"type": "Adam"}},
    ),
    Case(
        f"{PARAMS}.adam_w_mode",
        "no_effect",
        "error",
        {**ADAMW, f"{PARAMS}.adam_w_mode": False},
        {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
    ),
    Case(f"{PARAMS}.max_grad_norm", "misplaced", "error", {**ADAMW, f"{PARAMS}.max_grad_norm": 1.0}, ADAMW),
    Case(
        f"{PARAMS}.fused",
        "contradiction",
        "error",
        {**ADAMW, f"{PARAMS}.fused": True},
        {**ADAMW, f"{PARAMS}.fused": True, f"{PARAMS}.torch_adam": True},
    ),
    Case(
        f"{PARAMS}.bias_correction",
        "contradiction",
        "error",
        {**ADAMW, f"{PARAMS}.bias_correction": True, f"{PARAMS}.torch_adam": True},
        {**ADAMW, f"{PARAMS}.bias_correction": True},
    ),
    Case(
        f"{PARAMS}.amsgrad",
        "contradiction",
        "error",
        {**ADAMW, f"{PARAMS}.amsgrad": True},
        {**ADAMW, f"{PARAMS}.amsgrad": False},
    ),
    Case(
        f"{PARAMS}.fp32_optimizer_states",
        "no_effect",
        "error",
        {**ADAMW, f"{PARAMS}.fp32_optimizer_states": False},
        {**ADAMW, **OFFLOAD, f"{PARAMS}.fp32_optimizer_states": False},
    ),
    Case(
        f"{PARAMS}.fp32_optimizer_states",
        "contradiction",
        "error",
        {**ADAMW, **OFFLOAD, **STATES, f"{PARAMS}.fp32_optimizer_states": True},
        {**ADAMW, **OFFLOAD, **STATES},
    ),
    Case(
        "optimizer.legacy_fusion",
        "no_effect",
        "error",
        {**ADAMW, "optimizer.legacy_fusion": True},
        {**ADAMW, "optimizer.legacy_fusion": False},
    ),
]

SCHEDULER = [
    Case("scheduler", "no_effect", "error", {"scheduler": {"params": {"warmup_num_steps": 5}}}, DECAY),
    Case(
        "scheduler.params",
        "contradiction",
        "error",
        {"scheduler": {"type": "WarmupLR"}},
        {"scheduler": {"type": "WarmupLR", "params": {}}},
    ),
    Case(
        "scheduler.params.total_num_steps",
        "contradiction",
        "error",
        {**DECAY, "scheduler.params.total_num_steps": ABSENT},
        DECAY,
    ),
    Case(
        "scheduler.params.total_num_steps", "contradiction", "error", {**DECAY, "scheduler.params.total_num_steps": 500}, DECAY
    ),
    Case(
        "scheduler.params.cycle_max_lr",
        "contradiction",
        "error",
        {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.0}}},
        DECAY,
    ),
    Case(
        "scheduler.params.warmup_type",
        "value",
        "error",
        {**DECAY, "scheduler.params.warmup_type": "cosine"},
        {**DECAY, "scheduler.params.warmup_type": "linear"},
    ),
    Case(
        "scheduler.params.warmup_max_lr", "contradiction", "error", {**DECAY, "scheduler.params.warmup_max_lr": ABSENT}, DECAY
    ),
    Case(
        "scheduler.params.warmup_max_lr", "contradiction", "warning", {**DECAY, "scheduler.params.warmup_max_lr": 1e-5}, DECAY
    ),
    Case(
        "scheduler.type",
        "contradiction",
        "error",
        {"scheduler": {"type": "StepLR", "params": {"step_size": 5}}},
        {**FP32, STAGE: 0, "scheduler": {"type": "StepLR", "params": {"step_size": 5}}},
    ),
]

PRECISION = [
    Case("fp16.enabled", "contradiction", "error", {"fp16": {"enabled": True}}, {"fp16": {"enabled": False, "hysteresis": 0}}),
    Case("fp16.enabled", "value", "error", {**FP16, STAGE: 0}, {**FP16, STAGE: 1}),
    Case(
        "bf16.check_grad_overflow",
        "no_effect",
        "error",
        {STAGE: 3, "bf16.check_grad_overflow": False},
        {STAGE: 3, "bf16.check_grad_overflow": True},
    ),
    Case(
        "bf16.check_grad_overflow", "value", "warning", {"bf16.check_grad_overflow": False}, {"bf16.check_grad_overflow": True}
    ),
    Case(
        "bf16.immediate_grad_update",
        "no_effect",
        "error",
        {"bf16.immediate_grad_update": True},
        {"bf16.immediate_grad_update": False},
    ),
    Case(
        "bf16.bf16_optimizer_states",
        "contradiction",
        "error",
        {"bf16.bf16_optimizer_states": True},
        {"bf16.bf16_optimizer_states": True, "bf16.bf16_master_weights_and_grads": True},
    ),
    Case(
        "bf16.bf16_master_weights_and_grads",
        "contradiction",
        "error",
        {"bf16.bf16_master_weights_and_grads": True},
        {"bf16.bf16_master_weights_and_grads": True, **OFFLOAD, **ADAMW},
    ),
    Case(
        "bf16.bf16_master_weights_and_grads",
        "contradiction",
        "error",
        {STAGE: 0, "bf16.bf16_master_weights_and_grads": True},
        {},
    ),
    Case(
        "bf16.bf16_master_weights_and_grads",
        "contradiction",
        "error",
        {"bf16": {"enabled": False, "bf16_master_weights_and_grads": True}},
        {"bf16": {"enabled": False}},
    ),
    Case(
        "fp16.fp16_master_weights_and_grads",
        "contradiction",
        "error",
        {**FP16, "fp16.fp16_master_weights_and_grads": True},
        {**FP16, **OFFLOAD, **ADAMW, "fp16.fp16_master_weights_and_grads": True},
    ),
    Case(
        "data_types.grad_accum_dtype",
        "contradiction",
        "error",
        {STAGE: 0, "data_types": {"grad_accum_dtype": "fp32"}},
        {"data_types": {"grad_accum_dtype": "fp32"}},
    ),
    Case(
        "data_types.grad_accum_dtype",
        "value",
        "warning",
        {STAGE: 1, "data_types": {"grad_accum_dtype": "fp32"}},
        {STAGE: 1, "data_types": {"grad_accum_dtype": "bfloat16"}},
    ),
    Case(
        "data_types.grad_accum_dtype",
        "value",
        "warning",
        {**FP32, "data_types": {"grad_accum_dtype": "bf16"}},
        {**FP32, "data_types": {"grad_accum_dtype": "fp32"}},
    ),
    Case(
        "data_types.param_dtype",
        "contradiction",
        "error",
        {"data_types": {"param_dtype": "fp16"}},
        {"data_types": {"param_dtype": "bf16"}},
    ),
    Case(
        "torch_autocast.dtype",
        "contradiction",
        "warning",
        {"torch_autocast": {"enabled": True, "dtype": "float16"}},
        {**FP32, "torch_autocast": {"enabled": True, "dtype": "float16"}},
    ),
]

SCALER = [
    Case("fp16.hysteresis", "value", "error", {**FP16, "fp16.hysteresis": 0}, {**FP16, "fp16.hysteresis": 1}),
    Case(
        "fp16.initial_scale_power",
        "value",
        "error",
        {**FP16, "fp16.initial_scale_power": 32},
        {**FP16, "fp16.initial_scale_power": 16},
    ),
    Case(
        "fp16.initial_scale_power",
        "value",
        "warning",
        {**FP16, "fp16.initial_scale_power": 31},
        {**FP16, "fp16.initial_scale_power": 16},
    ),
    Case(
        "fp16.initial_scale_power",
        "value",
        "warning",
        {**FP16, "fp16.initial_scale_power": 17},
        {**FP16, "fp16.initial_scale_power": 1},
    ),
    Case(
        "fp16.initial_scale_power",
        "value",
        "error",
        {**FP16, "fp16.initial_scale_power": 0},
        {**FP16, "fp16.initial_scale_power": 4},
    ),
    Case(
        "fp16.min_loss_scale",
        "value",
        "error",
        {**FP16, "fp16.initial_scale_power": 4, "fp16.min_loss_scale": 32},
        {**FP16, "fp16.initial_scale_power": 4, "fp16.min_loss_scale": 8},
    ),
    Case(
        "fp16.loss_scale_window",
        "no_effect",
        "error",
        {**FP16, "fp16.loss_scale": 128, "fp16.loss_scale_window": 1000},
        {**FP16, "fp16.loss_scale": 128},
    ),
    Case(
        "fp16.loss_scale_window",
        "no_effect",
        "error",
        {**FP16, "fp16.loss_scale": 128.0, "fp16.loss_scale_window": 1000},
        {**FP16, "fp16.loss_scale": 0, "fp16.loss_scale_window": 1000},
    ),
    Case(
        "fp16.loss_scale",
        "contradiction",
        "error",
        {**FP16, STAGE: 1, "fp16.loss_scale": 8, "optimizer": {"type": "Lamb"}},
        {**FP16, STAGE: 1, "fp16.loss_scale": 8, **ADAMW},
    ),
    Case(
        "fp16.hysteresis",
        "value",
        "error",
        {"bf16": None, "fp16": {"enabled": "auto", "hysteresis": 0}},
        {"bf16": None, "fp16": {"hysteresis": 2, "enabled": False}},
        HF,
    ),
]


@pytest.mark.parametrize("case", BATCH + OPTIMIZER + SCHEDULER + PRECISION + SCALER, ids=name)
def test_rule(case):
    holds(case)


def test_a_missing_accumulation_is_what_accelerate_writes():
    assert (TOTAL, "contradiction", "error") in found(
        {TOTAL: 64, MICRO: 4, ACCUMULATION: ABSENT}, Situation("hf", world_size=4)
    )
    assert not found({TOTAL: 64, MICRO: 4, ACCUMULATION: ABSENT}, WORLD4), "DeepSpeed itself derives 4"


@pytest.mark.parametrize("key", [TOTAL, MICRO, ACCUMULATION])
def test_a_batch_that_the_trainer_fills_in_is_not_judged(key):
    batch = {TOTAL: 7, MICRO: 2, ACCUMULATION: 3, key: "auto"}
    assert {finding[1] for finding in found(batch, HF)} == {"auto"}
