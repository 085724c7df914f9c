"""DeepSpeed's own parser takes every dict of the product zero x offload x precision x scaler, and reads every key of it."""

import contextlib
import itertools
import os

import pytest

from glmexp.config import UserError, compose
from glmexp.config.zero import STAGES
from glmexp.dsconfig import Machine, build
from tests.dsconfig.watching import Watching

PRODUCT = list(
    itertools.product(
        ("stage0", "stage1", "stage2", "stage3"), ("none", "cpu", "cpu_all"), ("bf16", "fp16", "fp32"), ("dynamic", "static")
    )
)


@pytest.fixture(scope="module")
def deepspeed_config():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig


def refused(zero, offload, precision, scaler):
    return (
        (offload != "none" and zero == "stage0")
        or (offload == "cpu_all" and zero != "stage3")
        or (precision == "fp16" and zero == "stage0")
        or (scaler == "static" and precision != "fp16")
    )


@pytest.mark.parametrize(("zero", "offload", "precision", "scaler"), PRODUCT)
def test_each_combination_is_accepted_whole_or_refused_by_a_rule(zero, offload, precision, scaler, deepspeed_config):
    overrides = [f"zero={zero}", f"offload={offload}", f"precision={precision}", "batch.total=12", "batch.micro=3"]
    overrides += [f"scaler={scaler}"] if scaler == "static" else []
    if refused(zero, offload, precision, scaler):
        with pytest.raises(UserError):
            compose(overrides)
        return
    ds = build(compose(overrides).config, Machine(1, "gpu"))
    watching = Watching(ds)
    with contextlib.redirect_stdout(None):
        parsed = deepspeed_config(watching)

    assert parsed.train_batch_size == 12
    assert parsed.gradient_accumulation_steps == 4
    assert parsed.zero_optimization_stage == int(zero[-1])
    assert parsed.gradient_clipping == 1.0
    assert "auto" not in str(ds)
    unread = {key for key in ds if key not in watching.asked}
    assert not unread, "DeepSpeed never looks at these"
    for key in ds["zero_optimization"]:
        stages = {**STAGES, "stage": (0, 1, 2, 3), "offload_optimizer": (1, 2, 3), "offload_param": (3,)}[key]
        assert int(zero[-1]) in stages, f"{key} is inert at {zero}"


STAGE3_MUON = ["zero=stage3", "optimizer=muon", "zero.reduce_scatter=false"]
MACHINERY = [
    *(["precision=bf16_states", f"zero=stage{stage}"] for stage in (1, 2, 3)),
    *(["precision=autocast", f"zero=stage{stage}"] for stage in (0, 1, 2, 3)),
    *(["optimizer=muon", f"zero=stage{stage}"] for stage in (0, 1, 2)),
    *(["kernels=deepcompile", f"zero=stage{stage}"] for stage in (1, 2, 3)),
    *(["offload=zenflow", "batch.accumulation=4", f"zero=stage{stage}"] for stage in (1, 2)),
    STAGE3_MUON,
    [*STAGE3_MUON, "offload=cpu_all"],
    ["zero=stage3", "offload=super_offload"],
    ["zero=stage3", "offload=nvme", "offload.nvme_path=/nvme"],
    ["zero=stage3_zeropp", "zero.zero_hpz_partition_size=1"],
    ["precision=bf16_states", "offload=cpu"],
    ["precision=autocast", "offload=cpu_all", "zero=stage3"],
]


@pytest.mark.parametrize("overrides", MACHINERY, ids="-".join)
def test_the_newer_machinery_is_accepted_whole(overrides, deepspeed_config):
    ds = build(compose(overrides).config, Machine(1, "gpu"))
    watching = Watching(ds)
    with contextlib.redirect_stdout(None):
        deepspeed_config(watching)
    assert not {key for key in ds if key not in watching.asked}, "DeepSpeed never looks at these"
    assert "'auto'" not in str(ds)
