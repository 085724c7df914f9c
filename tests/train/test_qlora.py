"""QLoRA: how it is wired, on the CPU, for which bitsandbytes has a backend that is too slow for use; glmexp refuses it there.

What only a GPU shows, memory and speed, is in benchmarks/qlora.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from worker_trials import MOVING, Plain, RunTrial, Trial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.config import UserError, compose
from glmexp.config.schema import Config
from glmexp.models import build_model
from glmexp.models.method import apply, check_targets, describe_trainable, linear_layers
from glmexp.models.quantised import quantization

pytest.importorskip("bitsandbytes")

QLORA = [*MOVING, "method=qlora", "method.dropout=0", "optimizer.lr=1e-2", "batch.total=8"]
PARTITIONED = ["zero=stage3", "zero.stage3_param_persistence_threshold=0", "zero.stage3_max_reuse_distance=0"]


def config(*overrides: str) -> Config:
    return compose(["model=tiny", "method=qlora", *overrides]).config


def quantised(asked: Config, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    packing = quantization(asked.method, dtype)
    return build_model(asked.model, dtype, "sdpa", 0, torch.device("cpu"), packing)


def packed(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state of the 4-bit weights: bytes, scales and all."""
    return {name: tensor for name, tensor in model.state_dict().items() if "_proj.weight" in name}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return train_plainly(write_trial(tmp_path_factory.mktemp("qlora") / "plain", QLORA))


@pytest.mark.parametrize(
    ("stage", "ranks", "activation"),
    [
        (2, 2, "checkpoint"),
        pytest.param(0, 1, "none", marks=pytest.mark.slow),
        pytest.param(1, 2, "none", marks=pytest.mark.slow),
        pytest.param(3, 2, "checkpoint", marks=pytest.mark.slow),
    ],
)
def test_every_stage_equals_plain_pytorch(run_trial: RunTrial, plain: Plain, stage: int, ranks: int, activation: str) -> None:
    extra = PARTITIONED if stage == 3 else [f"zero=stage{stage}"]
    trial = run_trial("trial", *QLORA, *extra, f"activation={activation}", "batch.micro=4", ranks=ranks).ok()
    same(trial, plain)


def same(trial: Trial, plain: Plain) -> None:
    assert plain.losses[0] - plain.losses[-1] > 0.02
    assert trial.losses == pytest.approx(plain.losses, abs=5e-4)
    assert trial.norms == pytest.approx(plain.norms, rel=2e-3)
    assert "trainable parameters: 18,432 of 2,871,296 (0.64 %)" in trial.log


def test_all_linear_layers_but_the_head_are_quantised_and_frozen() -> None:
    asked = config()
    model = quantised(asked)
    layers = linear_layers(model)
    assert len(layers) == 12
    assert {type(layer).__name__ for layer in layers.values()} == {"Linear4bit"}
    assert {layer.weight.dtype for layer in layers.values()} == {torch.uint8}
    assert model.get_output_embeddings().weight.dtype is torch.bfloat16
    trained = apply(model, asked.method)
    assert all(("lora_" in name) is p.requires_grad for name, p in trained.named_parameters())
    assert {p.dtype for p in trained.parameters() if p.requires_grad} == {torch.bfloat16}
    assert "of 2,871,296" in describe_trainable(trained)  # numbers, not bytes


def test_each_setting_reaches_the_weights() -> None:
    state = (
        quantised(config("method.quant_type=fp4", "method.double_quant=false")).model.layers[0].mlp.down_proj.weight.quant_state
    )
    assert (state.quant_type, state.nested) == ("fp4", False)
    state = quantised(config()).model.layers[0].mlp.down_proj.weight.quant_state
    assert (state.quant_type, state.nested, state.dtype) == ("nf4", True, torch.bfloat16)


def test_pretrained_weights_are_quantised_as_random_ones_are(tmp_path: Path) -> None:
    """By transformers as it reads them, and by us once they are drawn."""
    asked = config()
    build_model(asked.model, torch.bfloat16, "sdpa", 0, torch.device("cpu")).save_pretrained(tmp_path)
    read = packed(quantised(config("model=auto", f"model.path={tmp_path}")))
    drawn = packed(quantised(asked))
    assert len(drawn) == 12 * 6
    assert read.keys() == drawn.keys()
    assert all(torch.equal(read[name], drawn[name]) for name in drawn)


LOADS = """
import sys
for name in ("glmexp", "omegaconf", "hydra", "deepspeed"):
    sys.modules[name] = None
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
base, adapter = sys.argv[1:]
four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
ids = torch.arange(20)[None]
for options in ({}, {"quantization_config": four_bits}):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **options)
    before = model(ids).logits
    after = PeftModel.from_pretrained(model, adapter)(ids).logits
    assert (before - after).abs().max() > 1e-2
"""


def test_stage_3_equals_plain_pytorch_and_its_adapter_loads_in_plain_peft(
    run_trial: RunTrial, plain: Plain, tmp_path: Path
) -> None:
    trial = run_trial("trial", *QLORA, *PARTITIONED, "train.save_weights=true", "batch.micro=4", ranks=2).ok()
    same(trial, plain)
    base = tmp_path / "base"
    build_model(trial.config.model, torch.float32, "sdpa", trial.config.train.seed, torch.device("cpu")).save_pretrained(base)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(base), str(trial.folder / "export")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_wrong_target_is_refused_before_any_weights() -> None:
    asked = config("method.target_modules=[no_such]")
    with pytest.raises(UserError, match="no_such is not a linear layer"):
        check_targets(asked.model, asked.method)


def test_without_bitsandbytes_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"glmexp\[qlora\]"):
        quantization(config().method, torch.bfloat16)
