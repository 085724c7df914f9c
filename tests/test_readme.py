"""Every command of the two READMEs runs, and both READMEs show the same ones."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chat_model import write_chat_model

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.zh-CN.md")
NEEDS_WEIGHTS = "model=chatglm2_6b"


def blocks(text, language):
    """The contents of the fenced blocks in one language."""
    found, inside = [], None
    for line in text.splitlines(keepends=True):
        if not line.startswith("```"):
            if inside is not None:
                inside[1].append(line)
        elif inside is None:
            inside = (line[3:].strip(), [])
        else:
            found += ["".join(inside[1])] if inside[0] == language else []
            inside = None
    return found


def commands(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line for block in blocks(text, "bash") for line in block.splitlines() if line.strip()]


def test_both_languages_show_the_same_commands():
    assert commands(READMES[0]) == commands(READMES[1])
    assert len(commands(READMES[0])) >= 8


def test_the_first_two_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for name in READMES:
        shown = re.findall(r"^make (\w+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert shown[:2] == ["demo", "test"]
        assert all(f"\n{target}:" in makefile for target in shown)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the README's reader has: a data file, a model folder, an experiment of his own."""
    folder = tmp_path_factory.mktemp("reader")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    data, wrong, for_the_trainer = blocks(text, "json")
    (folder / "ds_config.json").write_text(wrong)
    (folder / "ds_hf.json").write_text(for_the_trainer)
    sample = json.loads(data)
    (folder / "train.jsonl").write_text("".join(json.dumps(sample, ensure_ascii=False) + "\n" for _ in range(4)))
    (folder / "bad.jsonl").write_text(json.dumps(sample) + '\n{"content": "坏", "summary": }\n')
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(blocks(text, "yaml")[0])
    write_chat_model(folder / "SmolLM2-135M-Instruct")
    return folder


def run(arguments, folder):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"}
    environ.pop("WANDB_API_KEY", None)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    return subprocess.run(
        arguments, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("command", commands("README.md"))
def test_a_command_of_the_readme_runs(command, folder):
    words = shlex.split(command)
    words[0] = sys.executable if words[0] == "python" else words[0]
    if NEEDS_WEIGHTS in words and "check" not in words:  # 12 GB from a hub: its configuration is checked instead
        words = [word for word in words if word != "measure"]
        words.insert(words.index("glmexp") + 1, "check")
    done = run(words, folder)
    assert done.returncode == 0, done.stdout + done.stderr


def shown(number):
    """The README's blocks of commands with what they print: 0 is that of the refusals, 1 that of the linter."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block for block in blocks(text, "") if block.startswith("$ ")][number]


def refusals():
    """(command, shown lines) of each refusal that the README shows."""
    block = shown(0)
    return [(part.splitlines()[0], part.splitlines()[1:]) for part in block.split("$ ")[1:]]


@pytest.mark.parametrize(("command", "shown"), refusals())
def test_a_refusal_reads_as_shown(command, shown, folder):
    words = shlex.split(command)
    done = run([sys.executable, *words[1:]], folder)
    assert done.returncode == 2
    assert [line.replace("/home/me", str(folder)) for line in shown] == done.stderr.splitlines()


def test_the_linter_says_what_is_shown(folder):
    command, *lines = shown(1).splitlines()
    done = run([sys.executable, *shlex.split(command)[2:]], folder)
    assert done.returncode == 2
    assert done.stdout.splitlines() == lines


def test_the_script_that_uses_an_adapter_runs(folder, tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    script = tmp_path / "use.py"
    script.write_text(blocks(text, "python")[0])
    overrides = (
        "method=lora",
        "data.path=train.jsonl",
        "train.max_steps=2",
        "launch.device=cpu",
        f"hydra.run.dir={tmp_path}/run",
    )
    base = str(folder / "SmolLM2-135M-Instruct")
    done = run([sys.executable, "-m", "glmexp", "model=auto", f"model.path={base}", *overrides], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run([sys.executable, str(script), base, str(tmp_path / "run" / "export"), "你好"], folder)
    assert done.returncode == 0, done.stderr
