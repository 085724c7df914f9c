"""The main loop with trials that only pretend to run: slots, resume, retry, skips, budget, signals."""

import io
import signal
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console

from glmexp.config import compose
from glmexp.config.choices import Objective, Retry
from glmexp.sweep import loop as loops
from glmexp.sweep.ending import exit_code, objective_value, unsent, why_stopped
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.jobs import job
from glmexp.sweep.loop import Loop, Means
from glmexp.sweep.search import Skip
from glmexp.sweep.search.grid import Grid
from glmexp.sweep.slots import Slots
from glmexp.sweep.view import SweepView
from glmexp.track.base import NullTracker
from glmexp.trial.machine import Probe
from glmexp.trial.processes import Signals
from glmexp.trial.record import State
from glmexp.trial.result import Result, read_result, write_result
from glmexp.trial.starter import COLD

CPU = Probe((), "none here", 64.0, 8, "a CPU")
SETTINGS = compose(["model=tiny"]).config.sweep


@pytest.fixture(scope="module")
def jobs():
    return [job(micro, ["task=measure", f"batch.micro={micro}"], ["batch.micro"], compose, CPU, 1) for micro in (1, 2, 4, 8)]


def result(item, state=State.complete, **metrics):
    return Result(state, "", list(item.overrides), item.config_hash, 1, metrics, None, {}, {}, {})


class Pretend:
    """Stands for ``execute``: remembers what ran, and how many at once."""

    def __init__(self, seconds=0.0, states=None):
        self.seconds, self.states = seconds, states or {}
        self.ran, self.at_once, self.most = [], 0, 0
        self.lock = threading.Lock()

    def __call__(self, item, folder, around):
        with self.lock:
            self.ran.append(item.number)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.seconds)
        with self.lock:
            self.at_once -= 1
        ended = result(item, self.states.get(item.number, State.complete))
        place = folder.place(item.name, item.config_hash)
        place.mkdir(exist_ok=True)
        write_result(ended, place)
        return ended


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "rebuild", lambda folder, say: None)

    def go(pretend, search, settings=SETTINGS, signals=None):
        monkeypatch.setattr(loops, "execute", pretend)
        screen = io.StringIO()
        view = SweepView(Console(file=screen), total=4)
        means = Means(
            SweepFolder(tmp_path), Slots(settings.slots, ()), COLD, view, signals or Signals(), lambda item: NullTracker()
        )
        loop = Loop(settings, search, means)
        with view:
            loop.run()
        loop.screen = screen.getvalue()
        return loop

    return go


def test_every_trial_runs_once(run, jobs):
    pretend = Pretend()
    loop = run(pretend, Grid(jobs))
    assert pretend.ran == [1, 2, 4, 8]
    assert pretend.most == 1
    assert set(loop.results) == {item.config_hash for item in jobs}
    assert not loop.stopped_early


def test_slots_run_side_by_side(run, jobs):
    pretend = Pretend(seconds=0.2)
    run(pretend, Grid(jobs), replace(SETTINGS, slots=3))
    assert pretend.most == 3
    assert sorted(pretend.ran) == [1, 2, 4, 8]


def test_what_is_finished_does_not_run_again(run, jobs):
    run(Pretend(states={2: State.oom, 4: State.failed, 8: State.killed}), Grid(jobs))
    again = Pretend()
    loop = run(again, Grid(jobs), replace(SETTINGS, retry=[Retry.killed]))
    assert again.ran == [8]
    assert [loop.results[item.config_hash].state for item in jobs] == [State.complete, State.oom, State.failed, State.complete]
    assert loop.screen.count(" earlier") == 3


def test_what_is_finished_is_called_as_its_folder_is(run, jobs, tmp_path):
    run(Pretend(states={1: State.failed}), Grid(jobs))
    for item in jobs:
        (tmp_path / item.name).rename(tmp_path / f"other-{item.config_hash[:8]}")
    screen = run(Pretend(), Grid(jobs)).screen
    for item in jobs:
        assert f"other-{item.config_hash[:8]}: complete" in screen
        assert item.name not in screen


def test_skipped_trials_have_a_row(run, jobs, tmp_path):
    class Pruning(Grid):
        def ask(self):
            item = super().ask()
            return Skip(item, "smaller ones ran out of memory") if item is not None and item.number > 2 else item

    pretend = Pretend()
    run(pretend, Pruning(jobs))
    assert pretend.ran == [1, 2]
    assert read_result(tmp_path / jobs[3].name).state is State.skipped
    assert "ran out" in read_result(tmp_path / jobs[3].name).reason


def test_the_time_budget_starts_nothing_more(run, jobs):
    pretend = Pretend(seconds=0.3)
    loop = run(pretend, Grid(jobs), replace(SETTINGS, time_budget_minutes=0.2 / 60))
    assert pretend.ran == [1]
    assert loop.stopped_early


def test_a_signal_starts_nothing_more(run, jobs):
    signals = Signals()

    class Interrupting(Pretend):
        def __call__(self, item, folder, around):
            around.signals.received.append(signal.SIGINT)
            return super().__call__(item, folder, around)

    pretend = Interrupting()
    loop = run(pretend, Grid(jobs), signals=signals)
    assert loop.stopped_early
    assert loop.means.view.seconds_left() is None
    assert pretend.ran == [1]


def test_a_search_that_waits_for_a_result_is_asked_again(run, jobs):
    class OneByOne(Grid):
        told = 0

        def ask(self):
            return super().ask() if self.told == 4 - len(self._waiting) else None

        def tell(self, item, ended):
            self.told += 1

    pretend = Pretend(seconds=0.05)
    run(pretend, OneByOne(jobs), replace(SETTINGS, slots=4))
    assert pretend.most == 1
    assert pretend.ran == [1, 2, 4, 8]


def test_a_search_that_forgets_itself_does_not_hang(run, jobs):
    class Lost(Grid):
        def ask(self):
            return None

    with pytest.raises(RuntimeError, match="asks for nothing"):
        run(Pretend(), Lost(jobs))


def test_what_finished_earlier_is_not_skipped(run, jobs, tmp_path):
    class Pruning(Grid):
        def ask(self):
            item = super().ask()
            return Skip(item, "smaller ones ran out of memory") if item is not None and item.number > 2 else item

    run(Pretend(), Grid(jobs[3:]))
    loop = run(Pretend(), Pruning(jobs))
    assert read_result(tmp_path / jobs[3].name).state is State.complete
    assert loop.results[jobs[3].config_hash].state is State.complete


def test_a_fault_of_the_search_ends_the_trials_that_run(run, jobs):
    class Faulty(Grid):
        def tell(self, item, ended):
            raise KeyError("a fault")

    signals = Signals()
    with pytest.raises(KeyError, match="a fault"):
        run(Pretend(), Faulty(jobs), signals=signals)
    assert signals.received == [signal.SIGTERM], "run_trial ends its ranks at that"


def test_a_full_disk_ends_the_sweep_in_order(run, jobs):
    class Full(Pretend):
        def __call__(self, item, folder, around):
            ended = super().__call__(item, folder, around)
            if item.number == 2:
                raise OSError("no room")
            return ended

    pretend = Full(seconds=0.2)
    with pytest.raises(OSError, match="no room"):
        run(pretend, Grid(jobs), replace(SETTINGS, slots=2))
    assert pretend.at_once == 0, "those that run are waited for"
    assert 4 not in pretend.ran or 8 not in pretend.ran


def test_an_interrupted_trial_is_a_reason_to_go_on(run, jobs):
    signals = Signals()
    signals.received.append(signal.SIGINT)
    loop = run(Pretend(), Grid(jobs[:1]), signals=signals)
    assert loop.stopped_early
    signals.received.clear()
    loop = run(Pretend(states={1: State.interrupted}), Grid(jobs[:1]), signals=signals)
    assert not loop.stopped_early
    signals.received.append(signal.SIGINT)
    assert loop.stopped_early


@pytest.mark.parametrize(
    ("number", "left", "wanted"),
    [
        (None, 12, "sweep.time_budget_minutes=60 is over: 12 of 24 trials were not started; the same command with R goes on"),
        (signal.SIGINT, 1, "stopped by Ctrl-C: 1 of 24 trials was not started; the same command with R goes on"),
        (signal.SIGTERM, None, "stopped by SIGTERM: not all trials were started; the same command with R goes on"),
        (signal.SIGINT, 0, "stopped by Ctrl-C; the same command with R goes on"),
    ],
)
def test_why_not_all_were_started(number, left, wanted):
    assert why_stopped(number, 60.0, left, 24, "R") == wanted


def test_what_was_recorded_offline_is_told_how_to_upload(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "multirun" / "a b"
    runs = [sweep / "one/wandb/offline-run-1-x", sweep / "two/wandb/offline-run-2-y", sweep / "wandb/offline-run-3-z"]
    for path in runs:
        path.mkdir(parents=True)
    assert unsent(sweep) == ["'multirun/a b'/*/wandb/offline-run-*", "'multirun/a b'/wandb/offline-run-*"]
    (runs[2] / "run-z.wandb.synced").touch()
    assert unsent(sweep) == ["'multirun/a b'/*/wandb/offline-run-*"]
    for path in runs[:2]:
        (path / "run.wandb.synced").touch()
    assert unsent(sweep) == []


@pytest.mark.parametrize(
    ("states", "signal_number", "wanted"),
    [
        ([State.complete, State.oom, State.diverged, State.invalid, State.skipped, State.oom_host], None, 0),
        ([State.complete, State.failed], None, 1),
        ([State.complete, State.killed], None, 1),
        ([State.complete, State.timeout], None, 1),
        ([State.oom, State.oom], None, 1),
        ([State.invalid, State.invalid], None, 2),
        ([], None, 1),
        ([State.complete], signal.SIGTERM, 143),
    ],
)
def test_exit_codes(jobs, states, signal_number, wanted):
    assert exit_code([result(jobs[0], state) for state in states], signal_number) == wanted


def test_what_a_sweeper_is_told(jobs):
    done = result(jobs[0], tokens_per_second=5.0, peak_allocated_gib=None, host_peak_gib=2.0)
    assert objective_value(done, Objective.throughput) == 5.0
    assert objective_value(done, Objective.memory) == 2.0
    assert objective_value(result(jobs[0], State.oom, tokens_per_second=5.0), Objective.throughput) == float("-inf")
    assert objective_value(None, Objective.memory) == float("inf")
