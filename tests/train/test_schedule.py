from itertools import pairwise

import pytest
import torch

from glmexp.config.choices import Schedule
from glmexp.config.schema import SchedulerConfig
from glmexp.train.schedule import lr_at, lr_scheduler


def schedule(name: str, warmup: int = 0, ratio: float = 0.0) -> SchedulerConfig:
    return SchedulerConfig(name=Schedule[name], warmup_steps=warmup, min_lr_ratio=ratio)


def rates(total: int, wanted: SchedulerConfig) -> list[float]:
    return [lr_at(step, total, 1.0, wanted) for step in range(1, total + 1)]


def test_linear_peaks_at_the_end_of_the_warmup_and_ends_at_the_last_step() -> None:
    found = rates(10, schedule("linear", warmup=2))
    assert found[0] == 0.5
    assert found[1] == max(found) == 1.0
    assert found[9] == 0.0
    steps = [a - b for a, b in pairwise(found[1:])]
    assert steps == pytest.approx([1 / 8] * 8)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 3, 10, 25])
def test_the_warmup_is_proportional_and_starts_above_zero(name: str, warmup: int) -> None:
    found = rates(10, schedule(name, warmup=warmup, ratio=0.1))
    assert found[:warmup] == pytest.approx([k / warmup for k in range(1, min(warmup, 10) + 1)])
    assert min(found) > 0


def test_cosine_is_half_way_in_the_middle_and_falls_to_its_ratio() -> None:
    found = rates(11, schedule("cosine", ratio=0.2))
    assert (found[0], found[5], found[10]) == pytest.approx((1.0, 0.6, 0.2))
    assert found == sorted(found, reverse=True)


def test_constant_stays() -> None:
    assert rates(5, schedule("constant")) == [1.0] * 5


def test_one_step_runs_at_the_full_rate() -> None:
    assert rates(1, schedule("cosine")) == [1.0]


def test_the_scheduler_sets_the_rate_of_the_first_step_before_it() -> None:
    wanted = schedule("linear", warmup=2, ratio=0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=4.0)
    scheduler = lr_scheduler(6, wanted)(optimizer)
    seen = []
    for _ in range(6):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx([lr_at(step, 6, 4.0, wanted) for step in range(1, 7)])
    # One more, as after the last step, must not run past the end.
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2.0)
