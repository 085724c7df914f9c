"""From DeepSpeed JSON to overrides and back."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.config import UserError, compose
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.convert import Composed, convert
from glmexp.dsconfig.convert.options import written
from glmexp.dsconfig.convert.retired import modernise

GOLDEN = Path(__file__).parent.parent / "golden"
GOLDENS = sorted((GOLDEN / "dsconfig").glob("*.json"))
BASE = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True}}
CPU = Machine(1, "cpu")


def built(config, *more, machine=CPU):
    return build(compose([*convert(config).overrides, *more]).config, machine)


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
    found = convert(config, Composed(hidden_size=4096, dtype=dtype))
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
    back = built(config)
    params = back["optimizer"]["params"]
    assert params.pop("torch_adam", None) is (True if "offload_optimizer" not in back["zero_optimization"] else None)
    assert parsed(back) == parsed(config)


@settings(max_examples=15, deadline=None)
@given(config=configs())
def test_deepspeed_reads_the_same_from_the_file_and_from_what_is_emitted(config, parsed):
    read_alike(config, parsed)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(config=configs())
def test_deepspeed_reads_the_same_from_many_files(config, parsed):
    read_alike(config, parsed)


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ({}, ["zero=stage0", "offload=none", "precision=bf16"]),
        ({"zero_optimization": {"stage": 2}}, ["zero=stage2", "zero.reduce_bucket_size=500000000"]),
        ({"zero_optimization": {"stage": 2, "zero_quantized_weights": False}}, ["zero=stage2"]),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4, "zero_quantized_weights": True}},
            ["zero=stage3", "zero.zero_hpz_partition_size=4", "zero.zero_quantized_weights=true"],
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}},
            ["offload=cpu", "offload.pin_memory=false"],
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "fast_init": False, "ratio": 1.0}}},
            ["offload=cpu"],
        ),
        (
            {
                "zero_optimization": {
                    "stage": 3,
                    "offload_optimizer": {"device": "nvme", "nvme_path": "/fast disk/1", "pipeline_write": True},
                    "offload_param": {"device": "nvme", "nvme_path": "/fast disk/1", "buffer_size": 4},
                },
                "aio": {"queue_depth": 32, "use_gds": True},
            },
            [
                "offload=nvme",
                "offload.nvme_path='/fast disk/1'",
                "offload.pipeline_read=false",
                "offload.aio.queue_depth=32",
                "+deepspeed.aio.use_gds=true",
                "+deepspeed.zero_optimization.offload_param.buffer_size=4",
            ],
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
            ["offload=super_offload"],
        ),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": None}, ["batch.total=32", "batch.micro=null"]),
        ({"gradient_clipping": None}, ["train.grad_clip=1.0"]),
        ({"gradient_clipping": 0}, ["train.grad_clip=0"]),
        ({"bf16": {"enabled": False}}, ["precision=fp32"]),
        ({"bf16": None, "torch_autocast": {"enabled": True, "dtype": "float16"}}, ["precision.autocast_dtype=fp16"]),
        ({"bf16": None, "fp16": {"enabled": True, "loss_scale": 128}}, ["scaler=static", "scaler.loss_scale=128"]),
        ({"bf16": None, "fp16": {"enabled": True, "hysteresis": 4}}, ["scaler=dynamic", "scaler.hysteresis=4"]),
        ({"bf16": None, "fp16": {"enabled": True, "auto_cast": True}}, ["+deepspeed.fp16.auto_cast=true"]),
        ({"data_types": {"grad_accum_dtype": "float32"}}, ["precision.grad_accum_dtype=fp32"]),
        ({"optimizer": {"type": "Adam", "params": {"lr": 1e-5}}}, ["optimizer=adamw", "optimizer.weight_decay=0.0"]),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, ["optimizer=adamw", "optimizer.lr=0.001"]),
        (
            {"optimizer": {"type": "Muon", "params": {"lr": 1e-4, "muon_lr": 0.02, "ns_method": "standard"}}},
            [
                "optimizer=muon",
                "optimizer.lr=0.02",
                "optimizer.adam_lr=0.0001",
                "+deepspeed.optimizer.params.ns_method=standard",
            ],
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}}},
            ["scheduler=constant", "scheduler.warmup_steps=7"],
        ),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "cos_min_ratio": 0.1}}},
            ["scheduler=cosine", "scheduler.warmup_steps=1000", "scheduler.min_lr_ratio=0.1"],
        ),
        (
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 2e-5}},
                "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": "auto"}},
            },
            ["optimizer.lr=0.001", "scheduler=linear", "scheduler.min_lr_ratio=0.0"],
        ),
        ({"compile": {"deepcompile": True}}, ["kernels=deepcompile"]),
        ({"tensorboard": {"enabled": True, "output_path": "a b"}}, ["+deepspeed.tensorboard.output_path='a b'"]),
        ({"checkpoint": {}}, []),
        (
            {"data_types": {"keep_in_fp32_modules": ["norm", "it's"]}},
            ["+deepspeed.data_types.keep_in_fp32_modules=[norm,'it\\'s']"],
        ),
    ],
)
def test_each_key_finds_its_field(config, overrides):
    found = convert({**BASE, **config}).overrides
    assert set(overrides) <= set(found), found
    assert not [text for text in found if text.partition("=")[2].strip("'\"") == "auto"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"optimizer": {"type": "Lamb"}}, ["optimizer.type=Lamb", "AdamW", "Muon"]),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, ["adam_w_mode", "AdamW"]),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            ["offload_param.device=cpu", "offload_optimizer.device=none"],
        ),
        ({"tensorboard": {"job_name": "${oc.env:HOME}"}}, ["tensorboard.job_name", "${oc.env:HOME}"]),
        ({"zero_optimization": 7}, ["zero_optimization=7"]),
        ({"zero_optimization": {"stage": "two"}}, ["zero_optimization.stage='two'"]),
        ({"gradient_clipping": [1]}, ["gradient_clipping=[1]"]),
        ({"timers": {"through put": 1}}, ["'timers.through put'"]),
    ],
)
def test_what_cannot_be_said_is_refused_in_words(config, words):
    with pytest.raises(UserError) as error:
        convert({**BASE, **config})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"gradient_clipping": None}, "clips at 1.0 since 0.19.3"),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type=OneCycle has no counterpart"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}}, "warm-up is linear, not logarithmic"),
        ({"activation_checkpointing": {"partition_activations": True}}, "use activation=checkpoint"),
        ({"bf16": {"enabled": True, "check_grad_overflow": False}}, "always skips a step whose gradients overflow"),
        ({"optimizer": {"type": "AdamW", "params": {"bias_correction": False}}}, "torch's AdamW has no such parameter"),
        ({"bf16": {"enabled": "auto"}}, "bf16.enabled (precision.dtype)"),
        ({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"}}, "0.9 hidden_size squared"),
        (
            {"bf16": None, "fp16": {"enabled": "auto", "loss_scale_window": 100}},
            "add scaler=dynamic scaler.loss_scale_window=100",
        ),
    ],
)
def test_what_is_not_carried_over_is_said(config, note):
    assert any(note in line for line in convert({**BASE, **config}).notes)


def test_peak_of_the_schedule_is_what_deepspeed_trains_at():
    config = {
        **BASE,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-5}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10, "warmup_num_steps": 2}},
    }
    assert built(config)["optimizer"]["params"]["lr"] == 1e-3
    assert any("optimizer.lr=2e-05 trains at the latter" in line for line in convert(config).notes)
    import torch
    from deepspeed.runtime.lr_schedules import WarmupDecayLR

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=2e-5)
    schedule = WarmupDecayLR(optimizer, **config["scheduler"]["params"])
    rates = [schedule.step() or optimizer.param_groups[0]["lr"] for _ in range(4)]
    assert max(rates) == 1e-3


def test_retired_keys_are_what_means_the_same_today():
    config, lines = modernise(
        {
            "bfloat16": {"enabled": True},
            "fp32_allreduce": True,
            "zero_optimization": {
                "cpu_offload": True,
                "cpu_offload_use_pin_memory": False,
                "cpu_offload_param": False,
                "max_live_parameters": 5,
            },
        }
    )
    assert config == {
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
        "zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}, "stage3_max_live_parameters": 5},
    }
    assert len(lines) == 6
    assert modernise({"zero_optimization": True})[0] == {"zero_optimization": {"stage": 1}}
    with pytest.raises(UserError, match="two forms"):
        modernise({"bfloat16": {"enabled": True}, "bf16": {"enabled": True}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b_1", "K"]), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_any_value_comes_back_from_hydra_or_is_refused(value):
    try:
        text = f"+a={written(value, 'a')}"
    except UserError:
        return
    assert OverridesParser.create().parse_overrides([text])[0].value() == value


SECTION = ("zero_optimization", "optimizer", "fp16", "bf16", "scheduler", "aio", "data_types", "compile", "train_batch_size")
HOSTILE = st.dictionaries(st.sampled_from(SECTION), JSON | st.dictionaries(st.sampled_from(("stage", "type", "params")), JSON))


@settings(max_examples=150, deadline=None)
@given(HOSTILE)
def test_whatever_a_file_holds_there_is_no_traceback(config):
    with contextlib.suppress(UserError):
        convert(modernise(config)[0])
