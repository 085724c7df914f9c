"""The fields in which "auto" is filled in, against the installed transformers and accelerate."""

import copy
import os
from types import SimpleNamespace

import pytest

from glmexp.dsconfig.findings import Kind, Severity, Situation
from glmexp.dsconfig.structure import findings
from glmexp.dsconfig.table import Key, walk
from glmexp.dsconfig.table.trainer import FILLED, OVERWRITTEN


def everywhere_auto():
    """ "auto" at each key of the table, but for what would keep the two libraries from reading the rest."""
    config = {}
    for key, node in walk():
        *sections, name = key.split(".")
        if isinstance(node, Key) and sections[:1] not in (["tensor_parallel"], ["weight_quantization"]):
            place = config
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = "auto"
    return config


def leftover(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from leftover(value, f"{prefix}{name}.")
        elif value == "auto":
            yield f"{prefix}{name}"


def test_auto_is_filled_where_we_say_and_nowhere_else(monkeypatch):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = pytest.importorskip("transformers.integrations.deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    config = everywhere_auto()
    config["zero_optimization"]["stage"] = 3  # the Trainer fills two of its keys at stage 3 alone
    filled = deepspeed.HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    arguments = SimpleNamespace(
        world_size=1, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_grad_norm=1.0, learning_rate=1e-4,
        adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, weight_decay=0.1, save_on_each_node=False, fp16=False,
        fp16_full_eval=False, bf16=True, bf16_full_eval=False, get_warmup_steps=lambda steps: 0,
    )  # fmt: skip
    filled.trainer_config_process(arguments)
    DeepSpeedPlugin(hf_ds_config=filled)
    filled.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=64)), 100)

    gone = set(leftover(config)) - set(leftover(filled.config))
    assert gone == set(FILLED) - {"zero_optimization.stage"} | set(OVERWRITTEN)

    stage = deepspeed.HfTrainerDeepSpeedConfig({"zero_optimization": {"stage": "auto"}})
    assert DeepSpeedPlugin(hf_ds_config=stage).deepspeed_config["zero_optimization"]["stage"] == 2


def test_auto_is_info_for_the_trainer_in_those_fields_and_an_error_elsewhere():
    found = {finding.key: finding for finding in findings(everywhere_auto(), Situation(reader="hf"))}
    assert set(FILLED) <= set(found)
    del found["pipeline.stages"]  # the word is its default
    for key, finding in found.items():
        assert finding.kind is Kind.auto, finding
        assert finding.severity is (Severity.info if key in FILLED else Severity.error), finding
    for finding in findings(everywhere_auto(), Situation(reader="deepspeed")):
        assert finding.key == "pipeline.stages" or (finding.kind, finding.severity) == (Kind.auto, Severity.error), finding
