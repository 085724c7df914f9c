"""``export/``: the trained weights, whole, the same at every stage, and for plain transformers; or no folder at all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from worker_trials import MOVING, RunTrial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.trial.record import Phase, State

SMOOTH = "optimizer.eps=1e-4"
"""Adam's default divides gradients that are all rounding by themselves, which makes a whole step of noise."""
SHORT = [*MOVING, SMOOTH, "batch.total=8", "batch.micro=4", "train.max_steps=4"]
SAVED = [*SHORT, "train.save_weights=true"]

LOADS = """
import sys
for name in ("glmexp", "omegaconf", "hydra", "deepspeed"):
    sys.modules[name] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
ids, found = torch.load(sys.argv[1]), {}
for folder in sys.argv[3:]:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.use_cache and all(p.numel() for p in model.parameters())
    assert tokenizer.decode(model.generate(**tokenizer("你好", return_tensors="pt"), max_new_tokens=4)[0])
    with torch.no_grad():
        found[folder] = model(ids).logits
torch.save(found, sys.argv[2])
"""


def logits_elsewhere(ids: torch.Tensor, folders: list[Path], workplace: Path) -> list[torch.Tensor]:
    """What plain transformers computes from each folder, in a process that cannot import glmexp."""
    given, answer = workplace / "ids.pt", workplace / "logits.pt"
    torch.save(ids, given)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(given), str(answer), *map(str, folders)],
        cwd=workplace, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = torch.load(answer)
    return [found[str(folder)] for folder in folders]


def test_every_stage_exports_the_trained_model(run_trial: RunTrial, tmp_path: Path) -> None:
    apart = ["zero=stage3", "zero.stage3_param_persistence_threshold=0"]
    trials = [
        run_trial("stage0", *SAVED, "zero=stage0").ok(),
        run_trial("stage2", *SAVED, "zero=stage2").ok(),
        run_trial("stage3", *SAVED, *apart, ranks=2).ok(),
        run_trial("bf16", *SAVED, *apart, "precision=bf16", ranks=2).ok(),
    ]
    folders = [trial.folder / "export" for trial in trials]
    plain = train_plainly(write_trial(tmp_path / "plain", SHORT)).model
    expected = {name: tensor for name, tensor in plain.state_dict().items() if tensor.numel()}
    for folder in folders[:3]:
        found = load_file(folder / "model.safetensors")
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[name], atol=2e-5, rtol=1e-5)
    halves = load_file(folders[3] / "model.safetensors")
    assert halves.keys() == expected.keys()
    assert {tensor.dtype for tensor in halves.values()} == {torch.bfloat16}
    ids = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        reference = plain(ids).logits
    *wholes, rounded = logits_elsewhere(ids, folders, tmp_path)
    scale = float(reference.abs().max())
    for logits in wholes:
        assert float((logits - reference).abs().max()) < 1e-3 * scale
    assert rounded.dtype is torch.bfloat16
    assert float((rounded.float() - reference).abs().max()) < 0.1 * scale
    assert not [path for trial in trials for path in trial.folder.glob(".export*")]


def test_a_full_disk_leaves_the_run_complete(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *SAVED, "train.max_steps=1", extra={"TEST_FAULT": "disk:0"}).ok()
    assert "the weights were not written" in trial.log
    assert not (trial.folder / "export").exists()


def test_an_export_that_fails_half_way_leaves_nothing(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *SAVED, "train.max_steps=1", extra={"TEST_FAULT": "export_fails:0"})
    record = trial.record()
    assert (trial.codes, record.outcome, record.phase) == ([1], State.failed, Phase.saving)
    assert "No space left on device" in record.error
    assert not list(trial.folder.glob("*export*"))
    assert not list(trial.folder.rglob("*.safetensors"))


def test_an_export_that_is_killed_half_way_leaves_no_export_folder(run_trial: RunTrial) -> None:
    trial = run_trial("trial", *SAVED, "train.max_steps=1", extra={"TEST_FAULT": "export_is_killed:0"})
    assert trial.codes == [-9]
    assert list(trial.folder.glob(".export*"))  # under another name
    assert not (trial.folder / "export").exists()
