"""The presets of ``conf/sweep``: each runs as it is, and the command line wins over it."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from glmexp.config.compose import conf_dir
from tests.conftest import ROOT

PRESETS = sorted(path.stem for path in Path(conf_dir(), "sweep").glob("*.yaml"))
SHORT = ("data.max_length=16", "measure.warmup_steps=1", "measure.steps=1", "launch.device=cpu")
RUNS = {
    "smoke": (("zero=stage0,stage2",), {"complete": 4}),
    "memory": (("zero=stage2,stage3", "activation=checkpoint", "batch.micro=1"), {"complete": 5, "invalid": 1}),
    "throughput": (("batch.micro=1,2", "activation=none", "zero.reduce_bucket_size=50000000"), {"complete": 4}),
    "offload": (("batch.accumulation=4",), {"complete": 6, "invalid": 4}),
    "scaler": (("scaler.loss_scale_window=10",), "precision=fp16 does not run on the CPU"),
    "max_batch": (("zero=stage2", "batch.total=8"), {"complete": 4}),
}
"""Preset -> what shortens it for the tiny model on a CPU, and the states that it ends with or why it is refused."""


def rows(folder):
    (path,) = folder.rglob("report.csv")
    with path.open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_every_preset_is_run():
    assert set(RUNS) == set(PRESETS)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_runs_as_it_is(preset, glmexp):
    overrides, states = RUNS[preset]
    ran = glmexp(f"sweep={preset}", *overrides, *SHORT, env={"OMP_NUM_THREADS": "1"})
    if isinstance(states, str):
        ran.refused(states, "all 5 trials")
        return
    assert ran.code == 0, ran.out + ran.err
    found = rows(ran.folder)
    assert Counter(row["state"] for row in found) == states
    assert all(float(row["tokens_per_second"]) > 0 for row in found if row["state"] == "complete")
    assert "\nmeasure: " in ran.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "states"),
    [
        ("smoke", {"complete": 4}),
        ("memory", {"complete": 32, "invalid": 16}),
        ("throughput", {"complete": 40}),
        ("offload", {"complete": 7, "invalid": 3}),
        ("scaler", {"complete": 10}),
        ("max_batch", {"complete": 6}),
    ],
)
def test_the_grid_holds_for_a_6b_model_on_a_gpu(preset, states, glmexp):
    ran = glmexp("check", f"sweep={preset}", "model=chatglm2_6b", "launch.device=gpu")
    assert ran.code == 0, ran.out + ran.err
    assert Counter(row["state"] for row in rows(ran.folder)) == states


def test_the_command_line_wins_over_a_preset(glmexp):
    ran = glmexp("check", "sweep=smoke", "zero=stage1,stage3", "batch.micro=4", "measure.steps=7")
    assert ran.code == 0, ran.out + ran.err
    assert sorted(row["overrides"] for row in rows(ran.folder)) == sorted(
        f"zero={stage} batch.micro=4 task=check sweep=smoke measure.steps=7" for stage in ("stage1", "stage3")
    )
    assert all("steps: 7" in path.read_text() for path in ran.folder.rglob("config.yaml"))


def test_both_languages_of_the_page_say_the_same():
    """The same blocks of commands, as many rows of tables, and everything between backticks."""

    def literal(page):
        text = (ROOT / "multirun" / page).read_text(encoding="utf-8")
        blocks = [re.sub(r" *#.*", "", block) for block in re.findall(r"```.*?```", text, re.DOTALL)]
        words = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        return blocks, text.count("\n| "), {re.sub(r"<[^>]*>", "<>", word) for word in words}

    assert literal("README.md") == literal("README.zh-CN.md")


def test_a_preset_of_ones_own(glmexp, tmp_path):
    """The one that multirun/README.md shows."""
    page = (ROOT / "multirun" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "ranks.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    ran = glmexp("check", "--config-dir", "mine", "sweep=ranks")
    assert ran.code == 0, ran.out + ran.err
    assert Counter(row["state"] for row in rows(tmp_path)) == {"complete": 6}


@pytest.mark.slow
def test_the_verb_is_a_choice(glmexp):
    ran = glmexp("train", "sweep=smoke", "zero=stage2", "batch.micro=2", "train.max_steps=1", "launch.device=cpu")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.startswith("composing 1 trial\ntrain: 1 trial")
    assert ran.rows()[-1]["step"] == 1
