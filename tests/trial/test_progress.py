"""The progress of a run on a terminal and in a log file."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from glmexp.trial.progress import Pace, ProgressView, describe, is_terminal
from glmexp.trial.record import Phase, RankRecord


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def rank(phase: Phase, done: int = 0, total: int | None = None, number: int = 0, **numbers: float) -> RankRecord:
    return RankRecord(rank=number, pid=1, phase=phase, done=done, total=total, numbers=numbers)


def step(number: int, **more: Any) -> dict[str, Any]:
    figures = {"loss": 4.0 / number, "lr": 1e-3, "tokens_per_second": 1234.5, "peak_allocated_gib": 2.25, "skipped": False}
    return {"step": number, **figures, **more}


def lines_of(file: StringIO) -> list[str]:
    assert "\r" not in file.getvalue()
    assert "\x1b" not in file.getvalue()
    return file.getvalue().splitlines()


def run_in_a_log(every_seconds: float = 10.0, steps: int = 60) -> list[str]:
    """A run of one second a step, drawn four times a second."""
    file, clock = StringIO(), Clock()
    with ProgressView(steps, Console(file=file), every_seconds, clock=clock) as view:
        view.update([])
        view.update([rank(Phase.starting)])
        for done in (0, 100, 300):
            view.update([rank(Phase.tokenising, done, 300), rank(Phase.starting, number=1)])
            clock.now += 6
        view.update([rank(Phase.loading, 0, 12)])
        view.update([rank(Phase.building)])
        for done in range(1, steps + 1):
            clock.now += 1
            view.update([rank(Phase.training, done, steps)], [step(done)])
            view.update([rank(Phase.training, done, steps)])
        view.update([rank(Phase.saving, 0, 12)])
        view.update([rank(Phase.done)])
    return lines_of(file)


def test_a_log_gets_a_line_a_phase_and_one_every_few_seconds() -> None:
    lines = run_in_a_log()
    assert lines[:5] == [
        "starting",
        "tokenising: 300 samples",
        "tokenising: 300/300",
        "loading weights: 12 tensors",
        "building",
    ]
    assert lines[5] == "training: 60 steps"
    assert lines[6] == "step 1/60  loss 4.0000  lr 1.00e-03  1,234 tokens/s  2.2 GiB peak"
    assert [line.split()[1] for line in lines[6:-1]] == ["1/60", "11/60", "21/60", "31/60", "41/60", "51/60", "60/60"]
    assert lines[7].endswith("0:00:49 left")
    assert "left" not in lines[-2]
    assert lines[-1] == "saving weights"


def test_the_last_step_is_told_when_it_comes_with_the_next_phase() -> None:
    file = StringIO()
    with ProgressView(2, Console(file=file), clock=Clock()) as view:
        view.update([rank(Phase.training, 1, 2)], [step(1)])
        view.update([rank(Phase.saving, 0, 3)], [step(2)])
    assert [line.split("  ")[0] for line in lines_of(file)] == [
        "training: 2 steps",
        "step 1/2",
        "step 2/2",
        "saving weights",
    ]


def test_checkpoints_leave_the_lines_of_the_steps_in_a_log() -> None:
    file, clock = StringIO(), Clock()
    with ProgressView(8, Console(file=file), clock=clock) as view:
        for done in range(1, 9):
            clock.now += 11
            view.update([rank(Phase.training, done, 8)], [step(done)])
            view.update([rank(Phase.saving)])
    lines = [line.split("  ")[0] for line in lines_of(file)]
    assert lines.count("saving weights") == 1
    assert [line for line in lines if line.startswith("step")] == [f"step {done}/8" for done in range(1, 9)]


def test_one_step_is_one_step() -> None:
    file = StringIO()
    with ProgressView(1, Console(file=file), clock=Clock()) as view:
        view.update([rank(Phase.training, 1, 1)], [step(1)])
    assert lines_of(file)[0] == "training: 1 step"


def test_a_run_that_is_over_at_the_first_look_shows_its_steps() -> None:
    file = StringIO()
    with ProgressView(None, Console(file=file), clock=Clock()) as view:
        view.update([rank(Phase.done)], [step(1), step(2)])
    assert [line.split("  ")[0] for line in lines_of(file)] == ["training", "step 2"]


def test_the_record_stands_in_until_the_first_row() -> None:
    file = StringIO()
    with ProgressView(9, Console(file=file), clock=Clock()) as view:
        view.update([rank(Phase.training, 4, 9, loss=1.5)])
    assert lines_of(file)[-1] == "step 4/9  loss 1.5000"


def test_the_time_left_follows_the_recent_pace() -> None:
    clock = Clock()
    pace = Pace(200, clock)
    for number in range(1, 101):
        clock.now += 10.0 if number <= 50 else 2.0
        pace.at(number, None)
    assert pace.seconds_left(100, 200) == pytest.approx(200.0)
    assert pace.seconds_left(200, 200) is None
    assert Pace(None, clock).seconds_left(1, None) is None


def test_figures_that_were_not_measured_are_left_out() -> None:
    assert describe({"loss": None, "lr": 2e-5, "skipped": True, "grad_norm": None}, None) == "lr 2.00e-05  step skipped"
    assert describe({}, 3725.4) == "1:02:05 left"


def test_a_terminal_gets_bars_and_the_figures_below() -> None:
    file, clock = Terminal(), Clock()
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    with ProgressView(4, console, clock=clock) as view:
        view.update([rank(Phase.tokenising, 150, 300)])
        for done in (1, 2, 3):
            clock.now += 1
            view.update([rank(Phase.training, done, 4)], [step(done)])
        view.note("WARNING a line from [red]elsewhere[/red]")
    shown = file.getvalue()
    assert "\x1b[?25l" in shown
    assert shown.rstrip().endswith("\x1b[?25h"), "the cursor comes back"
    for part in ("150/300", "300/300", "3/4", "loss 1.3333", "1,234 tokens/s", "2.2 GiB peak", "0:00:01 left"):
        assert part in shown, part
    assert "WARNING a line from [red]elsewhere[/red]" in shown


def test_a_phase_that_comes_back_keeps_its_bar() -> None:
    file, clock = Terminal(), Clock()
    with ProgressView(4, Console(file=file, force_terminal=True, width=80, color_system=None), clock=clock) as view:
        for phase in (Phase.building, Phase.loading, Phase.building, Phase.done):
            clock.now += 1
            view.update([rank(phase)])
    last = file.getvalue().rsplit("\x1b[2K", 1)[-1]
    assert [line.split()[0] for line in last.splitlines()[:2]] == ["building", "loading"]
    assert last.count("building") == 1


def test_bars_are_drawn_a_few_times_a_second_at_most() -> None:
    def drawn(polls: int, seconds: float) -> int:
        file, clock = Terminal(), Clock()
        with ProgressView(1000, Console(file=file, force_terminal=True, width=80), clock=clock) as view:
            for done in range(1, polls + 1):
                clock.now += seconds / polls
                view.update([rank(Phase.training, done, 1000)], [step(done)])
        return file.getvalue().count("training")

    assert drawn(200, 5.0) < 25


def test_the_cursor_comes_back_after_an_error() -> None:
    file = Terminal()

    def interrupted() -> None:
        with ProgressView(4, Console(file=file, force_terminal=True)) as view:
            view.update([rank(Phase.building)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "\x1b[?25h" in file.getvalue()


def test_colours_forced_into_a_file_do_not_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not is_terminal(Console(file=StringIO()))
    assert not is_terminal(Console(file=StringIO(), force_terminal=True))
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Console(file=Terminal()))
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Console(file=Terminal()))


def test_text_from_elsewhere_is_shown_as_it_is() -> None:
    file = StringIO()
    with ProgressView(4, Console(file=file, width=40)) as view:
        view.note("bad [bold]line[/bold] /a/[long]/" + "x" * 60 + "\x1b[2J\r")
    (line,) = lines_of(file)
    assert line == "bad [bold]line[/bold] /a/[long]/" + "x" * 60 + "\ufffd[2J\ufffd"
