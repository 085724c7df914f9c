"""Findings about single keys: each kind by example, every misspelling, and any JSON at all."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.dsconfig.findings import Finding, Situation
from glmexp.dsconfig.structure import findings
from glmexp.dsconfig.table import TOP, Key, Section, Variants, walk

DEEPSPEED, HF = Situation(), Situation(reader="hf")


def found(config, situation=DEEPSPEED):
    return [(it.key, it.kind.value, it.severity.value) for it in findings(config, situation)]


def only(config, situation=DEEPSPEED):
    """The message of the only finding."""
    (finding,) = findings(config, situation)
    return finding.message


def at(key, value):
    """``{"a": {"b": value}}`` for ``a.b``; parameters stand beside the type that has them."""
    section, _, rest = key.partition(".")
    if not rest:
        return {key: value}
    inner = at(rest, value)
    if rest.startswith("params."):
        inner["type"] = "WarmupDecayLR" if section == "scheduler" else "AdamW"
    return {section: inner}


UNKNOWN = {
    "gradient_cliping": "gradient_clipping",
    "gradient_clip": "gradient_clipping",
    "zero_optimisation": "zero_optimization",
    "Zero-Optimization": "zero_optimization",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "comms_config": "comms_logger",
    "max_grad_norm": "gradient_clipping",
    "learning_rate": "optimizer.params.lr",
    "zero_optimization.reduce_bucket": "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_sub_group_size": "zero_optimization.sub_group_size",
    "zero_optimization.offload_param.fast_ini": "zero_optimization.offload_optimizer.fast_init",
    "fp16.loss_scale_windows": "fp16.loss_scale_window",
    "optimizer.typ": "optimizer.type",
    "optimizer.parms": "optimizer.params",
    "optimizer.params.learning_rate": "AdamW has no parameter learning_rate; did you mean lr?",
    "scheduler.params.warmup_steps": "WarmupDecayLR has no parameter warmup_steps; did you mean warmup_num_steps?",
    "activation_checkpointing.partitioned_activations": "activation_checkpointing.partition_activations",
    "flops_profiler.profile_steps": "flops_profiler.profile_step",
    "checkpoint.tag_validate": "checkpoint.tag_validation",
    "checkpoint.writer.io_buffer": "checkpoint.writer.io_buffer_size",
    "aio.block_sise": "aio.block_size",
    "data_types.grad_acc_dtype": "data_types.grad_accum_dtype",
    "torch_autocast.dtyp": "torch_autocast.dtype",
    "wandb.entity": "wandb.team",
    "compile.disable": "leave it out",
    "monitor_config": "leave it out",
    "msamp": "",
    "expert_parallel.autoep_sise": "expert_parallel.autoep_size",
    "tensor_parallel.tp.tp_sizes": "tensor_parallel.tp.tp_size",
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_with_the_nearest_name(key):
    config = at(key, {})
    assert found(config) == [(key, "unknown", "error")]
    assert UNKNOWN[key] in only(config)
    assert found(config, HF) == found(config)


MISPLACED = {
    "stage": "zero_optimization.stage",
    "offload_optimizer": "zero_optimization.offload_optimizer",
    "overlap_comm": "zero_optimization.overlap_comm",
    "stage3_prefetch_bucket_size": "zero_optimization.stage3_prefetch_bucket_size",
    "prefetch_bucket_size": "zero_optimization.prefetch_bucket_size",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "lr": "optimizer.params.lr",
    "optimizer.lr": "optimizer.params.lr",
    "optimizer.weight_decay": "optimizer.params.weight_decay",
    "scheduler.warmup_num_steps": "scheduler.params.warmup_num_steps",
    "bf16.loss_scale": "fp16.loss_scale",
    "fp16.check_grad_overflow": "bf16.check_grad_overflow",
    "zero_optimization.gradient_clipping": "gradient_clipping at the top level",
    "zero_optimization.nvme_path": "zero_optimization.offload_param.nvme_path or zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.fast_init": "zero_optimization.offload_optimizer.fast_init",
    "zero_optimization.offload_param.stage": "zero_optimization.stage",
    "fp16.communication_data_type": "communication_data_type at the top level",
    "compile.autotp_size": "tensor_parallel.autotp_size",
}


@pytest.mark.parametrize("key", MISPLACED)
def test_a_key_in_the_wrong_section(key):
    assert found(at(key, 1)) == [(key, "misplaced", "error")]
    assert MISPLACED[key] in only(at(key, 1))


REMOVED = {
    "elasticity": ({}, "error", "0.19.8"),
    "amp": ({"enabled": False}, "error", "bf16"),
    "curriculum_learning": ({}, "error", "data_efficiency.data_sampling"),
    "nebula": ({}, "error", "0.19.7"),
    "fp32_allreduce": (True, "error", "communication_data_type"),
    "seq_parallel_comm_data_type": ("fp32", "error", "seq_parallel_communication_data_type"),
    "bfloat16": ({"enabled": True}, "warning", "bf16"),
    "zero_optimization": (True, "warning", '"stage": 1'),
    "zero_optimization.mics_shard_size": (4, "error", "0.19.7"),
    "zero_optimization.cpu_offload": (True, "warning", "offload_optimizer"),
    "zero_optimization.cpu_offload_use_pin_memory": (True, "error", "pin_memory"),
    "zero_optimization.cpu_offload_params": (True, "error", "offload_param"),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (True, "warning", "stage3_gather_16bit"),
    "zero_optimization.find_unused_parameters": (True, "error", "ignore_unused_parameters"),
    "aio.thread_count": (4, "error", "intra_op_parallelism"),
    "compile.backend": ("inductor", "error", "engine.compile()"),
    "optimizer.type": ("OneBitAdam", "error", "0.19.7"),
}


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_with_what_to_write_now(key):
    value, severity, hint = REMOVED[key]
    assert found(at(key, value)) == [(key, "removed", severity)]
    assert hint in only(at(key, value))


VALUES = {
    "train_micro_batch_size_per_gpu": {1.5: "error", "2": "error", 0: "error", -1: "error", 2.0: "warning"},
    "train_batch_size": {None: "", 8: "", math.nan: "error", math.inf: "error", 10**400: "error"},
    "gradient_clipping": {None: "error", 0: "", 1: "", 0.5: "", "1.0": "error", 10**400: "error"},
    "wall_clock_breakdown": {1: "", 2: "error", "false": "error", None: "error"},
    "zero_force_ds_cpu_optimizer": {None: "error"},
    "communication_data_type": {"fp16": "", "BF16": "", "float16": "error", None: "", 16: "error"},
    "gradient_allreduce_op": {"Mean": "", "avg": "error", None: "error"},
    "zero_optimization": {2: "error", None: "error", "stage2": "error"},
    "aio": {None: "", False: "error"},
    "zero_optimization.stage": {3: "", 2.0: "", "2": "warning", 4: "error", -1: "error", 1.5: "error"},
    "zero_optimization.reduce_bucket_size": {5e8: "", "5e8": "error", "500000000": "warning", 0: "error", 1e30: "error"},
    "zero_optimization.overlap_comm": {None: "", "yes": "warning", "maybe": "error", 1.0: ""},
    "zero_optimization.offload_param.device": {"cpu": "", "gpu": "error", None: "error", "CPU": "error"},
    "zero_optimization.offload_optimizer.ratio": {1: "", 1.5: "error", "0.5": "warning"},
    "zero_optimization.zenflow.update_interval": {"auto": "", 4: "", 0: "error", "four": "error"},
    "zero_optimization.zenflow.select_strategy": {"auto": "", "steps": "error"},
    "fp16.loss_scale": {0: "", -1: "error", math.inf: "error"},
    "fp16.hysteresis": {2: "", "2": "warning", "two": "error"},
    "fp16.loss_scale_window": {0: "error", 1000: ""},
    "optimizer.type": {"adamw": "", "SGD": "", "sgd": "error", "AdanW": "error", None: "", 1: "error"},
    "optimizer.params.lr": {1e-4: "", "1e-4": "error", -1: "error"},
    "optimizer.params.betas": {(0.9, 0.999): "", (0.9, "0.999"): "error", 0.9: "error"},
    "optimizer.params.torch_adam": {True: "", "true": "error"},
    "scheduler.type": {"WarmupLR": "", "StepLR": "", "warmuplr": "error", "cosine": "error"},
    "scheduler.params.warmup_num_steps": {100: "", 0: "error", 0.1: "error"},
    "data_types.grad_accum_dtype": {"fp32": "", "float32": "", "tf32": "error", None: ""},
    "data_types.keep_in_fp32_modules": {"auto": "", ("router",): "", "router": "error"},
    "checkpoint.tag_validation": {"Fail": "", "strict": "error"},
    "compile.passes": {("z3",): "", ("z9",): "error", "z3": "error", None: ""},
    "wandb.project": {"a": "", 7: "error", None: "error"},
    "zero_optimization.leaf_module.classes": {"Block": "", ("Block",): "", 1: "error"},
}


@pytest.mark.parametrize("key", VALUES)
def test_a_value_of_the_wrong_type_or_range(key):
    for value, severity in VALUES[key].items():
        config = at(key, list(value) if isinstance(value, tuple) else value)
        assert found(config) == ([(key, "value", severity)] if severity else []), value


@pytest.mark.parametrize(
    "key", ["train_micro_batch_size_per_gpu", "gradient_clipping", "zero_optimization.stage", "fp16.hysteresis"]
)
def test_true_and_false_are_no_numbers(key):
    for value in (True, False):
        assert found(at(key, value)) == [(key, "value", "error")]
    assert "counts as 1" in only(at(key, True))


def test_what_a_message_says():
    assert only({"train_micro_batch_size_per_gpu": 1.5}) == "must be a whole number, got 1.5"
    assert only(at("zero_optimization.offload_optimizer.ratio", 2)) == "must be at least 0 and at most 1, got 2"
    assert "write it without quotes" in only(at("optimizer.params.lr", "1e-5"))
    assert "did you mean WarmupLR?" in only(at("scheduler.type", "WarmupLinear"))
    assert "counts as true" in only({"dump_state": "false"})


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("gradient_clipping", "cannot use"),
        ("zero_optimization.stage", "takes 0"),
        ("zero_optimization.reduce_bucket_size", "takes 500000000"),
        ("zero_optimization", "takes its defaults"),
        ("optimizer.params.lr", "cannot use"),
        ("optimizer.params.torch_adam", "cannot use"),
    ],
)
def test_a_leftover_auto_with_what_deepspeed_makes_of_it(key, says):
    if key == "zero_optimization":
        says = "cannot use"  # **"auto"
    assert found(at(key, "auto")) == [(key, "auto", "error")]
    assert says in only(at(key, "auto"))


def test_auto_for_the_trainer():
    assert found({"gradient_clipping": "auto"}, HF) == [("gradient_clipping", "auto", "info")]
    assert "max_grad_norm" in only({"gradient_clipping": "auto"}, HF)
    assert found({"optimizer": {"type": "SGD", "params": {"lr": "auto"}}}, HF) == [("optimizer.params.lr", "auto", "info")]
    assert found({"steps_per_print": "auto"}, HF) == []  # accelerate overwrites it, which a rule tells
    assert found(at("optimizer.params.betas", ["auto", 0.9]), HF) == [("optimizer.params.betas", "auto", "error")]


def test_keys_that_this_deepspeed_never_uses():
    config = {
        "zero_optimization": {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 5e8},
        "disable_allgather": False,
    }
    assert found(config) == [
        ("zero_optimization.allgather_partitions", "no_effect", "info"),
        ("zero_optimization.allgather_bucket_size", "no_effect", "info"),
        ("disable_allgather", "no_effect", "info"),
    ]


def test_the_old_name_of_bf16_is_looked_into_and_ignored_beside_the_new_one():
    assert found({"bfloat16": {"enabled": True, "loss_scale": 1}}) == [
        ("bfloat16", "removed", "warning"),
        ("bfloat16.loss_scale", "misplaced", "error"),
    ]
    assert found({"bfloat16": {"enabled": True}, "bf16": {"enabled": False}}) == [("bfloat16", "removed", "error")]


def test_parameters_are_those_of_their_type():
    adagrad = {"optimizer": {"type": "Adagrad", "params": {"betas": [0.9, 0.999]}}}
    assert found(adagrad) == [("optimizer.params.betas", "unknown", "error")]
    assert found({"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "anything": 1}}}) == []
    cosine = {"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_min_lr": 0}}}
    assert found(cosine) == [("scheduler.params.warmup_min_lr", "unknown", "error")]


KNOWN = [key for key, node in walk() if not key.startswith("optimizer.params.") and not key.startswith("scheduler.params.")]


def misspellings(name):
    """The name without one letter, with one doubled, and with two swapped."""
    middle = len(name) // 2
    yield name[:middle] + name[middle + 1 :]
    yield name[:middle] + name[middle] + name[middle:]
    yield name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]


def test_each_known_key_misspelt_is_found_with_its_right_name():
    siblings = {}
    for key in KNOWN:
        section, _, name = key.rpartition(".")
        siblings.setdefault(section, set()).add(name)
    tried = 0
    for key in KNOWN:
        section, _, name = key.rpartition(".")
        for wrong in misspellings(name):
            if len(name) < 3 or wrong == name or wrong in siblings[section]:
                continue
            misspelt = f"{section}.{wrong}" if section else wrong
            assert found(at(misspelt, {})) == [(misspelt, "unknown", "error")]
            assert f"did you mean {key}?" in only(at(misspelt, {})), misspelt
            tried += 1
    assert tried > 600


def names(section=TOP):
    for name, node in section.keys.items():
        yield name
        if isinstance(node, Section):
            yield from names(node)
        elif isinstance(node, Variants):
            for variant in node.sections.values():
                yield from names(variant)
        else:
            assert isinstance(node, Key)


WORDS = st.sampled_from([*sorted(set(names())), *TOP.removed, "auto", "cpu", "AdamW", "WarmupLR"]) | st.text(max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=6), max_leaves=30
)


@given(st.dictionaries(WORDS, JSON, max_size=8), st.sampled_from([DEEPSPEED, HF]))
@settings(deadline=None, max_examples=150)
def test_any_json_gives_findings_and_no_exception(config, situation):
    for finding in findings(config, situation):
        assert isinstance(finding, Finding)
        assert finding.message
        assert "\n" not in finding.message
        assert len(finding.message) < 400


@given(st.sampled_from(KNOWN), JSON)
@settings(deadline=None, max_examples=150)
def test_any_value_of_a_known_key_gives_no_exception(key, value):
    list(findings(at(key, value), DEEPSPEED))
