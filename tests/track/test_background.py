"""A dashboard that breaks, hangs or is slow leaves the trial alone."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glmexp.config.schema import Config
from glmexp.track import NullTracker, RunInfo, SweepInfo, Tracker
from glmexp.track.background import BackgroundTracker

RUN = RunInfo(Path("x"), Config(), {})


class Scripted(Tracker):
    """Keeps what it was told; raises at the calls named, waits for ``gate`` at the start."""

    def __init__(self, failing: str = "", gate: threading.Event | None = None) -> None:
        super().__init__(warn=lambda line: None)
        self.failing, self.gate, self.calls = failing, gate, list[str]()

    def start(self, run: RunInfo) -> None:
        if self.gate:
            self.gate.wait(10)
        self.where = "https://example.org/run"
        self.take("start")

    def log(self, row: Mapping[str, Any]) -> None:
        self.take(f"log {row['step']}")

    def finish(self, result: Mapping[str, Any]) -> None:
        self.take("finish")

    def overview(self, sweep: SweepInfo) -> None:
        self.where = "https://example.org/sweep"
        self.take(f"overview {sweep.name}")
        if self.gate:
            self.gate.wait(10)

    def take(self, call: str) -> None:
        self.calls.append(call)
        if call == self.failing:
            raise ConnectionError("no route\nto [bold]host")


def drive(tracker: BackgroundTracker) -> None:
    tracker.start(RUN)
    for step in (1, 2, 3):
        tracker.log({"step": step})
    tracker.finish({"state": "complete"})


def test_calls_arrive_in_order() -> None:
    inner, told = Scripted(), list[str]()
    tracker = BackgroundTracker(inner, told.append)
    drive(tracker)
    assert inner.calls == ["start", "log 1", "log 2", "log 3", "finish"]
    assert (tracker.error, told, tracker.where) == (None, [], "https://example.org/run")


@pytest.mark.parametrize(
    ("failing", "reached"),
    [("start", ["start"]), ("log 2", ["start", "log 1", "log 2"]), ("finish", ["start", "log 1", "log 2", "log 3", "finish"])],
)
def test_the_first_failure_is_told_once_and_ends_the_tracking(failing: str, reached: list[str]) -> None:
    inner, told = Scripted(failing), list[str]()
    tracker = BackgroundTracker(inner, told.append)
    drive(tracker)
    assert inner.calls == reached
    assert tracker.error == "ConnectionError: no route to [bold]host"
    assert told == [f"tracking stopped, the run itself goes on: {tracker.error}"]


def test_a_slow_start_delays_nothing_and_loses_nothing() -> None:
    gate = threading.Event()
    inner = Scripted(gate=gate)
    tracker = BackgroundTracker(inner, print)
    tracker.start(RUN)
    tracker.log({"step": 1})
    assert inner.calls == []
    gate.set()
    tracker.finish({"state": "complete"})
    assert inner.calls == ["start", "log 1", "finish"]


def test_a_tracker_that_hangs_is_given_up() -> None:
    gate, told = threading.Event(), list[str]()
    tracker = BackgroundTracker(Scripted(gate=gate), told.append, finish_seconds=0.2)
    began = time.monotonic()
    drive(tracker)
    assert time.monotonic() - began < 5
    assert tracker.error is not None
    assert "not done 0.2 seconds after" in tracker.error
    assert len(told) == 1
    gate.set()


def test_warnings_come_on_the_thread_of_the_caller() -> None:
    class Warning_(Scripted):
        def start(self, run: RunInfo) -> None:
            self.warn("recording offline")

    threads: list[tuple[str, int]] = []
    tracker = BackgroundTracker(Warning_(), lambda line: threads.append((line, threading.get_ident())))
    drive(tracker)
    assert threads == [("recording offline", threading.get_ident())]
    assert tracker.error is None


def test_finish_without_start_is_harmless() -> None:
    inner = Scripted()
    BackgroundTracker(inner, print).finish({"state": "invalid"})
    assert inner.calls == []


SWEEP = SweepInfo(Path("x"), "grid", [], {})


def test_an_overview_never_raises_and_never_waits_for_ever() -> None:
    tracker = BackgroundTracker(Scripted(), print)
    tracker.overview(SWEEP)
    assert (tracker.error, tracker.where) == (None, "https://example.org/sweep")

    told = list[str]()
    BackgroundTracker(Scripted("overview grid"), told.append).overview(SWEEP)
    assert told == ["the tracker shows no whole overview of the sweep: ConnectionError: no route to [bold]host"]

    gate, told = threading.Event(), list[str]()
    BackgroundTracker(Scripted(gate=gate), told.append, finish_seconds=0.2).overview(SWEEP)
    assert len(told) == 1
    gate.set()


def test_a_tracker_without_a_place_for_a_sweep_shows_none() -> None:
    NullTracker().overview(SWEEP)
