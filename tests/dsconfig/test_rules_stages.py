"""Keys of ``zero_optimization`` at each ZeRO stage: those that it does not read, and values that ask for nothing."""

import json
from pathlib import Path

import pytest
from rule_cases import ABSENT, found

from glmexp.dsconfig.findings import Situation
from glmexp.dsconfig.lint import lint

GOLDEN = Path(__file__).parent.parent / "golden" / "dsconfig"
ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"

ONLY_AT_3 = {
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 0,
    "stage3_model_persistence_threshold": 1_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_gather_16bit_weights_on_model_save": True,
    "stage3_module_granularity_threshold": 5,
    "stage3_use_all_reduce_for_fetch_params": True,
    "stage3_allgather_sequential": True,
    "max_live_parameters": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
    "zero_hpz_partition_size": 8,
    "zero_quantized_weights": True,
    "zero_quantized_nontrainable_weights": True,
    "zero_quantized_gradients": True,
    "offload_param": {"device": "cpu", "pin_memory": True},
    "leaf_module": {"classes": ["Experts"]},
    "memory_efficient_linear": True,
    "override_module_apply": True,
    "log_trace_cache_warnings": True,
    "enable_sanity_checks": True,
    "save_muon_momentum_buffer_in_memory": True,
}
NOT_AT_0 = {
    "reduce_bucket_size": 500_000_000,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "load_from_fp32_weights": True,
    "offload_optimizer": {"device": "cpu"},
    "zenflow": {"update_interval": 1},
}
ONLY_AT_1_AND_2 = {
    "round_robin_gradients": True,
    "parameter_alignment": True,
    "use_multi_rank_bucket_allreduce": True,
    "elastic_checkpoint": True,
}
OFF = {
    "zero_quantized_weights": False,
    "zero_hpz_partition_size": 1,
    "offload_param": {"device": "none", "pin_memory": True},
    "offload_optimizer": {"device": "none"},
    "stage3_gather_16bit_weights_on_model_save": False,
    "stage3_module_granularity_threshold": 0,
    "leaf_module": {"classes": []},
    "overlap_comm": False,
    "round_robin_gradients": False,
    "zenflow": None,
    "compute_grad_norm": True,
    "ignore_unused_parameters": True,
}
"""Values that ask for nothing, or for what happens anyway."""


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("key", ONLY_AT_3)
def test_a_key_of_stage_3_has_no_effect_below(key, stage):
    assert (f"{ZERO}.{key}", "no_effect", "error") in found({STAGE: stage, f"{ZERO}.{key}": ONLY_AT_3[key]})


@pytest.mark.parametrize("key", NOT_AT_0)
def test_a_key_of_zero_has_no_effect_at_stage_0(key):
    assert (f"{ZERO}.{key}", "no_effect", "error") in found({STAGE: 0, f"{ZERO}.{key}": NOT_AT_0[key]})
    assert (f"{ZERO}.{key}", "no_effect", "error") in found({STAGE: ABSENT, f"{ZERO}.{key}": NOT_AT_0[key]}), "0 unless set"


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("key", ONLY_AT_1_AND_2)
def test_a_key_of_stages_1_and_2_has_no_effect_elsewhere(key, stage):
    assert (f"{ZERO}.{key}", "no_effect", "error") in found({STAGE: stage, f"{ZERO}.{key}": ONLY_AT_1_AND_2[key]})


@pytest.mark.parametrize(("keys", "stages"), [(ONLY_AT_3, [3]), (NOT_AT_0, [1, 2, 3]), (ONLY_AT_1_AND_2, [1, 2])])
def test_a_key_has_effect_at_its_own_stages(keys, stages):
    for stage in stages:
        for key, value in keys.items():
            accused = found({STAGE: stage, f"{ZERO}.{key}": value})
            other = key in ("save_muon_momentum_buffer_in_memory", "zenflow")  # they need more than the stage
            assert other or not any(finding[:2] == (f"{ZERO}.{key}", "no_effect") for finding in accused)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("key", OFF)
def test_a_value_that_asks_for_nothing_is_fine_at_any_stage(key, stage):
    assert not found({STAGE: stage, f"{ZERO}.{key}": OFF[key]})


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_what_glmexp_emits_is_clean(path):
    found = lint(json.loads(path.read_text()), Situation(splits_sequences=True))
    assert not [finding for finding in found if finding.severity.value != "info"]
