"""What happens between two steps, and in which order: a signal or a kill may come at any moment."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from glmexp.config import compose
from glmexp.train import child
from glmexp.train.evaluation import evaluator as evaluation
from glmexp.train.evaluation.evaluator import Evaluator
from glmexp.train.failure import EndedOnRequestError, Where
from glmexp.train.pause import Pause
from glmexp.train.requests import EndRequests
from glmexp.trial import saved

CONFIG = compose(["model=tiny", "launch.device=cpu", "checkpoint.every=2", "eval.every=2", "data.eval_share=0.1"]).config


class Validation:
    """Evaluations that end as they are told to, and a list of what was done."""

    best = None

    def __init__(self, done: list[str], vain: str | None = None, broken_off: bool = False, owed: bool = False) -> None:
        self.done, self.vain, self.broken_off, self.owed = done, vain, broken_off, owed

    def due(self, step: int, ending: bool) -> bool:
        return step % 2 == 0 or ending

    def owes(self, step: int) -> bool:
        return self.owed

    def in_vain(self) -> str | None:
        return self.vain

    def evaluate(self, step: int) -> bool:
        if self.broken_off:
            raise EndedOnRequestError
        self.done.append(f"evaluate {step}")
        return False


def pause(done: list[str], validation: Validation, newest: str | None = None) -> Pause:
    class Checkpoints(SimpleNamespace):
        def save(self, engine: Any, step: int, skips: Any) -> None:
            self.newest = saved.tag(step)
            done.append(f"save {step}")

    requests = EndRequests(wanted=True)
    requests.received = signal.SIGUSR1 if validation.broken_off else None
    record = SimpleNamespace(early=None, signal=None)
    writer: Any = SimpleNamespace(record=record, note=done.append)
    checkpoints: Any = Checkpoints(newest=newest, steps=9)
    return Pause(None, CONFIG, checkpoints, requests, writer, Where(), validation)  # type: ignore[arg-type]


def test_a_step_is_saved_before_it_is_evaluated() -> None:
    done: list[str] = []
    assert not pause(done, Validation(done)).after(2, None, asked=False)  # type: ignore[arg-type]
    assert done == ["save 2", "evaluate 2"]


@pytest.mark.parametrize("begin", [False, True])
def test_an_evaluation_that_is_broken_off_leaves_the_step_saved(begin: bool) -> None:
    done: list[str] = []
    paused = pause(done, Validation(done, broken_off=True, owed=True))
    with pytest.raises(EndedOnRequestError, match="ended by SIGUSR1; saved checkpoint step-000004"):
        paused.begin(4, None) if begin else paused.after(4, None, asked=False)  # type: ignore[arg-type]
    assert done == ["save 4"]
    assert paused.writer.record.signal == signal.SIGUSR1


@pytest.mark.parametrize("owed", [False, True])
def test_patience_that_is_used_up_ends_the_session_that_goes_on_too(owed: bool) -> None:
    done: list[str] = []
    paused = pause(done, Validation(done, vain="in vain", owed=owed), newest=saved.tag(4))
    assert paused.begin(4, None)  # type: ignore[arg-type]
    assert paused.writer.record.early == "in vain"
    assert done == ["evaluate 4"] * owed


def test_no_sample_is_looked_at_once_the_run_is_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "all_reduced", lambda values, device, operation: values)
    monkeypatch.setattr(evaluation.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(evaluation.dist, "get_rank", lambda: 0)
    requests = EndRequests(wanted=True)
    nothing: Any = None
    evaluator = Evaluator(nothing, nothing, nothing, CONFIG, 1, nothing, nothing, False, requests)
    shares = evaluator.shares([3, 2, 1], groups=1, group=0)
    assert next(shares)[0] == [0]
    requests.received = signal.SIGTERM
    with pytest.raises(EndedOnRequestError):
        next(shares)


def test_a_notice_that_came_before_the_first_step_is_answered_then() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # as the parent starts its ranks
    try:
        signal.raise_signal(signal.SIGUSR1)
        with EndRequests(wanted=True) as requests:
            assert requests.received == signal.SIGUSR1
        assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_two_interrupts_at_once_are_one() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        child._take_interrupts()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
