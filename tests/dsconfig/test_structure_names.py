"""What is said of names that a section does not have: remarks, guesses that help, and none that mislead."""

import pytest
from test_structure import at, found, only


@pytest.mark.parametrize("name", ["_comment", "comment", "Comments", "__comment__", "//", "// note", "#", "$schema"])
def test_a_remark_at_the_top_level_asks_for_nothing(name):
    assert found({name: "two lines of advice"}) == [(name, "unknown", "info")]


@pytest.mark.parametrize("key", ["zero_optimization._comment", "fp16.comment", "optimizer.params._comment"])
def test_a_remark_breaks_a_checked_section_and_an_optimizer(key):
    assert found(at(key, "advice")) == [(key, "unknown", "error")]


def test_a_remark_is_no_guess_at_comet():
    assert found({"commet": {}}) == [("commet", "unknown", "error")]
    assert "did you mean comet?" in only({"commet": {}})
    assert "comet" not in only({"comment": "advice"})


GUESSES = {
    "weight-decay": "did you mean optimizer.params.weight_decay?",
    "partition-activations": "did you mean activation_checkpointing.partition_activations?",
    "Zero_Optimization": "did you mean zero_optimization?",
    "zero": "did you mean zero_optimization?",
    "zero_stage": "did you mean zero_optimization.stage?",
    "autotuning_config": "did you mean autotuning?",
    "zero_optimization.bucket_size": "did you mean zero_optimization.reduce_bucket_size?",
}


@pytest.mark.parametrize("key", GUESSES)
def test_a_guess_that_helps(key):
    assert GUESSES[key] in only(at(key, 1))


@pytest.mark.parametrize(
    "key",
    ["train-iters", "data-impl", "attention_config", "save-interval", "init_method", "fp16.fp16_scale_tolerance"],
)
def test_no_guess_where_nothing_is_close(key):
    assert only(at(key, 1)).endswith("leave it out")


def test_a_word_that_is_far_from_each_choice_gets_all_of_them():
    cosine = at("scheduler.params.warmup_type", "cosine")
    cosine["scheduler"]["params"]["total_num_steps"] = 10
    assert only(cosine).endswith("known: log, linear")
    cosine["scheduler"]["params"]["warmup_type"] = "linaer"
    assert only(cosine).endswith("did you mean linear?")


@pytest.mark.parametrize("name", ["cpu_offload", "cpu_offload_param", "stage3_gather_fp16_weights_on_model_save"])
def test_an_old_switch_that_is_off_is_not_told_to_be_turned_on(name):
    key = f"zero_optimization.{name}"
    assert found(at(key, False)) == [(key, "removed", "warning")]
    assert only(at(key, False)).endswith("leave it out")
    assert "write " in only(at(key, True))


def test_where_a_key_of_another_section_is_refused_and_where_it_is_ignored():
    assert "refuses it here; it belongs to fp16.hysteresis" in only(at("bf16.hysteresis", 2))
    assert "does not read it here; it belongs to zero_optimization.offload_optimizer" in only({"offload_optimizer": {}})
