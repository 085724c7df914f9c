"""A trained model in use: eight samples come back word for word, from a run, a checkpoint and every form of export."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trained_runs import (
    FULL,
    ON_IT,
    OTHERS,
    RECIPE,
    SAMPLES,
    answers,
    original_folder,
    sample_file,
    write_export,
)
from worker_trials import ROOT, Trial, start, write_trial

from glmexp.config import load
from glmexp.models import build_model, load_tokenizer, preflight
from glmexp.models.prompts import prompts_for
from glmexp.train.evaluation.generate import generate
from glmexp.train.weights.usage import QUESTION
from glmexp.trial.record import CONFIG

ASKED = "灯塔几点开门？"
Train = Callable[[str], Trial]

PROGRAMS = """
import contextlib, io, json, os, sys
for name in json.loads(sys.argv[2]):
    sys.modules[name] = None
said = {}
for folder in sys.argv[3:]:
    os.chdir(folder)
    program = open("README.md", encoding="utf-8").read().split("```python\\n")[1].split("```")[0]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program.replace(json.loads(sys.argv[1])["card"], json.loads(sys.argv[1])["asked"]), {})
    said[folder] = out.getvalue().strip()
print(json.dumps(said))
"""


def programs_say(folders: list[Path], without: list[str], cwd: Path) -> list[str]:
    """What the programs in the model cards of exports print, in a process that cannot import some packages."""
    question = json.dumps({"card": QUESTION, "asked": ASKED})
    environment = {**os.environ, "PYTHONPATH": "" if without else str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, question, json.dumps(without), *map(str, folders)],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return [said[str(folder)] for folder in folders]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("use")


@pytest.fixture(scope="module")
def full(preloaded: subprocess.Popen[str], place: Path) -> Path:
    """A tiny model that has learnt OTHERS, by two ranks at stage 3, with a checkpoint at its end."""
    overrides = [
        *FULL, sample_file(place / "others.jsonl", OTHERS), "zero=stage3", "zero.stage3_param_persistence_threshold=0",
        "batch.micro=4", "checkpoint.every=20", "checkpoint.keep=2",
    ]  # fmt: skip
    return start(preloaded, write_trial(place / "full", overrides, 2), 2).ok().folder


@pytest.fixture(scope="module")
def original(full: Path, place: Path) -> Path:
    """The same model as a folder of the original release."""
    return original_folder(full, place / "chatglm2-tiny")


@pytest.fixture(scope="module")
def train(preloaded: subprocess.Popen[str], place: Path, full: Path, original: Path) -> Train:
    """Trains SAMPLES by a method, onto what has learnt OTHERS; each method once."""
    done: dict[str, Trial] = {}

    def run(method: str) -> Trial:
        if method not in done:
            base = full / "export" if method == "lora" else original
            overrides = [*RECIPE, *ON_IT[method], "model=auto", f"model.path={base}", "batch.micro=8"]
            overrides += ["checkpoint.every=5", "checkpoint.keep=99", sample_file(place / "samples.jsonl", SAMPLES)]
            overrides = [item for item in overrides if method != "freeze" or item != "method.dropout=0"]
            done[method] = start(preloaded, write_trial(place / method, overrides)).ok()
        return done[method]

    return run


def test_a_full_model_says_what_it_learnt(full: Path, place: Path) -> None:
    assert answers(full) == OTHERS
    assert answers(full, "newest") == OTHERS
    weights, again = load_file(full / "export/model.safetensors"), place / "again"
    (full / "export").rename(place / "finished")
    write_export(full, again)  # as of a killed run, by one process from the shards of two
    (place / "finished").rename(full / "export")
    found = load_file(again / "model.safetensors")
    assert found.keys() == weights.keys()
    assert all(tensor.equal(weights[name]) for name, tensor in found.items())
    assert (again / "tokenizer.json").read_bytes() == (full / "export/tokenizer.json").read_bytes()


METHODS = ["lora", pytest.param("freeze", marks=pytest.mark.slow), pytest.param("ptuning_v2", marks=pytest.mark.slow)]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_it_learnt(train: Train, method: str) -> None:
    run = train(method).folder
    assert answers(run) == SAMPLES
    assert answers(run, "newest") == SAMPLES
    assert answers(run, "step-000005") != SAMPLES


def test_models_and_adapters_say_it_without_glmexp(full: Path, train: Train, place: Path) -> None:
    lora = train("lora").folder
    merged = write_export(lora, place / "merged", merge=True)
    said = programs_say([full / "export", lora / "export", merged], ["glmexp", "omegaconf", "hydra", "deepspeed"], place)
    assert said == [OTHERS[ASKED], SAMPLES[ASKED], SAMPLES[ASKED]]
    json.loads((lora / "export/adapter_config.json").read_text())


@pytest.mark.slow
def test_exports_onto_an_original_base_say_it_with_glmexp(train: Train, original: Path, place: Path) -> None:
    freeze, prefix = (train(method).folder / "export" for method in ("freeze", "ptuning_v2"))
    assert not list(original.glob("*.ran"))  # trained on, asked, exported
    assert programs_say([freeze], ["glmexp", "omegaconf", "hydra", "deepspeed"], place) == [SAMPLES[ASKED]]
    again = write_export(train("freeze").folder, place / "freeze_original", original=True)
    assert programs_say([prefix, again], [], place) == [SAMPLES[ASKED]] * 2


def test_code_beside_the_weights_is_never_run(train: Train, original: Path) -> None:
    """A release's folder with ``auto_map`` and its own code: training, answers and exports work, and none of it is imported."""
    run = train("lora").folder  # onto the native model; the slow tests train onto the original
    config = load(run / CONFIG)
    told = replace(config.model, path=str(original))
    preflight(told)
    model = build_model(told, torch.float32, "eager", 0, torch.device("cpu"))
    tokenizer = load_tokenizer(original)
    prompt = prompts_for(tokenizer).prompt([{"role": "user", "content": ASKED}])
    assert generate(model, tokenizer, [prompt], max_new_tokens=32) == [OTHERS[ASKED]]
    assert not list(original.glob("*.ran"))


def test_the_exported_tokenizer_encodes_as_the_original(full: Path, original: Path) -> None:
    exported, first = load_tokenizer(full / "export"), load_tokenizer(original)
    for text in ("你好，world！ 两个  空格", "\n\t缩进 42", "[gMASK] sop </s> 不是标记", "émoji 🪁"):
        assert exported.encode(text) == first.encode(text)
        assert exported.encode(text, add_special_tokens=False) == first.encode(text, add_special_tokens=False)
    assert exported.encode_prompt(ASKED) == first.encode_prompt(ASKED)
    assert exported.padding_side == first.padding_side == "left"


def test_cards_tell_what_was_done_and_not_where(full: Path, train: Train, place: Path) -> None:
    run = train("lora").folder
    text = (run / "export/README.md").read_text(encoding="utf-8")
    for words in (
        "library_name: peft",
        "lora: rank 16",
        "micro 8 x accumulation 1 x ranks 1 = 8",
        "samples.jsonl: 8 samples read",
    ):
        assert words in text
    for card in place.glob("**/README.md"):
        assert str(place) not in card.read_text(encoding="utf-8")


def test_a_chat_through_a_pipe(full: Path) -> None:
    """The answers alone on standard output, a line each; what was said is forgotten in between."""
    asked = "\nclear\n".join([ASKED, "Who sings at noon?"]) + "\nexit\nnever read\n"
    done = subprocess.run(
        [sys.executable, "-m", "glmexp", "predict", str(full)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, input=asked, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [OTHERS[ASKED], OTHERS["Who sings at noon?"]]
