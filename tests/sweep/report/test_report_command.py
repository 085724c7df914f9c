"""``python -m glmexp report DIR``."""

import os

import pytest

from glmexp.__main__ import in_words, run
from glmexp.config.errors import UserError
from tests.sweep.report.fake import FakeSweep, measured


@pytest.fixture
def folder(tmp_path):
    sweep = FakeSweep(tmp_path / "multirun" / "mine")
    sweep.folder.mkdir(parents=True)
    sweep.settings(objective="throughput", gpu_memory_gib=None, lang="en")
    sweep.trial("a", ["batch.micro=1"], **measured(100, 10.0))
    sweep.trial("b", ["batch.micro=2"], **measured(200, 30.0))
    return sweep.folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Recommended: b with 200 tokens/s"),
        (("sweep.objective=memory",), "Recommended: a with 100 tokens/s"),
        (("sweep.gpu_memory_gib=24",), "Recommended: a with 100 tokens/s"),
        (("hardware=rtx4090",), "Recommended: a with 100 tokens/s"),
        (("sweep.gpu_memory_gib=80", "hardware=rtx4090"), "Recommended: b"),
        (("hardware=auto",), "Recommended: b"),
        (("sweep.gpu_memory_gib=4", "lang=zh"), "没有设置能放入 4 GiB"),
        (("sweep.gpu_memory_gib=null",), "Recommended: b"),
    ],
)
def test_it_builds_with_what_is_given(folder, arguments, said, capsys):
    settings = (folder / "sweep.json").read_text()
    assert run(["report", str(folder), *arguments], None) == 0
    told = capsys.readouterr().out
    assert said in told
    assert "wrote report.csv, report.md, report.html, pareto.png, knobs.png" in told
    assert ("recommended.yaml" in told) == ("没有" not in said)
    assert (folder / "sweep.json").read_text() == settings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep.objective=fast"], "must be throughput or memory"),
        (["lang=fr"], "must be en or zh"),
        (["sweep.gpu_memory_gib=-1"], "a number of GiB above 0"),
        (["sweep.gpu_memory_gib=nan"], "a number of GiB above 0"),
        (["zero=stage2"], "report takes sweep.objective, sweep.gpu_memory_gib, hardware, lang alone"),
        (["hardware=rtx4099"], "no such card, there are a100_40g, "),
        (["--json"], "no such option: --json"),
        (["another"], "it takes one folder"),
    ],
)
def test_it_refuses_the_rest(folder, arguments, said):
    with pytest.raises(UserError, match=said):
        run(["report", str(folder), *arguments], None)
    assert not (folder / "report.csv").exists()


def test_it_says_which_folder_is_one(folder, tmp_path):
    for place, said in (
        (tmp_path / "none", "not there"),
        (folder / "sweep.json", "no folder"),
        (tmp_path / "multirun", f"holds sweeps, give one of them:\n{folder}"),
        (folder / "a", f"the folder of its sweep: {folder}"),
        (tmp_path, "give a folder that --multirun has made"),
    ):
        with pytest.raises(UserError, match=said) as error:
            run(["report", str(place)], None)
        assert len(in_words(error.value).splitlines()) <= 2


def test_the_newest_sweeps_are_listed(tmp_path):
    for number in range(7):
        sweep = FakeSweep(tmp_path / str(number))
        sweep.trial("a", [], configured=False)
        sweep.settings()
        os.utime(sweep.folder / "sweep.json", (number, number))
    with pytest.raises(UserError) as error:
        run(["report", str(tmp_path)], None)
    first, *places = str(error.value).splitlines()
    assert "the newest of 7" in first
    assert places == [str(tmp_path / name) for name in "65432"]


def test_help(capsys):
    assert run(["report", "--help"], None) == 0
    assert run(["report"], None) == 2
    assert "sweep.objective=throughput|memory" in capsys.readouterr().out
