"""The files of a report: what they hold, whatever a sweep folder holds, and what is left alone."""

import csv
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest

from glmexp.config.choices import Language
from glmexp.sweep.report import Settings, build
from glmexp.sweep.report.recommended import ALL
from glmexp.trial.record import State
from tests.sweep.report.fake import FakeSweep, grid, measured

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</script>|`[x](javascript:alert(3))` $a$ \x1b[31m\x00 %{y} 你好"
)


def table(folder):
    with (folder / "report.csv").open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "grid"
    folder.mkdir()
    grid(folder)
    return folder, build(folder, plots=True)


def test_the_files_of_a_sweep(swept):
    folder, report = swept
    for name in ("report.csv", "report.md", "report.html", "pareto.png", "knobs.png", *ALL):
        assert (folder / name).stat().st_size > 0, name
    assert not [path for path in folder.iterdir() if path.name.startswith(".report.") and path.name != ".report.lock"]
    assert (folder / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert report.counts == {"complete": 53, "invalid": 1, "oom": 6, "failed": 1}
    assert report.recommended["trial"].startswith("zero-stage1_lora_micro8_none")
    assert report.sentences[0] == "61 trials: 53 complete, 1 invalid, 6 oom, 1 failed"


def test_the_csv(swept):
    folder, report = swept
    rows = table(folder)
    assert len(rows) == 61
    assert list(rows[0])[:5] == ["trial", "state", "reason", "task", "model"]
    best = next(row for row in rows if row["trial"] == report.recommended["trial"])
    assert (best["zero"], best["batch.micro"], best["activation"]) == ("stage1", "8", "none")
    assert float(best["tokens_per_second"]) == pytest.approx(13495.65, abs=0.01)
    assert float(best["predicted_peak_gib"]) == pytest.approx(55.914)
    assert {"peak_reserved_gib", "host_peak_gib", "loss_last", "step_seconds_spread", "seconds", "config_hash"} <= set(best)
    invalid = next(row for row in rows if row["state"] == "invalid")
    assert invalid["tokens_per_second"] == ""
    assert report.rows[0]["tokens_per_second"] is not None


def test_the_markdown_answers_first(swept):
    text = (swept[0] / "report.md").read_text(encoding="utf-8")
    assert text.splitlines()[2].startswith("Recommended: zero-stage1_lora_micro8_none")
    assert text.count("\n| zero") == 61
    assert "![pareto](pareto.png)" in text
    assert "the highest tokens/s of 27 complete trial(s) that fit 80 GiB" in text


def test_the_ds_configs_are_the_trials(swept):
    folder, report = swept
    mine = json.loads((folder / ALL[1]).read_text())
    assert mine == json.loads((folder / report.recommended["trial"] / "ds_config.json").read_text())
    assert json.loads((folder / ALL[2]).read_text())["train_micro_batch_size_per_gpu"] == "auto"


def test_the_experiment_says_where_it_comes_from(swept):
    head = (swept[0] / ALL[0]).read_text(encoding="utf-8").split("defaults:")[0]
    assert head.startswith("# @package _global_\n")
    assert "sweep.objective=throughput, sweep.gpu_memory_gib=80" in head
    assert "(complete), 13,496 tokens/s, GPU memory 53.8 GiB" in head


def test_a_rebuild_of_sixty_trials_is_quick(swept):
    """In CPU time, so that a busy machine does not matter; 30 to 70 ms where it was written."""
    taken = []
    for _ in range(3):
        started = time.process_time()
        build(swept[0])
        taken.append(time.process_time() - started)
    assert min(taken) < 0.3


def test_the_recommendation_is_written_again_only_if_it_changes(swept):
    folder, _ = swept
    before = {name: (folder / name).stat().st_mtime_ns for name in ALL}
    build(folder)
    assert {name: (folder / name).stat().st_mtime_ns for name in ALL} == before
    (folder / ALL[2]).unlink()
    build(folder)
    assert (folder / ALL[2]).is_file()


def test_a_value_is_written_as_soon_as_it_turns_out_to_be_swept(tmp_path):
    sweep = FakeSweep(tmp_path)
    for name in ("2", "1"):
        sweep.trial(name, [f"batch.micro={name}"], **measured(100 * int(name), 30.0))
        build(tmp_path)
        text = (tmp_path / ALL[0]).read_text()
        assert ("# Swept: batch.micro\n" in text) == ("micro: 2" in text) == (name == "1")


def test_a_stale_recommendation_is_removed(tmp_path):
    sweep = FakeSweep(tmp_path)
    sweep.trial("a", ["batch.micro=1"], **measured(100, 30.0))
    sweep.trial("b", ["batch.micro=2"], **measured(200, 60.0))
    assert build(tmp_path, plots=True).recommended["trial"] == "b"
    assert all((tmp_path / name).is_file() for name in ALL)
    report = build(tmp_path, settings=Settings(gpu_memory_gib=24))
    assert report.recommended is None
    assert "No setting fits 24 GiB" in " ".join(report.sentences)
    assert not any((tmp_path / name).exists() for name in ALL)


@pytest.mark.parametrize("damage", ["a: [1\n", "zero: " + "[" * 5000, "[]", "task: dance\n", "\x00"], ids=range(5))
def test_a_damaged_configuration_costs_the_recommended_files_alone(tmp_path, damage):
    place = FakeSweep(tmp_path).trial("a", ["batch.micro=1"], **measured(100, 30.0))
    (place / "config.yaml").write_text(damage)
    assert build(tmp_path).recommended["trial"] == "a"
    assert not any((tmp_path / name).exists() for name in ALL)


def test_hostile_text_stays_text(tmp_path):
    sweep = FakeSweep(tmp_path / "<b>sweep")
    sweep.folder.mkdir()
    overrides = ["=1+cmd|' /C calc'!A0", f"data.path={HOSTILE}"]
    sweep.trial("one", overrides, State.failed, f"=HYPERLINK(1)\n{HOSTILE}", configured=False)
    sweep.trial("two", ["data.path=-5"], reason="@SUM(A1)", configured=False, **measured(100, 30.0), predicted=3.0)
    sweep.trial("three", [f"data.path=a{HOSTILE}"], reason="\t=1", configured=False, **measured(90, 20.0))
    build(sweep.folder, plots=True)

    rows = {row["trial"]: row for row in table(sweep.folder)}
    assert rows["one"]["reason"].startswith("'=HYPERLINK")
    assert rows["one"]["overrides"].startswith("'=1+cmd")
    assert rows["two"]["reason"] == "'@SUM(A1)"
    assert rows["two"]["data.path"] == "-5", "a number stays one"
    assert "\x1b" not in (sweep.folder / "report.csv").read_text(encoding="utf-8")

    page = Page((sweep.folder / "report.html").read_text(encoding="utf-8"))
    assert page.scripts == 3, "the figures, plotly and ours"
    assert not page.tags & {"img", "a", "b", "iframe", "link"}
    assert not page.handlers
    text = (sweep.folder / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"<(?!/?$)|(?<!\\)\[x", text)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 9 for line in text.splitlines() if line.startswith("| ")), text


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.handlers, self.scripts = set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.scripts += tag == "script"
        self.handlers += [name for name, value in attributes if name.startswith("on") or name in ("src", "href")]


def test_the_figures_are_read_back_as_they_were_meant(swept):
    text = (swept[0] / "report.html").read_text(encoding="utf-8")
    figures = json.loads(text.partition('id="figures">')[2].partition("</script>")[0])
    assert [figure["id"] for figure in figures] == ["pareto", "knobs", "predicted"]
    front, beaten, beyond, star = figures[0]["data"]
    assert [len(trace["x"]) for trace in (front, beaten, beyond)] == [7, 20, 26]
    assert min(beyond["x"]) * 1.1 + 1.5 > 80 >= max(front["x"] + beaten["x"]) * 1.1 + 1.5
    assert figures[0]["layout"]["shapes"][0]["x0"] == 80
    assert star["x"] == [53.8]
    assert front["x"] == sorted(front["x"])
    assert front["y"] == sorted(front["y"]), "more memory must pay"


@pytest.mark.parametrize("damage", ["{", "[]", '{"state": "no such"}', "\x00", ""])
def test_a_damaged_result_is_counted_and_left_out(tmp_path, damage):
    sweep = FakeSweep(tmp_path)
    sweep.trial("good", ["batch.micro=1"], configured=False, **measured(100, 30.0))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "result.json").write_text(damage)
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "config.yaml").write_text("task: measure\n")
    report = build(tmp_path)
    assert report.counts == {"complete": 1}
    assert "1 left out, result.json cannot be read: half" in report.sentences
    assert "1 without a result yet: running, or cut off" in report.sentences


def test_odd_figures_are_no_figures(tmp_path):
    place = FakeSweep(tmp_path).trial("odd", ["a=1"], configured=False, **measured(100, 30.0))
    content = json.loads((place / "result.json").read_text())
    content |= {"metrics": {"tokens_per_second": "fast", "steps": True}, "times": {"started": 5}, "device": {"name": []}}
    (place / "result.json").write_text(json.dumps(content))
    report = build(tmp_path)
    assert report.rows[0]["tokens_per_second"] is None
    assert report.recommended is None


def test_an_empty_sweep(tmp_path):
    report = build(tmp_path, plots=True)
    assert report.sentences == ["no trial has ended yet"]
    assert table(tmp_path) == []
    assert b"plotly.js" not in (tmp_path / "report.html").read_bytes()


def test_a_home_that_cannot_be_written_is_no_news(tmp_path):
    places = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    environ = {name: value for name, value in os.environ.items() if name not in places}
    code = f"from pathlib import Path\nfrom glmexp.sweep.report import build\nbuild(Path({str(tmp_path)!r}), plots=True)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**environ, "HOME": "/proc/absent"}, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""


def test_a_key_of_two_lines_stays_in_the_tables_head(tmp_path):
    sweep = FakeSweep(tmp_path)
    for value in (1, 2):
        sweep.trial(f"t{value}", [f"+x.a\n|b={value}"], configured=False, **measured(100, 30.0))
    build(tmp_path)
    head = next(line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| "))
    assert r" | x.a \|b | tokens/s | " in head


def test_an_override_named_like_a_column(tmp_path):
    sweep = FakeSweep(tmp_path)
    for name in ("a", "b"):
        sweep.trial(name, [f"+state={name}"], State.invalid, "no such key", configured=False)
    build(tmp_path)
    assert [(row["state"], row["override state"]) for row in table(tmp_path)] == [("invalid", "a"), ("invalid", "b")]


def test_chinese(tmp_path):
    sweep = FakeSweep(tmp_path)
    sweep.settings(objective="memory", gpu_memory_gib=None, lang="zh")
    sweep.trial("a", ["batch.micro=1"], **measured(100))
    sweep.trial("b", ["batch.micro=2"], **measured(200))
    report = build(tmp_path, plots=True)
    assert any(sentence.startswith("推荐：b，200 tokens/s，") for sentence in report.sentences)
    assert "## 如何选出" in (tmp_path / "report.md").read_text(encoding="utf-8")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in page
    assert "点击表头排序" in page
    assert "24 GB" not in page, "no GPU, no cards"
    assert build(tmp_path, settings=Settings(lang=Language.en)).sentences[0] == "2 trials: 2 complete"


def test_chinese_states(tmp_path):
    grid(tmp_path)
    report = build(tmp_path, settings=Settings(gpu_memory_gib=80, lang=Language.zh))
    assert report.sentences[0] == "共 61 次试验：53 完成 (complete)，1 无效 (invalid)，6 显存不足 (oom)，1 失败 (failed)"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'data-state="oom" aria-pressed="true">显存不足 (oom)</button>' in page
    assert '显示 <span id="shown">61</span> 行' in page
    assert "<h2>显存与速度</h2>" in page
    assert "| 显存不足 (oom) |" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert {row["state"] for row in table(tmp_path)} == {"complete", "invalid", "oom", "failed"}


def test_the_tables_have_the_fastest_first_and_the_incomplete_last(swept):
    lines = (swept[0] / "report.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| zero-")]
    head = next(line for line in lines if line.startswith("| trial")).split(" | ")
    speeds = [row[head.index("tokens/s")].replace(",", "") for row in cells]
    assert [float(speed) for speed in speeds[:53]] == sorted((float(speed) for speed in speeds[:53]), reverse=True)
    assert set(speeds[53:]) == {""}


def figures_of(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    return {one["id"]: one for one in json.loads(text.partition('id="figures">')[2].partition("</script>")[0])}


def test_host_memory_is_a_colour_only_where_it_differs(swept, tmp_path):
    assert "coloraxis" in figures_of(swept[0])["pareto"]["layout"]
    sweep = FakeSweep(tmp_path)
    for name, host in (("1", 4.0), ("2", 4.05)):
        sweep.trial(name, [f"batch.micro={name}"], configured=False, **measured(100 * int(name), 30.0, host=host))
    build(tmp_path)
    assert "coloraxis" not in figures_of(tmp_path)["pareto"]["layout"]


def test_bars_without_a_sure_effect_are_marked(swept):
    speed = figures_of(swept[0])["knobs"]["data"][0]
    bars = dict(zip(speed["y"], zip(speed["marker"]["color"], speed["marker"]["pattern"]["shape"], strict=True), strict=True))
    assert bars["method=lora"][1] == "/", "some of method=full ran out of memory"
    assert bars["batch.micro=2"] == ("#1f6feb", "")
    sign = [low <= 0 <= high for low, high in zip(*ends(speed), strict=True)]
    assert [colour == "#8c959f" for colour in speed["marker"]["color"]] == sign


def ends(bars):
    """Lower and upper ends of the bars' lines."""
    errors = bars["error_x"]
    low = [x - down for x, down in zip(bars["x"], errors["arrayminus"], strict=True)]
    return low, [x + up for x, up in zip(bars["x"], errors["array"], strict=True)]


def test_what_only_changes_the_learning_is_no_knob(tmp_path):
    sweep = FakeSweep(tmp_path)
    for number, rate in enumerate(("1e-3", "1e-4")):
        values = ["task=train", f"optimizer.lr={rate}", "data.max_length=64"]
        sweep.trial(rate, values, **measured(100 + number, 30.0, loss_first=8.0, loss_last=6.0 + number, skipped_steps=1))
    report = build(tmp_path)
    assert report.recommended["trial"] == "1e-3"
    assert list(figures_of(tmp_path)) == ["pareto"]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| last loss | skipped steps |" in text
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<td class="number" data-order="6.0">6.0000</td>' in page, "never struck out"
    assert "max_length=64 is that" not in (tmp_path / ALL[0]).read_text(), "a training's is meant"


def test_the_experiment_tells_of_the_measurements_own_length(tmp_path):
    FakeSweep(tmp_path).trial("a", ["task=measure", "data.max_length=64"], **measured(100, 30.0))
    build(tmp_path)
    text = (tmp_path / ALL[0]).read_text()
    assert "# data.max_length=64 is that of the measurement: set yours\n" in text
    assert "max_length: 64" in text


def test_losses_are_shown_where_something_was_trained(tmp_path):
    sweep = FakeSweep(tmp_path)
    for task in ("train", "measure"):
        sweep.folder = tmp_path / task
        sweep.folder.mkdir()
        sweep.trial("a", [f"task={task}", "model=tiny"], **measured(100, loss_last=1.2345))
        build(sweep.folder)
        assert ("1.2345" in (sweep.folder / "report.md").read_text()) == (task == "train")


def rebuild(folder):
    for _ in range(5):
        build(folder)


def test_processes_at_once(swept):
    """As under joblib: each one ends a trial and rebuilds."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=rebuild, args=(swept[0],)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(table(swept[0])) == 61
    assert not [path.name for path in swept[0].iterdir() if re.fullmatch(r"\.(report|recommended).*\d", path.name)]
