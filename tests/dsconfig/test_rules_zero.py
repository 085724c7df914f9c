"""Rules about ``zero_optimization``: names, flags, buffers, ZeRO++ and offloading."""

import pytest
from rule_cases import ABSENT, ADAMW, FP16, Case, found, holds, name

from glmexp.dsconfig.findings import Situation
from glmexp.dsconfig.lint import lint

ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"
OPTIMIZER, PARAM = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/nvme"}
ADAM = ADAMW
WORLD8 = Situation(world_size=8)

CASES = [
    # Two names of one key.
    Case(
        f"{ZERO}.prefetch_bucket_size",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.prefetch_bucket_size": 5, f"{ZERO}.stage3_prefetch_bucket_size": 5},
        {STAGE: 3, f"{ZERO}.prefetch_bucket_size": 5},
    ),
    Case(f"{ZERO}.cpu_offload", "contradiction", "error", {f"{ZERO}.cpu_offload": False, OPTIMIZER: CPU}, {OPTIMIZER: CPU}),
    # The gradient norm.
    Case(
        f"{ZERO}.compute_grad_norm",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.compute_grad_norm": False, "gradient_clipping": 0.0},
        {STAGE: 1, f"{ZERO}.compute_grad_norm": False, "gradient_clipping": 0.0},
    ),
    Case(
        f"{ZERO}.compute_grad_norm",
        "contradiction",
        "error",
        {f"{ZERO}.compute_grad_norm": False, "gradient_clipping": ABSENT},
        {f"{ZERO}.compute_grad_norm": False, "gradient_clipping": 0},
    ),
    Case(
        f"{ZERO}.compute_grad_norm",
        "contradiction",
        "error",
        {f"{ZERO}.compute_grad_norm": False, "gradient_clipping": 0.0, OPTIMIZER: CPU},
        {f"{ZERO}.compute_grad_norm": False, "gradient_clipping": 0.0, OPTIMIZER: {"device": "none"}},
    ),
    # Flags that need company.
    Case(f"{ZERO}.legacy_stage1", "removed", "error", {STAGE: 1, f"{ZERO}.legacy_stage1": True}, {STAGE: 1}),
    Case(
        f"{ZERO}.pipeline_loading_checkpoint",
        "contradiction",
        "error",
        {f"{ZERO}.pipeline_loading_checkpoint": True},
        {STAGE: 3, f"{ZERO}.pipeline_loading_checkpoint": True},
    ),
    Case(
        f"{ZERO}.ignore_unused_parameters",
        "no_effect",
        "error",
        {f"{ZERO}.ignore_unused_parameters": False},
        {f"{ZERO}.ignore_unused_parameters": False, OPTIMIZER: CPU},
    ),
    Case(
        f"{ZERO}.contiguous_gradients",
        "no_effect",
        "error",
        {f"{ZERO}.contiguous_gradients": False, OPTIMIZER: CPU},
        {f"{ZERO}.contiguous_gradients": False},
    ),
    Case(
        f"{ZERO}.save_muon_momentum_buffer_in_memory",
        "no_effect",
        "error",
        {STAGE: 3, f"{ZERO}.save_muon_momentum_buffer_in_memory": True, **ADAM, OPTIMIZER: NVME},
        {
            STAGE: 3,
            f"{ZERO}.save_muon_momentum_buffer_in_memory": True,
            f"{ZERO}.reduce_scatter": False,
            "optimizer": {"type": "Muon", "params": {"lr": 1e-3}},
            OPTIMIZER: NVME,
        },
    ),
    Case(
        f"{ZERO}.stage3_prefetch_bucket_size",
        "no_effect",
        "error",
        {STAGE: 3, f"{ZERO}.stage3_prefetch_bucket_size": 5, f"{ZERO}.stage3_allgather_sequential": True},
        {STAGE: 3, f"{ZERO}.stage3_allgather_sequential": True},
    ),
    # Buffers.
    Case(
        f"{ZERO}.reduce_bucket_size",
        "value",
        "warning",
        {f"{ZERO}.reduce_bucket_size": 600_000_000},
        {f"{ZERO}.reduce_bucket_size": 500_000_000, f"{ZERO}.overlap_comm": True},
    ),
    Case(
        f"{ZERO}.reduce_bucket_size",
        "value",
        "warning",
        {f"{ZERO}.reduce_bucket_size": 500_000_000, "bf16": None},
        {f"{ZERO}.reduce_bucket_size": 50_000_000, "bf16": None},
    ),
    Case(
        f"{ZERO}.stage3_prefetch_bucket_size",
        "value",
        "warning",
        {STAGE: 3, f"{ZERO}.stage3_prefetch_bucket_size": 1e9},
        {STAGE: 3, f"{ZERO}.stage3_prefetch_bucket_size": 5e8},
    ),
    # ZeRO++.
    Case(
        f"{ZERO}.zero_hpz_partition_size",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.zero_hpz_partition_size": 16},
        {STAGE: 3, f"{ZERO}.zero_hpz_partition_size": 8},
        WORLD8,
    ),
    Case(
        f"{ZERO}.zero_hpz_partition_size",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.zero_hpz_partition_size": 3},
        {STAGE: 3, f"{ZERO}.zero_hpz_partition_size": 4},
        WORLD8,
    ),
    Case(
        f"{ZERO}.zero_quantized_gradients",
        "no_effect",
        "warning",
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True, f"{ZERO}.zero_hpz_partition_size": 8},
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True, f"{ZERO}.zero_hpz_partition_size": 4},
        WORLD8,
    ),
    Case(
        f"{ZERO}.zero_quantized_gradients",
        "no_effect",
        "error",
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True},
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": False},
        Situation(world_size=1),
    ),
    Case(
        f"{ZERO}.zero_quantized_gradients",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True, f"{ZERO}.reduce_scatter": False},
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True, f"{ZERO}.reduce_scatter": True},
    ),
    Case(
        f"{ZERO}.zero_quantized_weights",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.zero_quantized_weights": True, "torch_autocast": {"enabled": True, "dtype": "bf16"}},
        {STAGE: 3, f"{ZERO}.zero_quantized_weights": True, "torch_autocast": {"enabled": False}},
    ),
    Case(
        f"{ZERO}.zero_quantized_gradients",
        "contradiction",
        "error",
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True, "optimizer": {"type": "Muon", "params": {"lr": 1e-3}}},
        {STAGE: 3, f"{ZERO}.zero_quantized_gradients": True, **ADAM},
    ),
    Case(
        f"{OPTIMIZER}.ratio",
        "no_effect",
        "error",
        {STAGE: 3, OPTIMIZER: {"ratio": 0.5}},
        {STAGE: 3, OPTIMIZER: {**CPU, "ratio": 0.5}},
    ),
    # Offloading.
    Case(f"{OPTIMIZER}.device", "no_effect", "error", {OPTIMIZER: NVME}, {STAGE: 3, OPTIMIZER: NVME}),
    Case(f"{OPTIMIZER}.nvme_path", "value", "error", {STAGE: 3, OPTIMIZER: {"device": "nvme"}}, {STAGE: 3, OPTIMIZER: NVME}),
    Case(f"{PARAM}.nvme_path", "value", "error", {STAGE: 3, PARAM: {"device": "nvme"}}, {STAGE: 3, PARAM: NVME}),
    Case(f"{OPTIMIZER}.nvme_path", "no_effect", "error", {OPTIMIZER: {**CPU, "nvme_path": "/nvme"}}, {OPTIMIZER: CPU}),
    Case(
        f"{OPTIMIZER}.pipeline_read",
        "no_effect",
        "error",
        {OPTIMIZER: {**CPU, "pipeline_read": True}},
        {OPTIMIZER: {**CPU, "pipeline_read": False, "nvme_path": None}},
    ),
    Case(
        f"{PARAM}.max_in_cpu",
        "no_effect",
        "error",
        {STAGE: 3, PARAM: {**CPU, "max_in_cpu": 1e9}},
        {STAGE: 3, PARAM: {**NVME, "max_in_cpu": 1e9}},
    ),
    Case("aio", "no_effect", "error", {"aio": {"queue_depth": 8}}, {STAGE: 3, OPTIMIZER: NVME, "aio": {"queue_depth": 8}}),
    Case(
        f"{OPTIMIZER}.ratio", "contradiction", "error", {OPTIMIZER: {**CPU, "ratio": 0.5}}, {OPTIMIZER: {**CPU, "ratio": 1.0}}
    ),
    Case(
        f"{OPTIMIZER}.ratio",
        "contradiction",
        "error",
        {STAGE: 3, OPTIMIZER: {**CPU, "ratio": 0.5}, "optimizer": {"type": "Lion", "params": {}}},
        {STAGE: 3, OPTIMIZER: {**CPU, "ratio": 0.5}, **ADAM},
    ),
    Case(
        f"{OPTIMIZER}.super_offload",
        "no_effect",
        "error",
        {OPTIMIZER: {**CPU, "super_offload": True}},
        {STAGE: 3, OPTIMIZER: {**CPU, "super_offload": True, "cpuadam_cores_perc": 0.8}},
    ),
    Case(
        f"{OPTIMIZER}.super_offload",
        "contradiction",
        "error",
        {STAGE: 3, OPTIMIZER: {"super_offload": True}},
        {STAGE: 3, OPTIMIZER: {"super_offload": False}},
    ),
    Case(
        f"{OPTIMIZER}.cpuadam_cores_perc",
        "no_effect",
        "error",
        {OPTIMIZER: {**CPU, "cpuadam_cores_perc": 0.8}},
        {OPTIMIZER: CPU},
    ),
    Case(
        "optimizer.params.torch_adam",
        "contradiction",
        "warning",
        {OPTIMIZER: CPU, **ADAM, "optimizer.params.torch_adam": True},
        {**ADAM, "optimizer.params.torch_adam": True},
    ),
    Case(
        "zero_force_ds_cpu_optimizer",
        "value",
        "warning",
        {OPTIMIZER: CPU, "zero_force_ds_cpu_optimizer": False},
        {OPTIMIZER: CPU, **ADAM, "zero_force_ds_cpu_optimizer": False},  # its own optimizer is the CPU Adam
    ),
    Case(
        "zero_force_ds_cpu_optimizer",
        "value",
        "warning",
        {OPTIMIZER: CPU, "zero_force_ds_cpu_optimizer": False},
        {"zero_force_ds_cpu_optimizer": False},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_rule(case):
    holds(case)


def test_an_odd_allgather_bucket_stops_the_start():
    key = f"{ZERO}.allgather_bucket_size"
    assert (key, "value", "error") in found({key: 3})
    assert found({key: 4}) == {(key, "no_effect", "info")}


def test_the_size_of_a_bucket_is_told_in_gib_and_its_double():
    config = {**FP16, "train_batch_size": 1, ZERO: {"stage": 2, "reduce_bucket_size": 1_000_000_000, "overlap_comm": True}}
    (finding,) = lint({key: value for key, value in config.items() if value}, Situation())
    assert "1.9 GiB" in finding.message
    assert "twice that with overlap_comm" in finding.message


def test_ranks_that_share_a_sample_reduce_in_a_dtype_of_their_own():
    """engine.py, _configure_distributed_model: fp32 unless seq_parallel_communication_data_type says otherwise."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "sequence_parallel_size": 2,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 500_000_000},
    }
    shares = Situation(splits_sequences=True)
    told = [finding.key for finding in lint(config, shares)]
    assert "zero_optimization.reduce_bucket_size" in told
    assert not lint({**config, "seq_parallel_communication_data_type": "bf16"}, shares)
