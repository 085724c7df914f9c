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
    how = " ".join(answer(Trials([FAST, near, behind], [], [], 0), choice, Settings()).how)
    assert "fast has 1,000 tokens/s, within the error of both; more measure.steps tell them apart." in how
    assert "Of 2 that are equally fast, this one has the lowest memory peak." in how
    assert decide([FAST, trial("near", **measured(995, 20.0, spread=1e-4))], Settings()).trial is FAST


def test_equally_fast_takes_the_one_that_skipped_fewest_steps():
    skipping = trial("skipping", **{**measured(1000, 20.0, spread=0.05), "skipped_steps": 1})
    steady = trial("steady", **measured(995, 30.0, spread=0.05))
    choice = decide([skipping, steady], Settings())
    assert choice.trial is steady
    assert "skipped the fewest steps" in " ".join(answer(Trials([skipping, steady], [], [], 0), choice, Settings()).how)


def test_a_tie_has_an_end():
    noisy = trial("noisy", **measured(950, 20.0, spread=0.9))
    choice = decide([FAST, noisy], Settings())
    assert choice.trial is FAST
    assert choice.rival is noisy, "it is told that the error covers it"
    assert not [line for line in answer(Trials([FAST, noisy], [], [], 0), choice, Settings()).how if "equally" in line]


@pytest.mark.parametrize(("host", "chosen"), [(3.9, "fast"), (3.7, "near")])
def test_host_memory_has_to_differ_to_break_a_tie(host, chosen):
    fast, near = trial("fast", **measured(1000, host=4.0)), trial("near", **measured(999, host=host, spread=0.05))
    assert decide([near, fast], Settings()).trial.name == chosen


def trained(name, first, last, speed=100, lr="1", **more):
    made = trial(name, **measured(speed, 10.0, loss_first=first, loss_last=last, **more))
    return Trial(name, made.result, {"task": "train", "optimizer.lr": lr, "zero": name}, None)


def how(trials, swept, settings=None):
    settings = settings or Settings()
    choice = decide(trials, settings, swept)
    return choice.trial.name, " ".join(answer(Trials(trials, swept, [], 0), choice, settings).how)


@pytest.mark.parametrize("last", [9.1, None])
def test_a_training_whose_loss_exploded_is_left_out(last):
    trials = [trained("well", 8.0, 7.0), trained("up", 8.0, last, speed=900), trained("noise", 8.0, 8.9, speed=50)]
    name, said = how(trials, ["zero"])
    assert name == "well"
    assert "1 left out: the loss ended more than 1 nat above its start in up." in said
    assert how([trial("up", **measured(900, 10.0, loss_first=7.0, loss_last=9.0))], [])[0] == "up", "random tokens"


def test_a_training_that_skipped_its_steps_is_left_out():
    steady, idle = trial("steady", **measured(100, 10.0) | {"skipped_steps": 1}), trial("idle", **measured(900, 10.0))
    idle.metrics["skipped_steps"] = 2
    name, said = how([steady, idle], [])
    assert name == "steady", "a tenth is allowed"
    assert "1 left out: more than 10% of the steps were skipped in idle (20%)." in said
    worse = trial("worse", **measured(950, 10.0) | {"skipped_steps": 9})
    name, said = how([worse, idle], [])
    assert name == "idle"
    assert "No training went well" in said
    assert [one.name for one in decide([worse, idle], Settings()).compared] == ["idle"]


def test_where_only_the_learning_differs_the_loss_decides():
    trials = [trained("a", 8.0, 5.0, 900, "1"), trained("b", 8.0, 3.0, 100, "2"), trained("c", 8.0, 3.5, 950, "3")]
    name, said = how(trials, ["optimizer.lr"])
    assert name == "b"
    assert "What was swept (optimizer.lr) changes neither speed nor memory: the lowest last loss of 3" in said
    name, said = how(trials, ["optimizer.lr", "zero"])
    assert name == "c"
    assert "Speed says nothing about optimizer.lr: the lowest last loss is 3.0000, of b." in said
    assert how(trials, [])[0] == "c"


def test_trials_that_were_measured_otherwise_are_told():
    longer = Trial("longer", SMALL.result, {"zero": "1", "measure.steps": "20"}, None)
    name, said = how([Trial("fast", FAST.result, {"zero": "2"}, None), longer], ["zero", "measure.steps"])
    assert name == "fast"
    assert "Measured otherwise (measure.steps) than this one, as in another session: 1 of them" in said
    alone = Trials([longer], ["zero", "measure.steps"], [], 0)
    assert answer(alone, decide([longer], Settings()), Settings()).sentences[1] == "It sets zero=1."


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
    text = told([trial("twin", State.skipped, "as another"), trial("a", State.failed, "no such file\nmore of it")], Settings())
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
