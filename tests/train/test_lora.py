"""LoRA: the numbers of plain PEFT at every stage, an adapter that loads without glmexp, wrong targets refused early."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from worker_trials import MOVING, Plain, RunTrial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.config import UserError, compose
from glmexp.config.schema import Config
from glmexp.models import build_model
from glmexp.models.method import apply, check_targets, default_targets, trainable_parameters

LORA = [*MOVING, "method=lora", "method.dropout=0", "optimizer.lr=1e-2", "batch.micro=4", "batch.total=8"]


def config(*overrides: str) -> Config:
    return compose(["model=tiny", "method=lora", *overrides]).config


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Without activation checkpoints."""
    return train_plainly(write_trial(tmp_path_factory.mktemp("lora") / "plain", LORA))


@pytest.mark.parametrize(
    ("stage", "ranks", "activation"),
    [
        (0, 1, "none"),
        (0, 1, "checkpoint"),
        (1, 2, "none"),
        (1, 1, "checkpoint"),
        (2, 1, "none"),
        (2, 1, "checkpoint"),
        (3, 1, "none"),
        (3, 2, "checkpoint"),
    ],
)
def test_every_stage_equals_plain_peft(run_trial: RunTrial, plain: Plain, stage: int, ranks: int, activation: str) -> None:
    extra = ["zero.stage3_param_persistence_threshold=0"] if stage == 3 else []
    overrides = [*LORA, f"zero=stage{stage}", f"activation={activation}", *extra]
    overrides.append("batch.micro=2" if ranks == 2 else "batch.micro=4")
    trial = run_trial("trial", *overrides, ranks=ranks).ok()
    assert plain.losses[0] - plain.losses[-1] > 0.02
    assert trial.losses == pytest.approx(plain.losses, abs=5e-4)
    assert trial.norms == pytest.approx(plain.norms, rel=2e-3)
    trainable, total = re.search("trainable parameters: ([\\d,]+) of ([\\d,]+)", trial.log).groups()  # type: ignore[union-attr]
    assert 0 < int(trainable.replace(",", "")) < 0.05 * int(total.replace(",", ""))


def test_dora_under_partitioned_weights_equals_plain_peft(run_trial: RunTrial, tmp_path: Path) -> None:
    """It reads the weights of its neighbours, the base layer and the adapter, which stage 3 gathers when they are asked for."""
    dora = [*LORA, "method.dora=true"]
    plain = train_plainly(write_trial(tmp_path / "plain", dora))
    released = ["zero.stage3_max_reuse_distance=0", "zero.stage3_param_persistence_threshold=0"]
    trial = run_trial("trial", *dora, "zero=stage3", *released, "batch.micro=2", "activation=checkpoint", ranks=2).ok()
    assert trial.losses == pytest.approx(plain.losses, abs=5e-4)
    assert trial.norms == pytest.approx(plain.norms, rel=2e-3)


def test_dora_and_rank_stabilisation_are_those_of_peft() -> None:
    asked = config("method.rank=16", "method.alpha=32", "method.rslora=true", "method.dora=true")
    adapted = apply(tiny(asked), asked.method)
    layer = adapted.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert layer.scaling["default"] == 32 / 16**0.5
    assert "default" in layer.lora_magnitude_vector
    asked = config("method.rank=16", "method.alpha=32")
    layer = apply(tiny(asked), asked.method).get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert layer.scaling["default"] == 2
    assert "default" not in layer.lora_magnitude_vector


LOADS = """
import json, sys
for name in ("glmexp", "omegaconf", "hydra", "deepspeed"):
    sys.modules[name] = None
import torch
from pathlib import Path
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
base, adapter = sys.argv[1:]
settings = json.loads(Path(adapter, "adapter_config.json").read_text())
assert settings["target_modules"] == ["k_proj", "q_proj", "v_proj"], settings
weights = load_file(Path(adapter, "adapter_model.safetensors"))
assert all(tensor.numel() for tensor in weights.values())
assert any(tensor.abs().max() > 0 for name, tensor in weights.items() if "lora_B" in name)
model = AutoModelForCausalLM.from_pretrained(base)
ids = torch.arange(20)[None]
before = model(ids).logits
after = PeftModel.from_pretrained(model, adapter)(ids).logits
assert (before - after).abs().max() > 1e-3
AutoTokenizer.from_pretrained(adapter)("你好")
assert len(weights) == 6 * model.config.num_hidden_layers
print("loaded")
"""


def test_the_adapter_loads_elsewhere(run_trial: RunTrial, tmp_path: Path) -> None:
    overrides = [*LORA, "train.save_weights=true", "train.max_steps=3", "batch.micro=2", "zero=stage3"]
    named = ["zero.stage3_param_persistence_threshold=0", "method.target_modules=[query_key_value]"]
    trial = run_trial("trial", *overrides, *named, ranks=2).ok()
    base = tmp_path / "base"
    build_model(trial.config.model, torch.float32, "eager", trial.config.train.seed, torch.device("cpu")).save_pretrained(base)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(base), str(trial.folder / "export")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "loaded" in done.stdout
    assert json.loads((trial.folder / "export" / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"


def tiny(method: Config) -> torch.nn.Module:
    return build_model(method.model, torch.float32, "eager", 0, torch.device("cpu"))


def test_original_names_are_understood() -> None:
    asked = config("method.target_modules=[query_key_value,dense]")
    model = apply(tiny(asked), asked.method)
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, p in model.named_parameters() if p.requires_grad}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_only_the_adapters_are_trained() -> None:
    asked = config("method.rank=4")
    model = apply(tiny(asked), asked.method)
    trainable, total = trainable_parameters(model)
    assert all(("lora_" in name) is p.requires_grad for name, p in model.named_parameters())
    assert 0 < trainable < 0.02 * total
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_adapters_have_the_dtype_of_the_base() -> None:
    asked = config()
    model = build_model(asked.model, torch.bfloat16, "eager", 0, torch.device("cpu"))
    assert {p.dtype for p in apply(model, asked.method).parameters()} == {torch.bfloat16}


def test_a_wrong_target_names_the_layers_there_are() -> None:
    asked = config("method.target_modules=[no_such]")
    with pytest.raises(UserError, match="no_such") as caught:
        check_targets(asked.model, asked.method)
    for name in ("q_proj", "o_proj", "down_proj", "method.target_modules"):
        assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 6


def test_a_wrong_target_is_refused_before_any_weights(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *MOVING, "method=lora", "method.target_modules=[no_such]")
    assert trial.codes == [1]
    assert trial.record().outcome.value == "invalid"
    assert trial.record().phase.value == "starting"


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = torch.nn.Linear(4, 12)
        self.dense = torch.nn.Linear(4, 4)


class Other(torch.nn.Module):
    """An architecture of fused attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attention = Attention()
        self.up = torch.nn.Linear(4, 8)


def test_defaults_of_another_model_are_its_attention_inputs() -> None:
    assert default_targets(Other()) == ["query_key_value"]  # type: ignore[arg-type]
    assert default_targets(torch.nn.Sequential(torch.nn.Linear(2, 2))) == ["0"]  # type: ignore[arg-type]


def test_full_trains_everything() -> None:
    asked = compose(["model=tiny", "method=full"]).config
    trainable, total = trainable_parameters(apply(tiny(asked), asked.method))
    assert trainable == total
