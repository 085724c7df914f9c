"""Rules about parallelism, compiling, sections that nothing turns on, the device and the Hugging Face Trainer."""

import pytest
from rule_cases import ABSENT, FP16, Case, found, holds, name

from glmexp.dsconfig.findings import Situation

STAGE = "zero_optimization.stage"
ZERO = "zero_optimization"
SIZE = "sequence_parallel_size"
CPU, HF = Situation(device="cpu"), Situation(reader="hf")
SHARING = Situation(splits_sequences=True)
WORLD4 = Situation(world_size=4, splits_sequences=True)

CASES = [
    # Sequence parallelism.
    Case(SIZE, "no_effect", "warning", {STAGE: 3, SIZE: 2}, {STAGE: 3, SIZE: 1}),
    Case(SIZE, "no_effect", "warning", {STAGE: 3, SIZE: 2}, {STAGE: 3, SIZE: 2, "data_parallel_size": 4}),
    Case(SIZE, "contradiction", "error", {STAGE: 3, SIZE: 3}, {STAGE: 3, SIZE: 2}, WORLD4),
    Case(SIZE, "contradiction", "error", {STAGE: 2, SIZE: 2}, {STAGE: 3, SIZE: 2}, SHARING),
    Case(
        "data_parallel_size",
        "contradiction",
        "error",
        {STAGE: 3, SIZE: 2, "data_parallel_size": 4},
        {STAGE: 3, SIZE: 2, "data_parallel_size": 2},
        WORLD4,
    ),
    Case(
        "communication_data_type",
        "no_effect",
        "error",
        {STAGE: 3, SIZE: 2, "communication_data_type": "bf16"},
        {STAGE: 3, SIZE: 2, "seq_parallel_communication_data_type": "bf16"},
        SHARING,
    ),
    # Tensor parallelism.
    Case(
        "tensor_parallel.autotp_size",
        "contradiction",
        "error",
        {"tensor_parallel": {"autotp_size": 3}},
        {"tensor_parallel": {"autotp_size": 2}},
        WORLD4,
    ),
    Case(
        "train_batch_size",
        "contradiction",
        "warning",
        {"train_batch_size": 4, "tensor_parallel": {"autotp_size": 2}},
        {"train_batch_size": 4, "tensor_parallel": {"autotp_size": 1}},
        WORLD4,
    ),
    # Compiling.
    Case(
        "compile.deepcompile",
        "no_effect",
        "error",
        {STAGE: 0, "compile": {"deepcompile": True}},
        {"compile": {"deepcompile": True}},
    ),
    Case(
        "compile.offload_activation",
        "no_effect",
        "error",
        {"compile": {"offload_activation": True}},
        {"compile": {"deepcompile": True, "offload_activation": True}},
    ),
    Case(
        "compile.offload_opt_states",
        "contradiction",
        "error",
        {
            STAGE: 3,
            "compile": {"deepcompile": True, "offload_opt_states": True},
            f"{ZERO}.offload_optimizer": {"device": "cpu"},
        },
        {STAGE: 3, "compile": {"deepcompile": True, "offload_opt_states": True}},
    ),
    Case(
        "compile.offload_parameters",
        "contradiction",
        "error",
        {STAGE: 3, "compile": {"deepcompile": True, "offload_opt_states": True, "offload_parameters": True}},
        {STAGE: 3, "compile": {"deepcompile": True, "offload_parameters": True}},
    ),
    *(
        Case(
            f"{ZERO}.{name}",
            "no_effect",
            "error",
            {STAGE: 3, "compile": {"deepcompile": True}, f"{ZERO}.{name}": value},
            {STAGE: 3, "compile": {"deepcompile": False}, f"{ZERO}.{name}": value},
        )
        for name, value in (("zero_hpz_partition_size", 4), ("zero_quantized_weights", True))
    ),
    Case(
        f"{ZERO}.offload_param.device",
        "contradiction",
        "error",
        {STAGE: 3, "compile": {"deepcompile": True}, f"{ZERO}.offload_param": {"device": "nvme", "nvme_path": "/nvme"}},
        {STAGE: 3, "compile": {"deepcompile": True}, f"{ZERO}.offload_param": {"device": "cpu"}},
    ),
    Case(
        "managed_gradient_accumulation",
        "contradiction",
        "error",
        {STAGE: 1, f"{ZERO}.overlap_comm": True, "managed_gradient_accumulation": False},
        {STAGE: 2, f"{ZERO}.overlap_comm": True, "managed_gradient_accumulation": False},
    ),
    Case(
        "managed_gradient_accumulation",
        "contradiction",
        "error",
        {"compile": {"deepcompile": True}, "managed_gradient_accumulation": False},
        {"compile": {"deepcompile": True}, "managed_gradient_accumulation": True},
    ),
    Case(
        "gradient_allreduce_op",
        "contradiction",
        "error",
        {"compile": {"deepcompile": True}, "gradient_allreduce_op": "sum"},
        {"compile": {"deepcompile": True}, "gradient_allreduce_op": "mean"},
    ),
    Case(
        "compile.autoep_non_moe",
        "contradiction",
        "error",
        {"compile": {"deepcompile": True, "autoep_non_moe": True}},
        {"compile": {"deepcompile": False, "autoep_non_moe": True}},
    ),
    # Sections.
    Case(
        "fp16",
        "no_effect",
        "error",
        {"bf16": None, "fp16": {"initial_scale_power": 16}},
        {"bf16": None, "fp16": {"enabled": False, "initial_scale_power": 16}},
    ),
    Case(
        "torch_autocast",
        "no_effect",
        "error",
        {"torch_autocast": {"dtype": "bf16"}},
        {"torch_autocast": {"dtype": "bf16", "enabled": False}},
    ),
    Case(
        "flops_profiler",
        "no_effect",
        "error",
        {"flops_profiler": {"profile_step": 5}},
        {"flops_profiler": {"enabled": True, "profile_step": 5}},
    ),
    Case(
        "activation_checkpointing",
        "no_effect",
        "info",
        {"activation_checkpointing": {"partition_activations": True}},
        {"activation_checkpointing": {"partition_activations": False}},
    ),
    # The device.
    Case("fp16.enabled", "value", "error", FP16, {}, CPU),
    Case(
        f"{ZERO}.zero_quantized_weights",
        "no_effect",
        "error",
        {STAGE: 3, f"{ZERO}.zero_quantized_weights": True},
        {STAGE: 3},
        CPU,
    ),
    Case(
        "compile.deepcompile",
        "no_effect",
        "error",
        {"compile": {"deepcompile": True}},
        {"compile": {"deepcompile": False}},
        CPU,
    ),
    Case(
        f"{ZERO}.offload_optimizer.super_offload",
        "no_effect",
        "error",
        {STAGE: 3, f"{ZERO}.offload_optimizer": {"device": "cpu", "super_offload": True}},
        {STAGE: 3, f"{ZERO}.offload_optimizer": {"device": "cpu"}},
        CPU,
    ),
    # The Hugging Face Trainer.
    Case("gradient_clipping", "no_effect", "warning", {"gradient_clipping": ABSENT}, {"gradient_clipping": 0.5}, HF),
    Case("gradient_accumulation_steps", "no_effect", "warning", {"gradient_accumulation_steps": ABSENT}, {}, HF),
    Case(ZERO, "contradiction", "error", {ZERO: None}, {ZERO: {"stage": 0}}, HF),
    Case("bf16.enabled", "auto", "warning", {"bf16": {"enabled": "auto"}}, {"bf16": {"enabled": True}}, HF),
    Case(
        "activation_checkpointing",
        "no_effect",
        "error",
        {"activation_checkpointing": {"cpu_checkpointing": True}},
        {"activation_checkpointing": {}},
        HF,
    ),
    Case("steps_per_print", "no_effect", "info", {"steps_per_print": 2000}, {}, HF),
    Case("steps_per_print", "no_effect", "info", {"steps_per_print": "auto"}, {}, HF),
    Case(
        "fp16.enabled",
        "value",
        "warning",
        {"bf16": None, "fp16": {"enabled": "auto"}, STAGE: 0},
        {"bf16": None, "fp16": {"enabled": False}, STAGE: 0},
        HF,
    ),
    Case("autotuning.enabled", "value", "warning", {"autotuning": {"enabled": True}}, {"autotuning": {"enabled": False}}),
]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_rule(case):
    holds(case)


def test_the_trainers_rules_are_the_trainers_alone():
    assert not found({"gradient_clipping": ABSENT, "steps_per_print": 5, "gradient_accumulation_steps": ABSENT})


def test_a_bf16_that_the_trainer_decides_on_is_fine_beside_an_fp16_that_it_decides_on():
    both = found({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0}}, HF)
    assert {(kind, severity) for _, kind, severity in both} == {("auto", "info")}


def test_a_stage_that_is_not_known_accuses_nobody():
    zero = {"stage": "auto", "stage3_max_live_parameters": 5, "round_robin_gradients": True, "offload_param": {"device": "cpu"}}
    assert {(kind, severity) for _, kind, severity in found({ZERO: zero}, HF)} == {("auto", "info")}


def test_what_the_trainer_makes_of_a_step_count_is_told_once():
    """Accelerate overwrites it: a number with a point, or a word, does no harm."""
    for value in (2000, 1e5, "auto", "often"):
        said = [each for each in found({"steps_per_print": value}, HF) if each[0] == "steps_per_print"]
        assert said == [("steps_per_print", "no_effect", "info")]
    assert found({"steps_per_print": "auto"}) == {("steps_per_print", "auto", "error")}


def test_a_stage_that_scales_the_loss_leaves_the_trainers_fp16_alone():
    auto = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    assert ("fp16.enabled", "value", "warning") in found({**auto, STAGE: 0}, HF)
    assert ("fp16.enabled", "value", "warning") not in found({**auto, STAGE: 1}, HF)
