"""What refuses a run and what is only said, in the words of the command line."""

import pytest

from glmexp.config import UserError, compose
from glmexp.dsconfig import Machine
from glmexp.dsconfig.examine import examine
from glmexp.dsconfig.raw import OWNED

GPU, CPU = Machine(1, "gpu"), Machine(1, "cpu")


def refusal(*overrides, machine=GPU, **options):
    with pytest.raises(UserError) as raised:
        examine(compose(list(overrides)).config, machine, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["+deepspeed.gradient_cliping=0.5"], ["deepspeed.gradient_cliping", "gradient_clipping", "lint.allow"]),
        (["+deepspeed.zero_optimisation.stage=2"], ["deepspeed.zero_optimisation", "zero_optimization"]),
        (["+deepspeed.zero_optimization.offload_params.device=cpu"], ["offload_params", "offload_param"]),
        (["zero=stage3", "+deepspeed.zero_optimization.sub_group_sise=1e8"], ["sub_group_size"]),
        (["+deepspeed.elasticity.enabled=true"], ["deepspeed.elasticity", "gone since"]),
        (["+deepspeed.zero_optimization.stage3_prefetch_bucket_size=auto"], ["stage3_prefetch_bucket_size", "auto"]),
        (["+deepspeed.zero_optimization.ignore_unused_parameters=false"], ["deepspeed.zero_optimization.ignore_unused"]),
        (["+deepspeed.optimizer.params.max_grad_norm=1"], ["deepspeed.optimizer.params.max_grad_norm"]),
        (["+deepspeed.prescale_gradients=true"], ["deepspeed.prescale_gradients", "reduce_scatter"]),
        (["+deepspeed.zero_optimization={cpu_offload:true}"], ["zero_optimization.cpu_offload", "offload=cpu"]),
        (["+deepspeed.new.key=2", "lint.allow=[new.key]"], ["lint.allow=[new.key]", "lint.allow=[new] lets it through"]),
        (["+deepspeed.sequence_parallel_size=2"], ["deepspeed.sequence_parallel_size", "comm=ulysses"]),
        (["+deepspeed.zero_optimization.offload_optimizer.device=cpu"], ["offload_optimizer", "offload=cpu"]),
    ],
)  # fmt: skip
def test_a_raw_key_that_would_be_silently_wrong_is_refused(overrides, words):
    text = refusal(*overrides)
    assert all(word in text for word in words), text
    assert len(text.splitlines()) <= 5


@pytest.mark.parametrize("key", OWNED)
def test_what_the_worker_would_not_honour_is_refused_with_the_override_that_it_honours(key):
    value = {"sequence_parallel_size": "2", "managed_gradient_accumulation": "false", "gradient_allreduce_op": "sum"}.get(key)
    override = f"+deepspeed.{key}={value}" if value else f"+deepspeed.{key}={{enabled:true}}"
    precision = ["precision=fp32"] if key in ("bf16", "fp16", "bfloat16") else []
    text = refusal(override, *precision)
    assert f"deepspeed.{key}: would not do what it says: {OWNED[key]}" in text


@pytest.mark.parametrize("override", ["+deepspeed.fp16.enabled=false", "+deepspeed.hybrid_engine.enabled=false"])
def test_a_raw_key_that_asks_for_nothing_passes(override):
    examine(compose([override]).config, GPU)


def test_lint_allow_lets_a_new_key_through_and_says_so():
    ds_config, warnings = examine(compose(["+deepspeed.new_key=3", "lint.allow=[new_key]"]).config, GPU)
    assert ds_config["new_key"] == 3
    assert warnings == ["deepspeed.new_key is let through by lint.allow: glmexp does not know what it does"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["lint.allow=[x]"], ["lint.allow=[x]", "no such key is set"]),
        (["lint.allow=[steps_per_print]", "+deepspeed.steps_per_print=5"], ["lint.allow=[steps_per_print]", "knows this key"]),
        (["lint.allow=[elasticity]", "+deepspeed.elasticity={}"], ["deepspeed.elasticity", "gone since"]),
        (["lint.allow=[new_kay]", "+deepspeed.new_key=3"], ["lint.allow=[new_kay]"]),
    ],
)
def test_lint_allow_is_no_way_around_the_rules(overrides, words):
    text = refusal(*overrides)
    assert all(word in text for word in words), text


def test_dangerous_values_are_warned_of_in_the_users_words():
    _, warnings = examine(
        compose(["precision=fp16", "scaler.initial_scale_power=24", "zero.reduce_bucket_size=1e9"]).config, GPU
    )
    assert {line.split(":")[0] for line in warnings} == {"scaler.initial_scale_power", "zero.reduce_bucket_size"}


def test_what_a_probed_device_lacks_is_no_error_of_the_config():
    overrides = ["zero=stage3", "+deepspeed.zero_optimization.zero_quantized_weights=true"]
    assert "zero_quantized_weights" in refusal(*overrides, machine=CPU)
    examine(compose(overrides).config, CPU, probed=True)
