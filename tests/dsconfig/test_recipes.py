"""The published recipes, key for key: what DeepSpeed gets on the published number of GPUs, and what the worker does."""

import json
from pathlib import Path

import pytest

from glmexp.config import UserError, compose
from glmexp.config.compose import conf_dir
from glmexp.dsconfig import Machine, build
from glmexp.train.schedule import lr_at


def adamw(lr, weight_decay=0.0, **implementation):
    return {
        "type": "AdamW",
        "params": {"lr": lr, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": weight_decay, **implementation},
    }


def batch(micro, accumulation, total):
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": total,
    }


def half(name):
    return {"data_types": {"grad_accum_dtype": name}, "communication_data_type": name}


ON_GPU = {"torch_adam": True, "fused": True}
BUCKETS = {
    "allgather_partitions": True,
    "allgather_bucket_size": 500000000,
    "reduce_scatter": True,
    "reduce_bucket_size": 500000000,
    "contiguous_gradients": True,
}
DYNAMIC = {
    "enabled": True,
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
LORA_ZERO2 = {
    **half("bf16"),
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True, "check_grad_overflow": True},
    "zero_optimization": {"stage": 2, **BUCKETS, "overlap_comm": True},
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
}
SFT_ZERO3 = {
    **half("bf16"),
    "gradient_clipping": 0.0,
    "optimizer": adamw(5e-5, **ON_GPU),
    "bf16": {"enabled": True},
    "zero_optimization": {
        **BUCKETS,
        "stage": 3,
        "overlap_comm": True,
        "sub_group_size": 1000000000,
        "reduce_bucket_size": 16777216,
        "stage3_prefetch_bucket_size": 15099494,
        "stage3_param_persistence_threshold": 40960,
        "stage3_max_live_parameters": 1000000000,
        "stage3_max_reuse_distance": 1000000000,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "zero_allow_untested_optimizer": True,
}

EMITTED = {
    "seed_zero2_offload": (
        1,
        {
            **batch(8, 4, 32),
            **half("fp16"),
            "gradient_clipping": 1.0,
            "optimizer": adamw(2e-5, weight_decay=0.01),
            "fp16": {**DYNAMIC, "loss_scale_window": 100},
            "zero_optimization": {
                "stage": 2,
                **BUCKETS,
                "overlap_comm": True,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
            },
            "steps_per_print": 50,
        },
    ),
    "chatglm2_full_zero2": (
        4,
        {
            **batch(4, 1, 16),
            **half("fp16"),
            "gradient_clipping": 0.0,
            "optimizer": adamw(1e-4, **ON_GPU),
            "fp16": DYNAMIC,
            "zero_optimization": {"stage": 2, **BUCKETS, "overlap_comm": False},
            "zero_allow_untested_optimizer": True,
        },
    ),
    "chatglm2_ptuning_v2": (
        1,
        {
            **batch(1, 16, 16),
            **half("fp16"),
            "gradient_clipping": 1.0,
            "optimizer": adamw(2e-2, **ON_GPU),
            "fp16": DYNAMIC,
            "zero_optimization": {
                "stage": 1,
                "reduce_bucket_size": 50000000,
                "overlap_comm": False,
                "contiguous_gradients": True,
                "reduce_scatter": True,
            },
        },
    ),
    "chatglm3_lora": (1, {**batch(4, 1, 4), **LORA_ZERO2, "optimizer": adamw(5e-5, **ON_GPU)}),
    "chatglm3_sft_zero3": (4, {**batch(4, 1, 16), **SFT_ZERO3}),
    "glm4_lora": (1, {**batch(1, 1, 1), **LORA_ZERO2, "optimizer": adamw(5e-4, **ON_GPU)}),
    "glm4_sft_zero3": (8, {**batch(1, 1, 8), **SFT_ZERO3}),
}
"""Recipe -> its number of GPUs and the dict that DeepSpeed gets there."""

TRAINING = {
    # model, method, max_steps, (max_length, max_source_length, max_target_length)
    "chatglm2_full_zero2": ("THUDM/chatglm2-6b", "full", 5000, (129, 64, 64)),
    "chatglm2_ptuning_v2": ("THUDM/chatglm2-6b", "ptuning_v2", 3000, (193, 64, 128)),
    "chatglm3_lora": ("THUDM/chatglm3-6b", "lora", 3000, (769, None, None)),
    "chatglm3_sft_zero3": ("THUDM/chatglm3-6b", "full", 3000, (769, None, None)),
    "glm4_lora": ("THUDM/glm-4-9b-chat", "lora", 3000, (1025, None, None)),
    "glm4_sft_zero3": ("THUDM/glm-4-9b-chat", "full", 3000, (1025, None, None)),
}


@pytest.mark.parametrize("name", EMITTED)
def test_deepspeed_gets_the_published_keys(name):
    gpus, expected = EMITTED[name]
    emitted = build(compose([f"experiment={name}"]).config, Machine(gpus, "gpu"))
    assert emitted == expected
    assert json.loads(json.dumps(emitted)) == emitted


def test_every_recipe_is_asserted():
    assert {path.stem for path in Path(conf_dir()).glob("experiment/*.yaml")} == set(EMITTED)


@pytest.mark.parametrize("name", TRAINING)
def test_the_worker_trains_as_the_official_script(name):
    config = compose([f"experiment={name}"]).config
    model, method, steps, lengths = TRAINING[name]
    assert (config.model.path, config.method.name.value, config.train.max_steps) == (model, method, steps)
    assert (config.data.max_length, config.data.max_source_length, config.data.max_target_length) == lengths
    assert config.data.turns.value == ("last" if name.startswith("chatglm2") else "all")
    assert config.activation.checkpoint
    assert config.train.seed == 42
    if method == "lora":
        assert (config.method.rank, config.method.alpha, config.method.dropout) == (8, 32, 0.1)
    if method == "ptuning_v2":
        assert (config.method.prefix_length, config.method.prefix_projection, config.method.dropout) == (128, False, 0.1)
    # The HF Trainer's linear schedule without warm-up: step k of n, from 1, runs at lr * (n - k + 1) / n.
    for step in (1, 2, steps // 2, steps):
        expected = config.optimizer.lr * (steps - step + 1) / steps
        assert lr_at(step, steps, config.optimizer.lr, config.scheduler) == pytest.approx(expected, rel=1e-6)


def test_the_seed_recipe_has_a_constant_lr():
    config = compose(["experiment=seed_zero2_offload"]).config
    assert {lr_at(step, 100, config.optimizer.lr, config.scheduler) for step in (1, 50, 100)} == {2e-5}


@pytest.mark.parametrize("name", EMITTED)
def test_a_recipe_takes_another_model_and_single_values(name):
    config = compose([f"experiment={name}", "model=tiny", "precision=bf16", "train.max_steps=2", "batch.accumulation=2"]).config
    assert (config.model.path, config.train.max_steps, config.batch.accumulation) == ("tiny", 2, 2)


def test_an_option_beside_the_values_of_a_recipe_is_refused():
    with pytest.raises(UserError) as error:
        compose(["experiment=seed_zero2_offload", "zero=stage3"])
    assert "experiment=seed_zero2_offload" in str(error.value)
    assert "zero=stage3" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", EMITTED)
def test_a_recipe_trains_the_tiny_model(glmexp, name):
    small = ("model=tiny", "precision=bf16", "launch.device=cpu", "train.max_steps=2", "data.max_length=64", "data.limit=32")
    ran = glmexp(f"experiment={name}", *small, env={"OMP_NUM_THREADS": "1"})
    assert ran.code == 0, ran.out + ran.err
    assert ran.json("result.json")["state"] == "complete"
    assert len(ran.rows()) == 2
