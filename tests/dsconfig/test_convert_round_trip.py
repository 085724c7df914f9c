"""A DeepSpeed config, converted and built again, is the same config: key for key, and as DeepSpeed's own parser reads it."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.config import compose
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.convert import Known, convert

GOLDEN = Path(__file__).parent.parent / "golden"
GOLDENS = sorted((GOLDEN / "dsconfig").glob("*.json"))
CPU = Machine(1, "cpu")


def machine_of(config):
    """The machine that a golden file was built for, from its batch and its optimizer."""
    sharing = config.get("sequence_parallel_size", 1)
    ranks = (
        config["train_batch_size"]
        * sharing
        // config["train_micro_batch_size_per_gpu"]
        // config["gradient_accumulation_steps"]
    )
    return Machine(ranks, "gpu" if config["optimizer"]["params"].get("fused") else "cpu")


def leaves(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_each_emitted_dict_comes_back(path):
    config = json.loads(path.read_text())
    converted = convert(config)
    assert build(compose(converted.overrides).config, machine_of(config)) == config
    assert converted.notes == []


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("chatglm2_deepspeed", ["precision=fp16"]),
        ("chatglm3_ds_zero_2", ["precision=fp16"]),
        ("chatglm3_ds_zero_2", ["precision=bf16"]),
        ("chatglm3_ds_zero_3", ["precision=bf16"]),
    ],
)
def test_the_official_files_come_back_key_for_key(name, beside):
    config = json.loads((GOLDEN / "official" / f"{name}.json").read_text())
    dtype = beside[0].partition("=")[2]
    found = convert(config, Known(hidden_size=4096, dtype=dtype))
    back = dict(leaves(build(compose([*found.overrides, *beside]).config, CPU)))
    said = {key: value for key, value in leaves(config) if value != "auto"}
    if dtype != "fp16":
        said = {key: value for key, value in said.items() if not key.startswith("fp16.")}  # "auto" has turned it off
    assert said.items() <= back.items()
    assert "auto" not in back.values()
    if name.endswith("zero_3"):
        zero = {key: back[f"zero_optimization.{key}"] for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size")}
        assert zero == {"reduce_bucket_size": 16_777_216, "stage3_prefetch_bucket_size": 15_099_494}
        assert back["zero_optimization.stage3_param_persistence_threshold"] == 40_960


def zero_sections(stage):
    count = st.integers(2, 10**9).map(lambda number: number // 2 * 2)
    keys = {"contiguous_gradients": st.booleans(), "reduce_scatter": st.booleans(), "overlap_comm": st.booleans()}
    keys |= {"reduce_bucket_size": count, "allgather_bucket_size": count, "allgather_partitions": st.booleans()}
    if stage == 0:
        keys = {}
    if stage in (1, 2):
        keys["round_robin_gradients"] = st.booleans()
    if stage == 3:
        numbers = ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
        keys |= {f"stage3_{name}": count for name in numbers} | {"sub_group_size": count}
        keys["stage3_gather_16bit_weights_on_model_save"] = st.booleans()
    offload = st.fixed_dictionaries({"device": st.just("cpu")}, optional={"pin_memory": st.booleans()})
    if stage:
        keys["offload_optimizer"] = offload | st.just({"device": "none"})
    return st.fixed_dictionaries({"stage": st.just(stage)}, optional=keys)


def precisions(stage):
    scaler = {"loss_scale_window": st.integers(1, 5000), "initial_scale_power": st.integers(1, 16)}
    scaler |= {"hysteresis": st.integers(1, 4), "min_loss_scale": st.just(1), "loss_scale": st.just(0)}
    kinds = [st.just({}), st.just({"bf16": {"enabled": True}})]
    if stage:
        kinds.append(st.fixed_dictionaries({"fp16": st.fixed_dictionaries({"enabled": st.just(True)}, optional=scaler)}))
        kinds.append(st.just({"fp16": {"enabled": True, "loss_scale": 128}}))
    return st.one_of(kinds)


@st.composite
def configs(draw):
    stage = draw(st.integers(0, 3))
    params = {"lr": st.floats(1e-6, 1e-2), "eps": st.floats(1e-10, 1e-6), "weight_decay": st.floats(0, 0.1)}
    params["betas"] = st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)).map(list)
    micro, accumulation = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    batch = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation}
    batch["train_batch_size"] = micro * accumulation
    if (left_out := draw(st.sampled_from([None, *batch]))) is not None:
        del batch[left_out]
    more = {"gradient_clipping": st.floats(0, 5), "steps_per_print": st.integers(1, 100)}
    more["wall_clock_breakdown"] = st.booleans()
    more["communication_data_type"] = st.sampled_from(["fp32", "bf16"])
    return {
        **batch,
        "optimizer": {"type": "AdamW", "params": draw(st.fixed_dictionaries({}, optional=params))},
        "zero_optimization": draw(zero_sections(stage)),
        **draw(precisions(stage)),
        **draw(st.fixed_dictionaries({}, optional=more)),
    }


@pytest.fixture(scope="module")
def parsed():
    """What DeepSpeed's own parser makes of a config: each value that decides how it trains."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    def parse(config):
        with contextlib.redirect_stdout(None):
            found = DeepSpeedConfig(json.loads(json.dumps(config)))
        dtype = "float16" if found.float16_config.enabled else "bfloat16" if found.bfloat16_config.enabled else "float32"
        zero = found.zero_config.model_dump()
        if (zero["offload_optimizer"] or {}).get("device") == "none":
            zero["offload_optimizer"] = None
        fp16 = found.float16_config.model_dump()
        scaler = ("loss_scale",) if fp16["loss_scale"] else ("loss_scale_window", "initial_scale_power", "hysteresis")
        return {
            "zero": zero,
            "bf16": found.bfloat16_config.model_dump(),
            "scaler": fp16["enabled"] and {name: fp16[name] for name in scaler},
            "batch": (found.train_batch_size, found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps),
            "clipping": found.gradient_clipping,
            "reduces in": str(found.communication_data_type or dtype).removeprefix("torch."),
            "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0, **found.optimizer_params},
            "prints": (found.steps_per_print, found.wall_clock_breakdown),
        }

    return parse


def read_alike(config, parsed):
    back = build(compose(convert(config).overrides).config, CPU)
    params = back["optimizer"]["params"]
    assert params.pop("torch_adam", None) is (True if "offload_optimizer" not in back["zero_optimization"] else None)
    assert parsed(back) == parsed(config)


@settings(max_examples=10, deadline=None)
@given(config=configs())
def test_deepspeed_reads_the_same_from_the_file_and_from_what_is_emitted(config, parsed):
    read_alike(config, parsed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=150, deadline=None)
@given(config=configs())
def test_deepspeed_reads_the_same_from_many_files(config, parsed):
    read_alike(config, parsed)


def test_peak_of_the_schedule_is_what_deepspeed_trains_at(parsed):
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-5}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10, "warmup_num_steps": 2}},
    }
    assert build(compose(convert(config).overrides).config, CPU)["optimizer"]["params"]["lr"] == 1e-3
    assert any("optimizer.lr=2e-05 trains at the latter" in line for line in convert(config).notes)
    assert parsed(config)["optimizer"]["lr"] == 2e-5, "which it then puts aside"
    import torch
    from deepspeed.runtime.lr_schedules import WarmupDecayLR

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=2e-5)
    schedule = WarmupDecayLR(optimizer, **config["scheduler"]["params"])
    rates = [schedule.step() or optimizer.param_groups[0]["lr"] for _ in range(4)]
    assert max(rates) == 1e-3
