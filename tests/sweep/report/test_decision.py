"""Which trial is recommended, on which cards one fits, which are beaten, and what is said where nothing is recommended."""

from string import Formatter

import pytest

from glmexp.config.choices import Language, Objective
from glmexp.sweep.report.answer import answer
from glmexp.sweep.report.decision import decide, fit, pareto
from glmexp.sweep.report.trials import Settings, Trial, Trials
from glmexp.sweep.report.wording import WORDS
from glmexp.trial.record import State
from glmexp.trial.result import METRIC_NAMES, Result
from tests.sweep.report.fake import measured


def trial(name, state=State.complete, reason="", **metrics):
    result = Result(
        state, reason, [f"model={name}"], None, 1, {**dict.fromkeys(METRIC_NAMES), **metrics}, None, {}, {"kind": "gpu"}, {}
    )
    return Trial(name, result, {"model": name}, None)


def told(trials, settings):
    sentences = answer(Trials(trials, ["model"], [], 0), decide(trials, settings), settings).sentences
    return " ".join(sentences)


FAST, LARGE, SMALL = (
    trial("fast", **measured(1000, 30.0)),
    trial("large", **measured(2000, 75.0)),
    trial("small", **measured(500, 10.0)),
)


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        (Settings(), "large"),
        (Settings(gpu_memory_gib=80), "fast"),  # 75 GiB are 82.5 with cached blocks
        (Settings(gpu_memory_gib=84), "large"),
        (Settings(gpu_memory_gib=24), "small"),
        (Settings(gpu_memory_gib=12), None),  # 11 with cached blocks and 1.5 outside
        (Settings(gpu_memory_gib=12.5), "small"),
        (Settings(objective=Objective.memory), "small"),
        (Settings(objective=Objective.memory, gpu_memory_gib=12), None),
    ],
)
def test_the_best_that_fits(settings, chosen):
    best = decide([FAST, LARGE, SMALL], settings).trial
    assert (best and best.name) == chosen


def test_equally_fast_within_the_error_takes_the_smaller_one():
    near = trial("near", **measured(995, 20.0, spread=0.05))  # error 7.7 tokens/s
    behind = trial("behind", **measured(960, 5.0, spread=0.05))
    choice = decide([FAST, near, behind], Settings())
    assert choice.trial is near
    assert choice.tied == [FAST, near]
    assert "2 of them are equally fast" in " ".join(answer(Trials([FAST, near, behind], [], [], 0), choice, Settings()).how)
    assert decide([FAST, trial("near", **measured(995, 20.0, spread=1e-4))], Settings()).trial is FAST


def test_equally_fast_takes_the_one_that_skipped_fewest_steps():
    skipping = trial("skipping", **{**measured(1000, 20.0, spread=0.05), "skipped_steps": 9})
    steady = trial("steady", **{**measured(995, 30.0, spread=0.05), "skipped_steps": 1})
    choice = decide([skipping, steady], Settings())
    assert choice.trial is steady
    assert "skipped the fewest steps" in " ".join(answer(Trials([skipping, steady], [], [], 0), choice, Settings()).how)


def test_equally_small_takes_the_faster_one():
    same = trial("same", **measured(800, 10.004))
    assert decide([SMALL, same], Settings(objective=Objective.memory)).trial is same


def test_what_did_not_complete_is_never_recommended():
    failed = trial("failed", State.oom, **measured(9000, 1.0))
    assert decide([SMALL, failed], Settings()).trial is SMALL


def test_without_gpu_memory_the_host_is_compared_and_no_limit_applies():
    trials = [trial("a", **measured(100, host=3.0)), trial("b", **measured(90, host=2.0))]
    settings = Settings(objective=Objective.memory, gpu_memory_gib=1.0)
    choice = decide(trials, settings)
    assert choice.axis == "host"
    assert choice.trial.name == "b"
    assert "sweep.gpu_memory_gib=1 is not applied" in " ".join(answer(Trials(trials, [], [], 0), choice, settings).how)


def test_cards():
    assert [fit(FAST, gib) for gib in (24, 32, 35)] == ["no", "tight", "yes"]
    assert fit(trial("oom", State.oom, peak_allocated_gib=10.0), 80) is None
    assert fit(trial("cpu", **measured(100)), 80) is None


def test_the_front():
    twin, slow, wide = (
        trial("twin", **measured(1000, 30.0)),
        trial("slow", **measured(400, 20.0)),
        trial("wide", **measured(1000, 31.0)),
    )
    front = pareto([LARGE, twin, slow, FAST, SMALL, wide, trial("oom", State.oom)], "gpu")
    assert [one.name for one in front.best] == ["small", "fast", "twin", "large"]
    assert [one.name for one in front.beaten] == ["slow", "wide"]


def test_none_fits_says_the_least_memory_seen_the_states_and_the_next_move():
    trials = [FAST, LARGE, trial("oom", State.oom, peak_allocated_gib=70.0)]
    text = told(trials, Settings(gpu_memory_gib=24))
    assert "No setting fits 24 GiB: 2 complete, 1 oom" in text
    assert "30.0 GiB by fast, 33.0 with cached blocks" in text
    assert "batch.micro" in text
    chinese = told(trials, Settings(gpu_memory_gib=24, lang=Language.zh))
    assert "没有设置能放入 24 GiB" in chinese
    assert "30.0 GiB" in chinese


def test_all_out_of_memory():
    text = told([trial("a", State.oom, peak_allocated_gib=23.5), trial("b", State.oom, peak_allocated_gib=22.5)], Settings())
    assert "No setting fits: 2 oom" in text
    assert "22.5 GiB by b, when it ran out" in text
    assert "offload=none" in told([trial("a", State.oom_host, host_peak_gib=3.0)], Settings())


def test_all_failed_points_at_the_reason():
    text = told([trial("twin", State.skipped, "as another"), trial("a", State.failed, "no such\nfile")], Settings())
    assert text == "No trial is complete, so nothing is recommended. Next: read why a is failed: no such file"


def test_a_sweep_of_check_has_measured_nothing():
    assert "Nothing was measured" in told([trial("a"), trial("b")], Settings())


def test_no_trial_at_all():
    settings = Settings()
    said = answer(Trials([], [], ["half"], 2), decide([], settings), settings)
    assert said.states == "no trial has ended yet"
    assert said.notes == ["2 without a result yet: running, or cut off", "1 left out, result.json cannot be read: half"]


def test_a_text_has_the_same_figures_in_both_languages():
    for key, text in WORDS.items():
        english, chinese = ({name for _, name, _, _ in Formatter().parse(text[lang]) if name} for lang in ("en", "zh"))
        assert english == chinese, key
