import pytest

from glmexp.config import UserError, compose
from glmexp.config.rules import warnings


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["zero=stage2", "offload=cpu_all"], ["offload=cpu_all needs zero=stage3, got stage2"]),
        (["zero=stage0", "offload=cpu"], ["offload=cpu needs zero=stage1", "got stage0"]),
        (["zero=stage2", "offload=cpu", "offload.ratio=0.5"], ["offload.ratio", "zero=stage3"]),
        (["offload.pin_memory=true"], ["offload.pin_memory", "offload=cpu"]),
        (["zero=stage0", "precision=fp16"], ["zero=stage1"]),
        (["precision=bf16", "scaler.initial_scale_power=12"], ["scaler.initial_scale_power", "precision=fp16"]),
        (["scaler=static"], ["scaler", "precision=fp16"]),
        (["precision=fp16", "scaler=static", "scaler.hysteresis=2"], ["scaler.hysteresis", "scaler=dynamic"]),
        (["precision=fp16", "scaler.hysteresis=0"], ["scaler.hysteresis=0", "at least 1"]),
        (["precision=fp16", "scaler.initial_scale_power=32"], ["scaler.initial_scale_power=32", "at most 31"]),
        (["precision=fp16", "scaler.initial_scale_power=2", "scaler.min_loss_scale=8"], ["scaler.min_loss_scale=8", "2^2"]),
        (["precision.grad_accum_dtype=fp16"], ["precision.grad_accum_dtype=fp16", "bf16 or fp32"]),
        (["zero=stage0", "precision.grad_accum_dtype=fp32"], ["grad_accum_dtype", "zero=stage1"]),
        (["zero=stage2", "zero.stage3_prefetch_bucket_size=5e7"], ["zero.stage3_prefetch_bucket_size", "zero=stage3"]),
        (["zero=stage3", "zero.round_robin_gradients=true"], ["zero.round_robin_gradients", "zero=stage1 or zero=stage2"]),
        (["zero=stage0", "zero.overlap_comm=true"], ["zero.overlap_comm", "stage 0"]),
        (["zero.allgather_bucket_size=3"], ["even"]),
        (["method.rank=8"], ["method.rank", "method=lora"]),
        (["method=lora", "method.rank=null"], ["method.rank", "must be set"]),
        (["method=lora", "method.target_modules=[]"], ["method.target_modules"]),
        (["optimizer.betas=[0.9]"], ["optimizer.betas"]),
        (["optimizer.betas=[0.9,1.0]"], ["optimizer.betas"]),
        (["tracker.mode=online"], ["tracker.mode", "tracker=wandb"]),
        (["data=synthetic", "data.path=x.jsonl"], ["data.path", "data=synthetic"]),
        (["hardware.emulate=true"], ["hardware.emulate", "hardware=rtx4090"]),
    ],
)
def test_what_would_be_dropped_or_break_is_refused(overrides, words):
    with pytest.raises(UserError) as error:
        compose(overrides)
    for word in words:
        assert word in str(error.value)


def test_every_broken_rule_is_told_at_once():
    with pytest.raises(UserError) as error:
        compose(["batch.micro=0", "optimizer.lr=-1"])
    assert all(word in str(error.value) for word in ("batch.micro=0", "optimizer.lr=-1"))
    with pytest.raises(UserError) as error:
        compose(["zero=stage0", "offload=cpu", "precision=fp16"])
    assert all(word in str(error.value) for word in ("offload=cpu", "precision=fp16"))


def test_glm4_is_bf16_and_warns_in_fp16():
    assert warnings(compose(["model=glm4_9b"]).config) == []
    found = warnings(compose(["model=glm4_9b", "precision=fp16"]).config)
    assert len(found) == 1
    assert "precision=bf16" in found[0]


def test_a_card_without_emulation_is_said_to_have_no_effect():
    assert "hardware.emulate=true" in warnings(compose(["hardware=rtx4090"]).config)[0]
    assert warnings(compose(["hardware=rtx4090", "hardware.emulate=true"]).config) == []


def test_a_small_lr_for_a_prefix_and_a_language_without_effect_are_said():
    assert any("1e-2 to 2e-2" in line for line in warnings(compose(["model=chatglm2_6b", "method=ptuning_v2"]).config))
    assert warnings(compose(["model=chatglm2_6b", "method=ptuning_v2", "optimizer.lr=2e-2"]).config) == []
    assert any("lang=zh" in line for line in warnings(compose(["lang=zh"]).config))
