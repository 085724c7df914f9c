"""The verb as a user meets it, in both languages, and its lines."""

import json
import re

import pytest
from rich.cells import cell_len

from glmexp.dsconfig.convert import Expanded
from glmexp.trial.explain import explain, wrap

CHINESE = re.compile("[一-鿿]")


def shown(capsys, *overrides, flags=("--json",)):
    assert explain(list(flags), Expanded(list(overrides))) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_table_that_can_be_searched(glmexp, language):
    ran = glmexp("explain", "zero=stage2", "offload=cpu", "launch.device=cpu", "launch.ranks=2", f"lang={language}")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == {"en": "explain: cpu (as set), 2 ranks", "zh": "explain：cpu（按 launch.device），2 个 rank"}[language]
    assert "zero_optimization.stage = 2" in lines
    assert "zero_optimization.offload_optimizer.device = cpu" in lines
    assert "zero_optimization.reduce_bucket_size = 50000000  (95.4 MiB)" in lines
    assert any("offload=cpu [offload.device]" in line for line in lines)
    assert "\x1b" not in ran.out
    assert not [line for line in lines if line != line.rstrip()]
    assert "scheduler.*" in ran.out
    assert bool(re.search("[一-鿿]{8}", ran.out)) is (language == "zh")
    assert not list(ran.folder.iterdir()), "nothing is written"


def test_no_line_is_wider_than_the_screen_but_for_keys(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for language in ("en", "zh"):
        out = shown(capsys, "experiment=glm4_sft_zero3", "launch.ranks=8", f"lang={language}", flags=())
        assert "zero_optimization.stage3_gather_16bit_weights_on_model_save = true" in out.splitlines()
        wide = [line for line in out.splitlines() if cell_len(line) > 60]
        assert all(re.match(r"[\w.]+ = |    \S+$", line) for line in wide)


def test_one_rank_gets_the_note(capsys):
    assert "note: one rank has nothing to shard: zero=stage2" in shown(capsys, "launch.ranks=1", flags=())
    assert "nothing to shard" not in shown(capsys, "launch.ranks=2", flags=())


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_check_warns_of_is_told_beside_the_rows(capsys, flags):
    assert explain(list(flags), Expanded(["optimizer=muon", "launch.ranks=2", "lang=zh"])) == 0
    told = capsys.readouterr()
    assert re.findall("^warning: [^:]*", told.err, re.MULTILINE) == ["warning: optimizer=muon"]
    assert "warning" not in told.out
    assert not flags or json.loads(told.out)


def test_a_default_is_not_told_as_a_file_and_a_surprise_is_said_with_the_effect(capsys):
    out = shown(capsys, "optimizer=muon", "launch.ranks=2", flags=())
    block = out[out.index("gradient_clipping") :].splitlines()
    assert block[1:3] == [
        "    in effect: with Muon it clips Muon's update, not the gradient",
        "    origin: glmexp's default [train.grad_clip]",
    ]


def test_rows_for_programs(capsys):
    rows = {row["key"]: row for row in json.loads(shown(capsys, "launch.ranks=1", "zero.overlap_comm=true"))}
    row = rows["zero_optimization.overlap_comm"]
    assert row["value"] is True
    assert row["place"] == "zero.overlap_comm"
    assert row["origin"] == "command line: zero.overlap_comm=true"
    assert row["in_effect"] is False
    assert row["why"].startswith("one rank")


def test_other_flags_and_impossible_settings_are_refused(glmexp):
    glmexp("explain", "-m", "zero=stage2").refused("explain -m")
    glmexp("explain", "zero=stage2", "offload=cpu_all").refused("offload=cpu_all", "zero=stage3")


def test_options_of_ones_own(glmexp, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\ntrain: {grad_clip: 0.5}\n")
    ran = glmexp("explain", "--config-dir", "conf", "experiment=mine")
    assert "gradient_clipping = 0.5" in ran.out.splitlines()
    assert "experiment=mine [train.grad_clip]" in ran.out


TEXTS = [
    "a few words, and some more of them",
    "梯度累积：多少个 micro batch（微批）的梯度相加后，才更新一次。",
    "x" * 30,
    "（数字）“引用”。",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [8, 13, 40])
def test_wrapped_text_is_whole_and_fits(text, width):
    lines = wrap(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width or " " not in line.strip() for line in lines)
    assert not any(line.startswith(tuple("，。、；：）》”")) for line in lines)
