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


COMMANDS = commands(READMES[0])


def test_both_languages_show_the_same_commands():
    assert commands(READMES[1]) == COMMANDS
    assert len(COMMANDS) >= 8


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
    colours = ("红色", "白色", "黑色", "蓝色", "灰色", "绿色", "粉色", "米色", "黄色", "紫色", "橙色", "棕色")
    lines = [json.dumps(sample, ensure_ascii=False).replace("红色", colour) + "\n" for colour in colours]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "faq.csv").write_text(
        "prompt,response\n店里几点开门？,早上九点开门。\n可以退货吗？,七天之内可以退货。\n", "gb18030"
    )
    (folder / "bad.jsonl").write_text(json.dumps(sample) + '\n{"content": "坏", "summary": }\n')
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(blocks(text, "yaml")[0])
    write_chat_model(folder / "HuggingFaceTB" / "SmolLM2-135M-Instruct")
    return folder


def run(arguments, folder):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"}
    environ.pop("WANDB_API_KEY", None)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    return subprocess.run(
        arguments, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def reader(folder):
    """Runs a command of the README in ``folder``, after those before it that it needs: another process may have run them."""
    ran = set()

    def runs(command):
        for earlier in COMMANDS[: COMMANDS.index(command)]:
            if earlier not in ran and place(earlier) is not None and place(earlier) == place(command):
                succeeds(earlier, folder)
                ran.add(earlier)
        if command not in ran:
            succeeds(command, folder)
            ran.add(command)
        return folder

    return runs


def place(command):
    """What a command of the README makes or takes up that others do too: a folder's name, or a run to go on with."""
    found = re.search(r"(?:runs/|multirun/|sweep\.name=|train\.resume=)(\w+)", command)
    return found[1] if found else None


def succeeds(command, folder):
    words = shlex.split(command)
    words[0] = sys.executable if words[0] == "python" else words[0]
    if NEEDS_WEIGHTS in words and "check" not in words:  # 12 GB from a hub: its configuration is checked instead
        words = [word for word in words if word != "measure"]
        words.insert(words.index("glmexp") + 1, "check")
    done = run(words, folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command, reader):
    reader(command)


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
