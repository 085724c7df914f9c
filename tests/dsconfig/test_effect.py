"""What changes nothing on this machine, and what the buckets take."""

import pytest

from glmexp.config import compose
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.effect import bucket_bytes, idle, one_rank_note, unlike_its_name

CPU, GPU, TWO_CPUS, TWO_GPUS = Machine(1, "cpu"), Machine(1, "gpu"), Machine(2, "cpu"), Machine(2, "gpu")
OVERLAP = "zero_optimization.overlap_comm"
PREFETCH = "zero_optimization.stage3_prefetch_bucket_size"


def idle_keys(overrides, machine):
    return set(idle(build(compose(overrides).config, machine), machine))


@pytest.mark.parametrize(
    ("overrides", "machine", "key", "does_nothing"),
    [
        (["zero=stage2"], GPU, "zero_optimization.reduce_scatter", True),
        (["zero=stage2"], TWO_GPUS, "zero_optimization.reduce_scatter", False),
        (["zero=stage2", "zero.overlap_comm=true"], GPU, OVERLAP, True),
        (["zero=stage2", "zero.overlap_comm=true"], TWO_GPUS, OVERLAP, False),
        (["zero=stage2", "zero.overlap_comm=true"], TWO_CPUS, OVERLAP, True),  # no streams
        (
            ["zero=stage2", "zero.overlap_comm=true", "offload=cpu"],
            GPU,
            OVERLAP,
            False,
        ),  # copies to the host run on the second stream
        (["zero=stage2", "zero.overlap_comm=false"], GPU, OVERLAP, False),  # asks for nothing
        (["zero=stage3"], GPU, PREFETCH, True),
        (["zero=stage3"], TWO_GPUS, PREFETCH, False),
        (["zero=stage3", "offload=cpu_all"], GPU, PREFETCH, False),  # weights come from the host
        (["zero=stage3", "optimizer=muon", "zero.reduce_scatter=false"], GPU, "zero_optimization.reduce_scatter", False),
        ([], GPU, "communication_data_type", True),
        ([], TWO_GPUS, "communication_data_type", False),
        # Gradients are rounded to a narrower dtype with one rank too: the norm of a run differed in the fourth digit.
        (["precision=fp32", "comm.communication_data_type=bf16"], GPU, "communication_data_type", False),
        (["comm.communication_data_type=fp32"], GPU, "communication_data_type", True),
        (["zero=stage2", "offload=cpu"], CPU, "zero_optimization.offload_optimizer.pin_memory", True),
        (["zero=stage2", "offload=cpu"], GPU, "zero_optimization.offload_optimizer.pin_memory", False),
        (["zero=stage1", "precision.grad_accum_dtype=fp32"], TWO_GPUS, "zero_optimization.reduce_bucket_size", True),
        (["zero=stage2", "precision.grad_accum_dtype=fp32"], TWO_GPUS, "zero_optimization.reduce_bucket_size", False),
        (["zero=stage3_zeropp"], Machine(8, "gpu"), "zero_optimization.zero_quantized_gradients", True),
        (["zero=stage3_zeropp"], Machine(16, "gpu"), "zero_optimization.zero_quantized_gradients", False),
        (["zero=stage3_zeropp"], Machine(8, "cpu"), "zero_optimization.zero_quantized_weights", True),
        (["zero=stage3_zeropp"], Machine(8, "cpu"), "zero_optimization.zero_quantized_nontrainable_weights", False),  # false
        (["zero=stage3_zeropp"], Machine(8, "gpu"), "zero_optimization.zero_quantized_weights", False),
        (["+deepspeed.steps_per_print=1"], GPU, "steps_per_print", True),
        (["+deepspeed.steps_per_print=1", "+deepspeed.log_level=info"], GPU, "steps_per_print", False),
        (["+deepspeed.wall_clock_breakdown=true"], GPU, "wall_clock_breakdown", False),  # printed at any level
    ],
)
def test_a_key_does_nothing_exactly_where_it_does_nothing(overrides, machine, key, does_nothing):
    assert (key in idle_keys(overrides, machine)) is does_nothing


def test_the_second_bucket_is_told():
    ds = build(compose(["zero=stage2", "zero.overlap_comm=true"]).config, GPU)
    assert "second bucket" in idle(ds, GPU)[OVERLAP]["en"]
    assert "second bucket" not in idle(build(compose(["zero=stage3"]).config, GPU), GPU)[OVERLAP]["en"]


def test_nothing_is_said_of_keys_that_are_not_there():
    assert idle({}, GPU) == {}
    assert idle_keys(["zero=stage0"], TWO_GPUS) == set()


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ([], set()),
        (["optimizer=muon"], {"gradient_clipping"}),
        (["optimizer=muon", "train.grad_clip=null"], set()),
        (["optimizer=muon", "zero=stage0"], set()),
        # BF16_Optimizer clips the gradient.
        (["optimizer=muon", "zero=stage1", "precision.grad_accum_dtype=fp32"], set()),
        (["precision=autocast"], {"zero_optimization.reduce_bucket_size"}),
        (["precision=autocast", "zero=stage0"], set()),
    ],
)
def test_what_acts_otherwise_than_its_name_says(overrides, wanted):
    assert set(unlike_its_name(build(compose(overrides).config, TWO_GPUS), TWO_GPUS)) == wanted


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["zero=stage0"], 0),
        (["zero=stage2"], 50_000_000 * 2),
        (["zero=stage2", "zero.reduce_bucket_size=5e8", "zero.overlap_comm=true"], 2 * 500_000_000 * 2),
        (["zero=stage2", "precision=fp32"], 50_000_000 * 4),
        (["zero=stage2", "comm.communication_data_type=fp32"], 50_000_000 * 2),
        (["zero=stage2", "zero.contiguous_gradients=false"], 0),
        (["zero=stage2", "zero.contiguous_gradients=false", "offload=cpu"], 50_000_000 * 2),
        (["zero=stage1", "precision.grad_accum_dtype=fp32"], 0),  # BF16_Optimizer has none
        (["zero=stage3"], 50_000_000 * 2),
        (["zero=stage3", "comm.communication_data_type=fp32"], 50_000_000 * 4),
        (["zero=stage3", "precision=autocast"], 50_000_000 * (4 + 2)),
    ],
)
def test_bytes_of_the_buckets(overrides, wanted):
    assert bucket_bytes(build(compose(overrides).config, GPU)) == wanted


def test_deepspeed_writes_buckets_of_5e8_where_the_key_is_left_out():
    assert bucket_bytes({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}) == 500_000_000 * 2


def test_one_rank_is_told_that_zero_saves_nothing():
    note = one_rank_note(build(compose(["zero=stage2"]).config, GPU), GPU)
    assert note is not None
    assert all(word in note["en"] for word in ("zero=stage2", "95.4 MiB", "zero.reduce_bucket_size"))
    smaller = one_rank_note(build(compose(["zero=stage2", "zero.reduce_bucket_size=5e6"]).config, GPU), GPU)
    assert smaller is not None
    assert "9.5 MiB" in smaller["zh"]
    assert "显存" in smaller["zh"]
    for overrides, machine in ((["zero=stage2"], TWO_GPUS), (["zero=stage0"], GPU), (["zero=stage2", "offload=cpu"], GPU)):
        assert one_rank_note(build(compose(overrides).config, machine), machine) is None
