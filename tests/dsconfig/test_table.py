"""The table of keys against the installed DeepSpeed, both ways: a release that adds or drops a key fails here."""

import contextlib
import inspect
import os
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt

from glmexp.dsconfig.findings import Severity, Situation
from glmexp.dsconfig.lint import known_version, lint
from glmexp.dsconfig.table import DESCRIBES, TOP, Key, Section, Variants, walk
from glmexp.dsconfig.table.optimizer import OPTIMIZER, PARAMS, REMOVED_TYPES, SCHEDULES
from glmexp.dsconfig.table.zero import ZERO
from glmexp.dsconfig.values import judge
from tests.dsconfig.watching import Watching

os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed_config = pytest.importorskip("deepspeed.runtime.config")

MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config.DeepSpeedZeroConfig",
    "zero_optimization.offload_optimizer": "deepspeed.runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.offload_param": "deepspeed.runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.zenflow": "deepspeed.runtime.zenflow.zenflow_config.ZenFlowConfig",
    "zero_optimization.leaf_module": "deepspeed.runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig",
    "fp16": "deepspeed.runtime.precision_config.DeepSpeedFP16Config",
    "bf16": "deepspeed.runtime.precision_config.DeepSpeedBF16Config",
    "compile": "deepspeed.compile.config.CompileConfig",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config.TPTrainingConfig",
    "tensor_parallel.tp": "deepspeed.runtime.tensor_parallel.config.TPConfig",
    "hybrid_engine": "deepspeed.runtime.config.HybridEngineConfig",
    "weight_quantization": "deepspeed.inference.config.WeightQuantConfig",
    "comms_logger": "deepspeed.comm.config.CommsLoggerConfig",
    "timers.throughput": "deepspeed.utils.config.DeepSpeedThroughputTimerConfig",
    "tensorboard": "deepspeed.monitor.config.TensorBoardConfig",
    "wandb": "deepspeed.monitor.config.WandbConfig",
    "csv_monitor": "deepspeed.monitor.config.CSVConfig",
    "comet": "deepspeed.monitor.config.CometConfig",
}
"""Pydantic sections."""

OBJECTS = {"tensor_parallel.dtype", "tensor_parallel.tp.mpu", "tensor_parallel.tp.tp_group"}
"""Fields that hold a Python object, which a JSON file cannot."""

NOT_DEFAULTS = {
    "zero_optimization.leaf_module.classes",  # a list of today's classes
    "zero_optimization.zenflow.select_interval",  # "auto", which is a word here and no number
    "zero_optimization.zenflow.update_interval",
}

AFTER_PARSING = {
    "sequence_parallel_size": "deepspeed/__init__.py, initialize, and runtime/config.py",
    "data_parallel_size": "deepspeed/__init__.py, initialize",
    "tensor_parallel.partition_config": "module_inject/autotp_config.py, AutoTPConfig.from_dict",
    "data_efficiency.data_sampling.dynamic_batching": "data_pipeline/data_sampling/variable_batch_size_and_lr.py",
    "data_efficiency.data_sampling.curriculum_learning": "data_pipeline/data_sampling/data_sampler.py",
    "data_efficiency.data_routing.random_ltd": "data_pipeline/data_routing/scheduler.py, basic_layer.py; runtime/engine.py",
    "pipeline.use_reentrant": "runtime/pipe/engine.py",
    "optimizer.params": "the constructors",
    "scheduler.params": "the constructors",
}
"""Keys that are read after ``DeepSpeedConfig`` has parsed the config (or only for some values) -> where."""

ODD = (
    *(None, True, False, 0, 1, 2, -1, 3, 4, 5_000, 1.0, 2.5, 0.5, 1e30, 1e18, float("inf"), float("nan")),
    *("", "2", " 2 ", "2.0", "2.5", "5e8", "1_000", "true", "YES", "on", "0", "cpu", "CPU", "step", "torch", "x"),
    *([], ["a"], [1], ["z3"], {}, {"a": 1}, 10**400),
)


def load(path):
    module, _, name = path.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


def node(key):
    """The table's entry at a dotted key."""
    found: Any = TOP
    for part in key.split("."):
        found = found.keys[part]
    return found


def test_the_table_is_of_the_installed_release():
    assert known_version() == (DESCRIBES, DESCRIBES), "compare the table with this release and set DESCRIBES"


@pytest.mark.parametrize("section", MODELS)
def test_pydantic_sections_name_for_name(section):
    entry, fields = node(section), load(MODELS[section]).model_fields
    assert entry.checked
    named = {field.alias or name for name, field in fields.items() if f"{section}.{field.alias or name}" not in OBJECTS}
    deprecated = {name for name, field in fields.items() if (field.json_schema_extra or {}).get("deprecated")}
    assert set(entry.keys) == named - deprecated
    assert deprecated <= set(entry.removed)
    for name in deprecated:
        assert entry.removed[name].works is bool(fields[name].json_schema_extra.get("set_new_param", True))
    for name in set(entry.removed) - deprecated:
        assert name not in fields
    for name, field in fields.items():
        if field.alias and field.alias in entry.keys and field.alias != name:
            assert entry.keys[field.alias].alias == name
    sections = {f"{section}.{name}" for name, child in entry.keys.items() if isinstance(child, Section)}
    assert {key for key in sections if node(key).checked} == {key for key in MODELS if key.rpartition(".")[0] == section}


@pytest.mark.parametrize("section", MODELS)
def test_pydantic_sections_type_default_and_range(section):
    for name, field in load(MODELS[section]).model_fields.items():
        key = f"{section}.{field.alias or name}"
        entry = node(section).keys.get(field.alias or name)
        if not isinstance(entry, Key):
            continue
        optional = get_origin(field.annotation) is Union and type(None) in get_args(field.annotation)
        assert entry.null is optional, key
        validated = key.endswith("select_strategy")  # text to pydantic, and a validator names the words
        assert entry.type == ("choice" if validated else expected_type(field.annotation)), key
        if key not in NOT_DEFAULTS:
            default = field.get_default(call_default_factory=True)
            assert entry.default == (default.value if isinstance(default, Enum) else default), key
        bounds = {
            type(bound): next(iter(vars(bound).values())) if hasattr(bound, "__dict__") else None for bound in field.metadata
        }
        bounds = {type(bound): getattr(bound, type(bound).__name__.lower()) for bound in field.metadata}
        if key in ("zero_optimization.stage", "fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale"):
            continue  # an enum, and validators of their own: their ranges are in the matrix below
        if key.endswith("update_interval"):
            bounds = {Ge: 1}  # a validator
        assert (entry.least, entry.above, entry.most, entry.below) == tuple(bounds.get(kind) for kind in (Ge, Gt, Le, Lt)), key


def expected_type(annotation):
    """The table's word for a pydantic annotation."""
    kinds = (
        [kind for kind in get_args(annotation) if kind is not type(None)] if get_origin(annotation) is Union else [annotation]
    )
    kind = kinds[0] if len(kinds) == 1 else int  # Union[str, int]: a number or a word
    base = get_origin(kind) or kind
    if base is Literal:
        return "choice"
    if isinstance(base, type) and issubclass(base, Enum):
        return "whole" if issubclass(base, int) else "choice"
    names = {bool: "flag", int: "whole", float: "number", str: "text", list: "list", tuple: "list", dict: "mapping"}
    return names.get(base, "text" if "Path" in str(base) else "anything")


@pytest.mark.parametrize("section", MODELS)
def test_pydantic_sections_take_what_we_take_and_refuse_what_we_refuse(section):
    """Stricter than DeepSpeed on purpose in two ways: true is no number, and infinity is no JSON."""
    model = load(MODELS[section])
    base = {"stage": 1} if section == "zero_optimization" else {"enabled": True} if section == "fp16" else {}
    for name, entry in node(section).keys.items():
        if not isinstance(entry, Key):
            continue
        for value in ODD:
            verdict = judge(entry, value, checked=True)
            refused_by_us = verdict is not None and verdict[0] is Severity.error
            stricter = entry.type in ("whole", "number") and (isinstance(value, bool) or value in (float("inf"), 10**400))
            stricter |= entry.type in ("whole", "number") and value != value
            if value == "2.0" and name in ("loss_scale_window", "min_loss_scale"):
                continue  # refused by their validator, and a warning here
            assert refused_by_us == refused(model, base, name, value) or (refused_by_us and stricter), (section, name, value)


def refused(model, base, name, value):
    with contextlib.redirect_stdout(None):
        try:
            model(**{**base, name: value})
        except Exception:
            return True
    return False


def example(section):
    """A config that holds each key of the table."""
    values = {}
    for name, entry in section.keys.items():
        if isinstance(entry, Variants):
            values[name] = {}
        elif isinstance(entry, Section):
            values[name] = example(entry)
        elif entry.default is not None:
            values[name] = entry.default
    return values


@pytest.fixture(scope="module")
def asked():
    """What ``DeepSpeedConfig`` looks at, of a config with each section and of one without any."""
    asked = set()
    full = example(TOP)
    full |= {
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1.0}},
        "scheduler": {"type": "WarmupLR", "params": {}},
    }
    full["aio"]["use_gds"] = False
    full["checkpoint"]["writer"]["type"] = "fast"
    full["autotuning"]["model_info"] = {"profile": False}
    full["torch_autocast"] = {"enabled": False, "dtype": "bf16", "lower_precision_safe_modules": []}
    del full["tensor_parallel"]["partition_config"]
    for config in (full, {"train_batch_size": 1}):
        watching = Watching(config, asked=asked)
        with contextlib.redirect_stdout(None):
            deepspeed_config.DeepSpeedConfig(watching)
    return {key.replace("tensor_parallel.tensor_parallel", "tensor_parallel.tp") for key in asked}


def test_deepspeed_asks_for_nothing_that_the_table_lacks(asked):
    known = {key for key, _ in walk()} | set(TOP.removed) | {f"zero_optimization.{name}" for name in ZERO.removed}
    known |= {"optimizer.params.max_grad_norm", "optimizer.params.lr"}
    assert asked - known == set()


def test_deepspeed_asks_for_everything_in_the_table(asked):
    in_models = tuple(f"{section}." for section in MODELS)  # name for name above
    unread = {key for key, _ in walk() if key not in asked and not key.startswith(in_models)}
    unread = {key for key in unread if not any(key == late or key.startswith(f"{late}.") for late in AFTER_PARSING)}
    assert {key for key in unread if not getattr(node(key), "unused", "")} == set()


def test_removed_keys_are_deepspeeds_own():
    for section, theirs in ((TOP, "_REMOVED_TOP_LEVEL_CONFIG_KEYS"), (ZERO, "_REMOVED_ZERO_CONFIG_KEYS")):
        recent = {name for name, entry in section.removed.items() if entry.gone in ("0.19.7", "0.19.8")}
        assert recent == set(getattr(deepspeed_config, theirs))
    assert not set(REMOVED_TYPES) & set(deepspeed_config.DEEPSPEED_OPTIMIZERS)


def parameters(*classes, without=()):
    names = set()
    for each in classes:
        found = inspect.signature(each.__init__ if inspect.isclass(each) else each).parameters
        names |= {name for name, it in found.items() if it.kind is not inspect.Parameter.VAR_KEYWORD}
    return names - {"self", "params", "model_params", "optimizer", "adamw_mode", "max_grad_norm", *without}


def test_optimizer_parameters_are_those_of_the_constructors():
    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
    from deepspeed.runtime.engine import DeepSpeedEngine

    taken_out = {"torch_adam", "adam_w_mode", "fp32_optimizer_states", "foreach"}
    table = {name: set(section.keys) - {"max_grad_norm"} for name, section in PARAMS.items()}
    assert table["adam"] == table["adamw"]
    assert table["adamw"] == taken_out | parameters(FusedAdam, DeepSpeedCPUAdam, torch.optim.AdamW, torch.optim.Adam)
    assert table["adagrad"] == parameters(DeepSpeedCPUAdagrad, torch.optim.Adagrad)
    assert table["lamb"] == parameters(FusedLamb)
    assert table["lion"] == parameters(FusedLion, DeepSpeedCPULion)
    halves = {*DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS}
    assert table["muon"] == halves | taken_out | {"muon_lr", "adam_lr", "per_head_muon"}


def test_types_of_optimizer_and_schedule_exist():
    import torch
    from deepspeed.runtime import lr_schedules

    assert set(OPTIMIZER.keys["type"].folded) == set(deepspeed_config.DEEPSPEED_OPTIMIZERS)
    theirs = {name for name, it in vars(torch.optim).items() if inspect.isclass(it) and issubclass(it, torch.optim.Optimizer)}
    assert set(OPTIMIZER.keys["type"].choices) == theirs - {"Optimizer"}
    assert set(SCHEDULES) == set(lr_schedules.VALID_LR_SCHEDULES)
    kind = torch.optim.lr_scheduler.LRScheduler
    theirs = {name for name, it in vars(torch.optim.lr_scheduler).items() if inspect.isclass(it) and issubclass(it, kind)}
    assert set(node("scheduler").keys["type"].choices) - set(SCHEDULES) == theirs - {"LRScheduler", "_LRScheduler"}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_parameters_and_defaults_are_those_of_the_class(name):
    from deepspeed.runtime import lr_schedules

    signature = inspect.signature(getattr(lr_schedules, name).__init__).parameters
    assert set(SCHEDULES[name].keys) == set(signature) - {"self", "optimizer"}
    for key, entry in SCHEDULES[name].keys.items():
        default = signature[key].default
        assert entry.default == (None if default is inspect.Parameter.empty else default), key


def test_each_unused_key_says_why():
    unused = {key: entry.unused for key, entry in walk() if isinstance(entry, Key) and entry.unused}
    assert {"disable_allgather", "zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size"} <= set(
        unused
    )


@pytest.mark.parametrize("name", TOP.keys)
def test_a_null_that_stops_the_parser_is_an_error(name):
    config = {"train_micro_batch_size_per_gpu": 1, name: None}
    try:
        with contextlib.redirect_stdout(None):
            deepspeed_config.DeepSpeedConfig(dict(config))
    except Exception:
        assert any(finding.severity is Severity.error for finding in lint(config, Situation()))
