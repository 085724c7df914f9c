"""Rules of the newer machinery, each by the override that it refuses."""

import pytest

from glmexp.config import UserError, compose
from glmexp.config.rules import warnings
from glmexp.dsconfig import Machine, build

NVME = ["zero=stage3", "offload=nvme", "offload.nvme_path=/nvme"]
ZENFLOW = ["offload=zenflow", "batch.accumulation=4"]
SUPER = ["zero=stage3", "offload=super_offload"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["zero=stage0", "precision=bf16_states"], ["precision=bf16_states needs zero=stage1", "got stage0"]),
        (["precision.bf16_optimizer_states=true"], ["needs precision.bf16_master_weights_and_grads=true"]),
        (["precision.bf16_master_weights_and_grads=true"], ["precision.bf16_optimizer_states=true, or offload=cpu"]),
        (
            ["precision=fp16", "precision.bf16_optimizer_states=true"],
            ["no effect with precision=fp16", "precision=bf16_states"],
        ),
        (
            ["precision=bf16_states", "precision.grad_accum_dtype=fp32", "zero=stage1"],
            ["grad_accum_dtype=fp32", "stage2 or stage3"],
        ),
        (["precision=bf16_states", "offload=cpu", "optimizer=muon"], ["offload=cpu needs optimizer=adamw"]),
        (["precision=bf16_states", *ZENFLOW], ["precision=bf16_states", "offload=zenflow", "precision=bf16"]),
        (
            ["precision.autocast_dtype=bf16"],
            ["precision.autocast_dtype has no effect with precision=bf16", "precision=autocast"],
        ),
        (["precision=autocast", "precision.autocast_dtype=fp16"], ["precision.autocast_dtype=fp16", "precision=fp16"]),
        (["precision=autocast", "precision.autocast_dtype=fp32"], ["precision.autocast_dtype=fp32", "precision=fp32"]),
        (["precision=autocast", "comm.communication_data_type=bf16"], ["comm.communication_data_type", "precision=autocast"]),
        (["zero=stage3_zeropp", "precision=autocast"], ["zero.zero_quantized_weights=true", "precision=bf16"]),
        (["zero.zero_hpz_partition_size=2"], ["zero.zero_hpz_partition_size has no effect at stage 2", "zero=stage3"]),
        (["zero.zero_quantized_weights=true"], ["zero.zero_quantized_weights", "zero=stage3"]),
        (["zero=stage3", "zero.zero_quantized_nontrainable_weights=true"], ["method=full", "method=lora"]),
        (["offload=nvme", "offload.nvme_path=/nvme"], ["offload=nvme needs zero=stage3, got stage2"]),
        ([*NVME, "offload.parameters=false", "zero=stage2"], ["offload=nvme needs zero=stage3, got stage2", "host memory"]),
        (["zero=stage3", "offload=nvme"], ["offload.nvme_path"]),
        (["zero=stage3", "offload=nvme", "offload.nvme_path=''"], ["offload.nvme_path must be set"]),
        ([*NVME, "offload.parameters=false"], ["offload.max_in_cpu has no effect with offload.parameters=false"]),
        (["offload=cpu", "offload.nvme_path=/nvme"], ["offload.nvme_path has no effect with offload=cpu", "offload=nvme"]),
        (["offload=cpu", "offload.aio.queue_depth=8"], ["offload.aio.queue_depth has no effect", "offload=nvme"]),
        (["offload.zenflow.topk_ratio=0.1"], ["offload.zenflow.topk_ratio has no effect with offload=none", "offload=zenflow"]),
        (["offload=cpu", "offload.zenflow.topk_ratio=0.1"], ["offload.zenflow.select_strategy must be set"]),
        (["offload=cpu", "offload.cpuadam_cores_perc=0.5"], ["offload.cpuadam_cores_perc", "offload=super_offload"]),
        (["offload.super_offload=true"], ["offload.super_offload has no effect with offload=none"]),
        ([*ZENFLOW, "zero=stage3"], ["offload=zenflow needs zero=stage1 or stage2, got stage3"]),
        ([*ZENFLOW, "optimizer=muon"], ["offload=zenflow needs optimizer=adamw, got Muon"]),
        ([*ZENFLOW, "precision=fp16"], ["offload=zenflow needs precision=bf16 or precision=fp32"]),
        ([*ZENFLOW, "precision=autocast"], ["offload=zenflow", "precision=autocast"]),
        ([*ZENFLOW, "offload.zenflow.select_strategy=epoch"], ["offload.zenflow.select_strategy=epoch", "step"]),
        ([*ZENFLOW, "offload.zenflow.select_interval=6"], ["offload.zenflow.select_interval=6", "update_interval=4"]),
        ([*ZENFLOW, "offload.zenflow.full_warm_up_rounds=3"], ["offload.zenflow.full_warm_up_rounds=3"]),
        (["offload=super_offload"], ["offload=super_offload needs zero=stage3, got stage2"]),
        ([*SUPER, "optimizer=muon", "zero.reduce_scatter=false"], ["offload=super_offload needs optimizer=adamw"]),
        ([*SUPER, "precision=bf16_states"], ["offload=super_offload needs fp32 master weights"]),
        ([*SUPER, "precision=fp16", "train.grad_clip=null"], ["offload=super_offload with precision=fp16", "precision=bf16"]),
        ([*NVME, "offload.super_offload=true"], ["offload.super_offload=true needs offload.device=cpu, got nvme"]),
        (["optimizer.momentum=0.9"], ["optimizer.momentum has no effect with optimizer=adamw", "optimizer=muon"]),
        (["optimizer.adam_lr=1e-3"], ["optimizer.adam_lr has no effect"]),
        (["optimizer=muon", "optimizer.momentum=null"], ["optimizer.momentum must be set"]),
        (["optimizer=muon", "zero=stage3"], ["optimizer=muon at zero=stage3 needs zero.reduce_scatter=false"]),
        (["optimizer=muon", "method=ptuning_v2"], ["optimizer=muon has no effect", "method.prefix_projection=true"]),
        (
            ["optimizer=muon", "zero=stage3", "zero.reduce_scatter=false", "offload=cpu", "offload.ratio=0.5"],
            ["offload.ratio=0.5", "optimizer=adamw"],
        ),
        (
            [*NVME, "optimizer=muon", "zero.reduce_scatter=false"],
            ["optimizer=muon does not go with offload=nvme", "offload=cpu"],
        ),
        ([*NVME, "precision=bf16_states"], ["precision=bf16_states does not go with offload=nvme", "precision=bf16"]),
        (["kernels=deepcompile", "zero=stage0"], ["kernels=deepcompile needs zero=stage1", "got stage0"]),
        (["kernels=deepcompile", "offload=cpu"], ["kernels=deepcompile does not go with offload=cpu at zero=stage2"]),
        (["kernels=deepcompile", *SUPER], ["kernels=deepcompile does not go with offload=super_offload"]),
        (["kernels=deepcompile", "zero=stage3", "zero.zero_hpz_partition_size=2"], ["kernels=deepcompile", "ZeRO++"]),
        (["kernels=deepcompile", "zero=stage3", "zero.zero_quantized_weights=true"], ["kernels=deepcompile", "ZeRO++"]),
        (["kernels=deepcompile", "zero=stage3", "offload=nvme", "offload.nvme_path=/nvme"], ["offload=nvme"]),
        (["kernels=deepcompile", "optimizer=muon"], ["kernels=deepcompile needs optimizer=adamw"]),
        (["kernels=deepcompile", "zero=stage1", "precision.grad_accum_dtype=fp32"], ["grad_accum_dtype=fp32", "got stage1"]),
    ],
)
def test_what_would_be_dropped_or_break_is_refused(overrides, words):
    with pytest.raises(UserError) as error:
        compose(overrides)
    for word in words:
        assert word in str(error.value), error.value
    assert len(str(error.value).splitlines()) <= 5


@pytest.mark.parametrize(
    ("overrides", "ranks", "words"),
    [
        (["zero=stage3_zeropp"], 1, ["zero.zero_hpz_partition_size=8 must divide the 1 rank(s)"]),
        (["zero=stage3_zeropp"], 12, ["zero.zero_hpz_partition_size=8 must divide the 12 rank(s)"]),
        (["offload=zenflow"], 1, ["offload.zenflow.update_interval=4", "batch.accumulation=1", "set batch.accumulation=4"]),
        (["offload=zenflow", "batch.total=16"], 1, ["batch.accumulation=8"]),
    ],
)
def test_what_the_ranks_decide_is_refused_as_the_dict_is_built(overrides, ranks, words):
    config = compose(overrides).config
    with pytest.raises(UserError) as error:
        build(config, Machine(ranks, "gpu"))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("overrides", [["batch.accumulation=4"], ["batch.total=16", "batch.micro=4"]])
def test_zenflow_fits_an_accumulation_that_is_set_or_derived(overrides):
    assert "zenflow" in build(compose(["offload=zenflow", *overrides]).config, Machine(1, "gpu"))["zero_optimization"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optimizer=muon"], ["optimizer=muon", "train.grad_clip=1", "train.grad_clip=null"]),
        (SUPER, ["offload=super_offload", "train.grad_clip=null"]),
        (NVME, ["offload.max_in_cpu=1e+09", "zero.stage3_prefetch_bucket_size=0"]),
        (ZENFLOW, ["offload=zenflow", "without fp32 master weights"]),
        ([*ZENFLOW, "precision=fp32"], ["offload=zenflow", "without a check for infinities"]),
    ],
)
def test_what_an_option_costs_is_warned_of(overrides, words):
    (found,) = warnings(compose(overrides).config)
    assert all(word in found for word in words), found


def test_nothing_is_warned_of_where_it_does_not_hold():
    quiet = (
        ["optimizer=muon", "train.grad_clip=null"],
        ["optimizer=muon", "zero=stage0"],
        ["optimizer=muon", "zero=stage1", "precision.grad_accum_dtype=fp32"],
        [*SUPER, "train.grad_clip=0"],
        [*NVME, "zero.stage3_prefetch_bucket_size=0"],
        ["precision=bf16_states"],
        ["precision=autocast"],
    )
    assert [warnings(compose(overrides).config) for overrides in quiet] == [[]] * len(quiet)


def test_the_folder_on_nvme_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compose(["zero=stage3", "offload=nvme", "offload.nvme_path=swap"]).config.offload.nvme_path == str(tmp_path / "swap")
