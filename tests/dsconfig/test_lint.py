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


def test_the_version_comes_from_the_installed_package_without_importing_it():
    described, installed = known_version()
    assert installed == described


@given(st.dictionaries(WORDS, JSON, max_size=8), st.sampled_from(["deepspeed", "hf"]), st.sampled_from([None, 1, 3]))
@settings(deadline=None, max_examples=100)
def test_any_json_gives_findings_and_no_exception(config, reader, world_size):
    found = lint(config, Situation(reader=reader, world_size=world_size))
    assert len(found) == len(set(found))
