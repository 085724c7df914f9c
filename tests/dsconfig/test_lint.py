"""The linter as a whole: findings about single keys and rules across keys, in the order of the config."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.dsconfig.findings import Situation
from glmexp.dsconfig.lint import known_version, lint
from tests.dsconfig.test_structure import JSON, WORDS

GOOD = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": False},
}


def keys(config):
    return [finding.key for finding in lint(config, Situation())]


def test_a_sound_config_has_no_findings():
    assert lint(GOOD, Situation()) == []


def test_both_kinds_in_the_order_of_the_config():
    config = {
        "zero_optimization": {"stage": 2, "stage3_max_live_parameters": 1e9, "allgather_partition": True},
        "gradient_clip": 1.0,
        "bf16": {"enabled": True, "enable": True},
        "train_micro_batch_size_per_gpu": 1,
    }
    assert keys(config) == [
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.allgather_partition",
        "gradient_clip",
        "bf16.enable",
    ]


@pytest.mark.parametrize("value", ["5e8", 0, True, "auto"])
def test_one_error_on_a_key_that_is_wrong_by_itself(value):
    assert keys({**GOOD, "zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": -1}}) == [
        "zero_optimization.stage3_prefetch_bucket_size"
    ]
    assert keys({**GOOD, "zero_optimization": {"stage": 2, "reduce_bucket_size": value}}) == [
        "zero_optimization.reduce_bucket_size"
    ]


@pytest.mark.parametrize(
    ("zero", "key"),
    [
        ({"zero_optimisation": {"stage": 2}}, "zero_optimisation"),
        ({"stage": 2, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "stage"),
        ({"zero_optimization": {"stge": 3, "offload_param": {"device": "cpu"}}}, "zero_optimization.stge"),
    ],
)
def test_nothing_is_said_of_a_stage_0_that_nobody_asked_for(zero, key):
    config = {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": True}}
    assert keys({**config, **zero}) == [key]
    assert keys({**config, "gradient_clip": 1}) == ["fp16.enabled", "gradient_clip"]


def test_an_old_name_beside_the_new_one_is_one_error():
    config = {**GOOD, "zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "cpu"}}}
    (finding,) = lint(config, Situation())
    assert (finding.key, finding.kind.value) == ("zero_optimization.cpu_offload", "contradiction")


@pytest.mark.parametrize(
    ("total", "micro", "accumulation", "ranks", "says"),
    [
        (
            32, 4, 8, 4,
            "32 is not micro batch 4 x accumulation 8 x 4 ranks = 128; "
            "set gradient_accumulation_steps 2, or train_batch_size 128",
        ),
        (32, 4, 8, 3, "32 is not micro batch 4 x accumulation 8 x 3 ranks = 96; set train_batch_size 96"),
        (32, 3, None, None, "32 is no multiple of micro batch 3; use 30 or 33"),
        (5, 4, None, 2, "5 is no multiple of 8 (micro batch 4 x 2 ranks); use 8"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_multiply_out(total, micro, accumulation, ranks, says):
    batch = {"train_batch_size": total, "train_micro_batch_size_per_gpu": micro}
    if accumulation:
        batch["gradient_accumulation_steps"] = accumulation
    rest = {key: value for key, value in GOOD.items() if key not in ("gradient_accumulation_steps", *batch)}
    assert [finding.message for finding in lint({**batch, **rest}, Situation(world_size=ranks))] == [says]


def test_the_version_comes_from_the_installed_package_without_importing_it():
    described, installed = known_version()
    assert installed == described


@given(st.dictionaries(WORDS, JSON, max_size=8), st.sampled_from(["deepspeed", "hf"]), st.sampled_from([None, 1, 3]))
@settings(deadline=None, max_examples=100)
def test_any_json_gives_findings_and_no_exception(config, reader, world_size):
    found = lint(config, Situation(reader=reader, world_size=world_size))
    assert len(found) == len(set(found))
