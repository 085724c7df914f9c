"""Each key of the DeepSpeed dict has a text in both languages; a row says who set the value and whether it does anything."""

import json
import re
from pathlib import Path

import pytest
from test_build import CASES

from glmexp.config import compose
from glmexp.config.files import leaves
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.explain import NO_TEXT, explain, knowledge, text_of
from glmexp.dsconfig.table import Key, walk

CPU, GPU, TWO_GPUS = Machine(1, "cpu"), Machine(1, "gpu"), Machine(2, "gpu")
CHINESE = re.compile("[一-鿿]")
GOLDEN = Path(__file__).parent.parent / "golden" / "dsconfig"

EMITTED = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer.type",
    *(
        f"optimizer.params.{key}"
        for key in ("lr", "betas", "eps", "weight_decay", "torch_adam", "fused", "momentum", "adam_lr")
    ),
    "data_types.grad_accum_dtype",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "sequence_parallel_size",
    *(f"bf16.{key}" for key in ("enabled", "check_grad_overflow", "bf16_master_weights_and_grads", "bf16_optimizer_states")),
    *(f"fp16.{key}" for key in ("enabled", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis")),
    "fp16.min_loss_scale",
    "torch_autocast.enabled",
    "torch_autocast.dtype",
    *(f"aio.{key}" for key in ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")),
    "compile.deepcompile",
]


def rows(overrides=(), machine=GPU):
    return {row.key: row for row in explain(compose(list(overrides)), machine)}


def test_every_key_that_glmexp_emits_has_its_own_text():
    goldens = [key for path in GOLDEN.glob("*.json") for key, _ in leaves(json.loads(path.read_text()))]
    assert len(set(goldens)) > 60
    assert not {key for key in (*EMITTED, *goldens) if key not in knowledge()}


@pytest.mark.parametrize("key", sorted(knowledge()))
def test_a_text_is_there_in_both_languages(key):
    text = knowledge()[key]
    assert set(text) == {"en", "zh"}
    assert len(text["en"].split()) > 2
    assert text["en"].endswith(".")
    assert not CHINESE.search(text["en"])
    assert len(CHINESE.findall(text["zh"])) >= 5
    assert text["zh"].endswith("。")


def test_no_text_is_about_a_key_that_deepspeed_does_not_have():
    known = {key for key, _ in walk()}
    assert not set(knowledge()) - known


def test_every_value_of_the_top_level_and_of_zero_has_a_text():
    values = [key for key, node in walk() if isinstance(node, Key) and (key.count(".") == 0 or key.startswith("zero_"))]
    assert len(values) > 80
    assert not [key for key in values if text_of(key) is NO_TEXT]


def test_a_key_without_a_text_takes_that_of_its_section():
    assert text_of("flops_profiler.detailed") == knowledge()["flops_profiler"]
    assert text_of("not_a_key_of_deepspeed") is NO_TEXT


@pytest.mark.parametrize(("name", "overrides", "machine"), CASES, ids=[case[0] for case in CASES])
def test_every_emitted_key_is_a_row_with_its_value_and_origin(name, overrides, machine):
    composed = compose(overrides)
    found = explain(composed, machine)
    assert [(row.key, row.value) for row in found] == list(leaves(build(composed.config, machine)))
    assert all(row.origin and row.place and row.text for row in found)
    assert all(bool(row.why) is not row.in_effect for row in found)


@pytest.mark.parametrize(
    ("overrides", "key", "origin", "place"),
    [
        ([], "zero_optimization.stage", "zero=stage2", "zero.stage"),
        (["zero=stage3"], "zero_optimization.stage", "command line: zero=stage3", "zero.stage"),
        (
            ["zero.overlap_comm=true"],
            "zero_optimization.overlap_comm",
            "command line: zero.overlap_comm=true",
            "zero.overlap_comm",
        ),
        (["experiment=seed_zero2_offload"], "train_batch_size", "experiment=seed_zero2_offload", "batch.total"),
        (["experiment=seed_zero2_offload"], "zero_optimization.offload_optimizer.device", "offload=cpu", "offload.device"),
        (["experiment=seed_zero2_offload"], "steps_per_print", "experiment=seed_zero2_offload", "deepspeed.steps_per_print"),
        (
            ["+deepspeed.wall_clock_breakdown=true"],
            "wall_clock_breakdown",
            "command line: +deepspeed.wall_clock_breakdown=true",
            "deepspeed.wall_clock_breakdown",
        ),
        (["+deepspeed.gradient_clipping=1.0"], "gradient_clipping", "glmexp's default", "train.grad_clip"),
        (["train.grad_clip=null"], "gradient_clipping", "command line: train.grad_clip=null", "train.grad_clip"),
        (
            ["batch.total=8", "batch.micro=2"],
            "gradient_accumulation_steps",
            "derived: batch.total / (batch.micro x ranks)",
            "batch.accumulation",
        ),
        (["batch.total=8", "batch.micro=2"], "train_batch_size", "command line: batch.total=8", "batch.total"),
        ([], "train_batch_size", "derived: batch.micro x batch.accumulation x ranks", "batch.total"),
        (
            ["batch.micro=null", "batch.total=8"],
            "train_micro_batch_size_per_gpu",
            "derived: batch.total / (batch.accumulation x ranks)",
            "batch.micro",
        ),
        ([], "data_types.grad_accum_dtype", "derived: precision.dtype (precision=bf16)", "precision.grad_accum_dtype"),
        (
            ["comm.communication_data_type=fp32"],
            "communication_data_type",
            "command line: comm.communication_data_type=fp32",
            "comm.communication_data_type",
        ),
        ([], "optimizer.params.lr", "derived: model.recommended_lr (model=tiny)", "optimizer.lr"),
        (["optimizer.lr=1e-4"], "optimizer.params.lr", "command line: optimizer.lr=1e-4", "optimizer.lr"),
        ([], "optimizer.params.torch_adam", "derived: offload.device=none (offload=none)", "offload.device"),
        (["precision=fp16"], "fp16.enabled", "command line: precision=fp16", "precision.dtype"),
        (["precision=fp16"], "fp16.hysteresis", "scaler=dynamic", "scaler.hysteresis"),
        (
            ["zero=stage3", "offload=cpu_all"],
            "zero_optimization.offload_param.device",
            "command line: offload=cpu_all",
            "offload.parameters",
        ),
    ],
)
def test_the_origin_is_who_set_the_value(overrides, key, origin, place):
    row = rows(overrides)[key]
    assert (row.origin, row.place) == (origin, place)


def test_the_seed_recipe_holds_keys_that_this_deepspeed_never_uses():
    for machine in (GPU, TWO_GPUS):
        found = rows(["experiment=seed_zero2_offload", "batch.total=32"], machine)
        unused = {row.key for row in found.values() if not row.in_effect} - {"communication_data_type"}
        unused -= {"zero_optimization.reduce_scatter"} if machine is GPU else set()
        assert unused == {
            "zero_optimization.allgather_partitions",
            "zero_optimization.allgather_bucket_size",
            "steps_per_print",
        }


@pytest.mark.parametrize(("name", "overrides", "machine"), CASES, ids=[case[0] for case in CASES])
def test_chinese_rows_are_chinese(name, overrides, machine):
    for device in ("gpu", "cpu"):
        found = explain(compose([*overrides, "lang=zh"]), Machine(machine.world_size, device))
        assert all(CHINESE.search(row.text) for row in found)
        assert [row for row in found if row.why and not CHINESE.search(row.why)] == []


@pytest.mark.parametrize(
    ("overrides", "key", "origin"),
    [
        ([], "gradient_clipping", "glmexp 的默认值"),
        (["zero=stage3"], "zero_optimization.stage", "命令行：zero=stage3"),
        ([], "train_batch_size", "推导：batch.micro × batch.accumulation × rank 数"),
        ([], "gradient_accumulation_steps", "推导：1（batch.accumulation=null）"),
        (["precision=bf16"], "data_types.grad_accum_dtype", "推导：precision.dtype（命令行：precision=bf16）"),
        ([], "bf16.check_grad_overflow", "推导：zero.stage=1 或 2（zero=stage2）"),
        ([], "optimizer.params.fused", "推导：device=gpu，offload.device=none（offload=none）"),
        # The user's own words stay as they are.
        (["+deepspeed.log_level=info"], "log_level", "命令行：+deepspeed.log_level=info"),
    ],
)
def test_origins_are_told_in_chinese(overrides, key, origin):
    assert rows([*overrides, "lang=zh"])[key].origin == origin


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_key_that_deepspeed_does_not_use_is_told_why(language):
    found = rows(["experiment=seed_zero2_offload", f"lang={language}"])
    why = found["zero_optimization.allgather_partitions"].why
    assert why.startswith("DeepSpeed 0.19.8 ")
    assert {"en": "in one collective", "zh": "更新后的参数总是一次收集完"}[language] in why


def test_a_key_that_acts_otherwise_than_its_name_says_is_told():
    muon = rows(["optimizer=muon"])["gradient_clipping"]
    assert muon.in_effect
    assert "Muon's update" in muon.how
    assert not rows([])["gradient_clipping"].how
    assert "不是梯度" in rows(["optimizer=muon", "lang=zh"])["gradient_clipping"].how


def test_glmexp_splits_the_sequences_itself():
    assert rows(["zero=stage3", "comm=ulysses"], TWO_GPUS)["sequence_parallel_size"].in_effect


def test_a_new_key_that_was_let_through_is_told_as_unknown():
    row = rows(["+deepspeed.key_of_tomorrow=1", "lint.allow=[key_of_tomorrow]"])["key_of_tomorrow"]
    assert "does not know" in row.text


def test_the_bucket_row_holds_its_bytes():
    assert rows(["zero.reduce_bucket_size=5e8"])["zero_optimization.reduce_bucket_size"].bytes == 1_000_000_000
    assert rows(["zero.reduce_bucket_size=5e7"])["zero_optimization.reduce_bucket_size"].bytes == 100_000_000
