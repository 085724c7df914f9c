import json
from pathlib import Path

import pytest

from glmexp.config import UserError, compose
from glmexp.config.files import leaves
from glmexp.config.wording import known_keys
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.passthrough import place

GOLDEN = Path(__file__).parent.parent / "golden" / "dsconfig"
CPU, GPU = Machine(1, "cpu"), Machine(1, "gpu")

# A golden file an option, and a few whole recipes: (name, overrides, machine).
CASES = [
    ("default_cpu", [], CPU),
    ("default_gpu", [], GPU),
    ("stage0", ["zero=stage0"], CPU),
    ("stage1", ["zero=stage1"], CPU),
    ("stage2", ["zero=stage2"], CPU),
    ("stage3", ["zero=stage3"], CPU),
    ("offload_cpu", ["offload=cpu"], GPU),
    ("offload_cpu_all", ["zero=stage3", "offload=cpu_all"], GPU),
    ("fp16_dynamic", ["precision=fp16"], GPU),
    ("fp16_static", ["precision=fp16", "scaler=static"], GPU),
    ("fp32", ["precision=fp32"], GPU),
    ("bf16_states", ["precision=bf16_states"], GPU),
    ("autocast", ["precision=autocast"], GPU),
    ("stage3_zeropp", ["zero=stage3_zeropp"], Machine(16, "gpu")),
    ("offload_nvme", ["zero=stage3", "offload=nvme", "offload.nvme_path=/nvme"], GPU),
    ("super_offload", ["zero=stage3", "offload=super_offload"], GPU),
    ("zenflow", ["offload=zenflow", "batch.accumulation=4"], GPU),
    ("muon", ["optimizer=muon"], GPU),
    ("muon_stage3", ["optimizer=muon", "zero=stage3", "zero.reduce_scatter=false"], GPU),
    ("deepcompile", ["kernels=deepcompile", "zero=stage3"], GPU),
    ("ulysses", ["comm=ulysses", "zero=stage3", "batch.total=8"], Machine(4, "gpu")),
    ("comm_fp32", ["comm.communication_data_type=fp32", "precision.grad_accum_dtype=fp32"], GPU),
    ("eight_gpus_global_batch_256", ["batch.total=256", "batch.micro=4"], Machine(8, "gpu")),
    (
        "chatglm2_6b_lora_offload",
        ["model=chatglm2_6b", "method=lora", "activation=checkpoint", "offload=cpu", "scheduler=linear"],
        Machine(2, "gpu"),
    ),
    (
        "chatglm2_6b_full_stage3",
        ["model=chatglm2_6b", "zero=stage3", "zero.reduce_bucket_size=5e8", "batch.micro=8", "train.grad_clip=null"],
        GPU,
    ),
]


@pytest.mark.parametrize(("name", "overrides", "machine"), CASES, ids=[case[0] for case in CASES])
def test_the_emitted_dict_is_the_golden_one(name, overrides, machine):
    emitted = build(compose(overrides).config, machine)
    assert emitted == json.loads((GOLDEN / f"{name}.json").read_text())
    assert json.loads(json.dumps(emitted)) == emitted, "plain JSON types only"


def test_every_golden_file_belongs_to_a_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {case[0] for case in CASES}


def test_no_clipping_is_written_out():
    assert build(compose(["train.grad_clip=null"]).config, CPU)["gradient_clipping"] == 0.0
    assert build(compose(["train.grad_clip=0.5"]).config, CPU)["gradient_clipping"] == 0.5


def test_stage2_does_not_overlap_unless_asked_to():
    assert build(compose(["zero=stage2"]).config, CPU)["zero_optimization"]["overlap_comm"] is False
    assert build(compose(["zero=stage2", "zero.overlap_comm=true"]).config, CPU)["zero_optimization"]["overlap_comm"] is True


def test_pinning_can_be_turned_off():
    zero = build(compose(["offload=cpu", "offload.pin_memory=false"]).config, GPU)["zero_optimization"]
    assert zero["offload_optimizer"]["pin_memory"] is False


def test_raw_keys_are_added():
    ds = build(
        compose(["+deepspeed.steps_per_print=50", "+deepspeed.zero_optimization.round_robin_gradients=true"]).config, CPU
    )
    assert ds["steps_per_print"] == 50
    assert ds["zero_optimization"]["round_robin_gradients"] is True
    assert ds["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("+deepspeed.gradient_accumulation_steps=2", "batch.accumulation"),
        ("+deepspeed.zero_optimization.reduce_bucket_size=1", "zero.reduce_bucket_size"),
        ("+deepspeed.optimizer.params.lr=1", "optimizer.lr"),
        ("+deepspeed.bf16.enabled=false", "precision"),
        ("+deepspeed.gradient_clipping=0.5", "train.grad_clip"),
        ("+deepspeed.zero_optimization.stage=3", "zero.stage"),
    ],
)
def test_two_places_for_one_quantity_are_refused(override, place):
    with pytest.raises(UserError) as error:
        build(compose([override]).config, CPU)
    assert place in str(error.value)
    assert override.lstrip("+").split("=")[0] in str(error.value)


def test_equal_values_in_two_places_pass():
    overrides = ["batch.accumulation=16", "+deepspeed.gradient_accumulation_steps=16"]
    assert build(compose(overrides).config, CPU)["gradient_accumulation_steps"] == 16


@pytest.mark.parametrize(("name", "overrides", "machine"), CASES, ids=[case[0] for case in CASES])
def test_every_emitted_key_names_the_field_that_it_comes_from(name, overrides, machine):
    fields = set(known_keys())
    emitted = {key for key, _ in leaves(build(compose(overrides).config, machine))}
    assert {key: place(key) for key in emitted if place(key) not in fields} == {}
