"""The effect of a knob is told from pairs that differ in it alone, not from the means of all."""

import pytest

from glmexp.sweep.report.effects import effects
from glmexp.trial.record import State
from tests.sweep.report.fake import measured
from tests.sweep.report.test_decision import trial


def cell(zero, micro, speed, gpu, state=State.complete):
    made = trial(f"{zero}-{micro}", state, **measured(speed, gpu))
    return type(made)(made.name, made.result, {"zero": zero, "batch.micro": micro}, None)


def test_pairs_all_else_equal():
    trials = [
        cell("stage1", "1", 100, 10.0),
        cell("stage1", "10", 400, 40.0),
        cell("stage3", "1", 80, 8.0),
        cell("stage3", "10", 360, 20.0),
        cell("stage3", "2", 150, 9.0),  # has no pair in stage1
        cell("stage1", "2", 1, 1.0, State.oom),
        cell("stage0", "10", 1, 1.0, State.oom),
    ]
    found = {(one.key, one.value): one for one in effects(trials, ["zero", "batch.micro"], "gpu")}
    stage3 = found["zero", "stage3"]
    assert stage3.reference == "stage1", "stage0 never completed"
    assert stage3.pairs == 2
    assert stage3.speed.middle == pytest.approx((0.8 * 0.9) ** 0.5)
    assert (stage3.speed.low, stage3.speed.high) == (pytest.approx(0.8), pytest.approx(0.9))
    assert stage3.memory.middle == pytest.approx((0.8 * 0.5) ** 0.5)
    assert (found["zero", "stage0"].pairs, dict(found["zero", "stage0"].lost)) == (0, {"oom": 1})
    assert dict(found["batch.micro", "2"].lost) == {"oom": 1}
    assert list(found) == [("zero", "stage0"), ("zero", "stage3"), ("batch.micro", "2"), ("batch.micro", "10")]


def test_what_means_without_is_the_reference():
    trials = [cell("checkpoint", "1", 50, 5.0), cell("none", "1", 100, 10.0)]
    (effect,) = effects(trials, ["zero"], "gpu")
    assert (effect.value, effect.reference, effect.speed.middle) == ("checkpoint", "none", pytest.approx(0.5))


def test_equal_ratios_have_no_range():
    trials = [
        cell(zero, str(micro), speed * micro, 1.1 * micro) for zero, speed in (("a", 3.0), ("b", 2.1)) for micro in range(1, 9)
    ]
    (effect,) = [one for one in effects(trials, ["zero", "batch.micro"], "gpu") if one.key == "zero"]
    assert effect.speed.low <= effect.speed.middle <= effect.speed.high
