"""What a sweep shows: lines in a file, a table that stays within the screen on a terminal."""

import io
import threading
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from glmexp.sweep.view import SweepView, fitted, without_middle
from glmexp.trial.record import BUILDING_OP, Phase, RankRecord, State


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def screen(width: int = 100, height: int = 20, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal, _environ={})


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def training(done: int, total: int, **numbers: float) -> list[RankRecord]:
    return [RankRecord(1, 2, Phase.building), RankRecord(0, 1, Phase.training, done, total, numbers=numbers)]


def figures(speed: float, gpu: float | None = None, host: float | None = None) -> dict[str, Any]:
    return {"tokens_per_second": speed, "peak_allocated_gib": gpu, "host_peak_gib": host}


def test_lines_where_there_is_no_terminal() -> None:
    console, clock = screen(width=40), Clock()
    with SweepView(console, total=24, clock=clock) as view:
        view.finish("a", State.complete, "", figures(10.0, host=3.04), earlier=True)
        view.finish("b", State.oom, "no room", {}, earlier=True)
        with view.trial("zero-stage2_micro4") as trial:
            view.refresh()
            view.refresh()
            trial.note("not shown")
            trial.update(training(3, 13), [{"step": 3, "loss": 1.0}])
            view.refresh()
            clock.now += 5.23
        view.finish("zero-stage2_micro4", State.complete, "", figures(1234.4, 12.34, 50.0))
        with view.trial("micro8"):
            clock.now += 1
        view.finish(
            "micro8", State.oom, "step 2: CUDA out of memory\nTried to allocate", figures(1.0) | {"tokens_per_second": None}
        )
        view.finish("micro16", State.skipped, "batch.micro=8 ran out of GPU memory", {})
    assert written(console) == [
        "[1/24] a: complete earlier, 10 tokens/s, 3.0 GiB host",
        "[2/24] b: oom earlier, no room",
        "zero-stage2_micro4: started",
        "[3/24] zero-stage2_micro4: complete, 1,234 tokens/s, 12.3 GiB peak (5.2 s)",
        "micro8: started",
        "[4/24] micro8: oom, step 2: CUDA out of memory (1.0 s)",
        "[5/24] micro16: skipped, batch.micro=8 ran out of GPU memory",
    ]


@pytest.mark.parametrize("live", [False, True])
def test_the_minute_that_a_build_takes_is_explained(live: bool) -> None:
    console = screen(terminal=live)
    records = [RankRecord(0, 1, Phase.building, notes=["data: 4 samples"]), RankRecord(1, 2, Phase.building)]
    with SweepView(console, total=1, live=live) as view:
        trial = view.trial("one")
        for notes in ([], [f"{BUILDING_OP}cpu_adam in /somewhere: a minute or more"]):
            records[1].notes = notes
            trial.update(records)
            trial.update(records)
            view.refresh()
        shown = "\n".join(line.plain for line in rendered(view))
        assert "building cpu_adam" in shown
        trial.update([RankRecord(0, 1, Phase.training, 1, 2, notes=records[1].notes)])
        assert "training 1/2" in "\n".join(line.plain for line in rendered(view))
    said = "\n".join(written(console))
    assert said.count("one: building DeepSpeed's cpu_adam in /somewhere: a minute or more") == 1
    assert "samples" not in said
    if not live:
        assert said.startswith("one: started")


def test_a_total_that_is_not_known_is_left_out() -> None:
    console = screen()
    with SweepView(console, total=None) as view:
        view.finish("a", State.failed, "x" * 500, {})
        assert view.seconds_left() is None
    (line,) = written(console)
    assert line.startswith("[1] a: failed, xxx")
    assert line.endswith("x …")
    assert len(line) < 230


@pytest.mark.parametrize("live", [False, True])
def test_control_characters_are_made_harmless(live: bool) -> None:
    console = screen(width=120, terminal=live)
    with SweepView(console, total=2, live=live) as view:
        view.trial("na\x1b[2Jme")
        view.note("warning: \x1b]0;title\x07 [bold]kept[/bold]")
        view.finish("na\x1b[2Jme", State.failed, "an \x1b[31merror\r", {})
        view.refresh()
        shown = "\n".join(line.plain for line in rendered(view))
    text = "\n".join(written(console))
    assert "\x1b[2Jme" not in text
    assert "\x1b[31merror" not in text
    assert "\x1b]0" not in text
    assert "[bold]kept[/bold]" in text
    assert "an \N{REPLACEMENT CHARACTER}[31merror" in shown


def rendered(view: SweepView) -> list[Text]:
    """Lines of the table as a terminal of that size gets them."""
    console = view.console
    return [Text("".join(part.text for part in line)) for line in console.render_lines(view.render(), pad=False)]


def filled(width: int, height: int, clock: Clock, running: int = 2) -> SweepView:
    view = SweepView(screen(width, height, terminal=True), total=24, live=True, clock=clock, slots=2)
    for number in range(8):
        view.trial(f"zero-stage{number}_micro4_很长的名字")
        clock.now += 60
        state = State.oom if number % 2 else State.complete
        metrics = {} if number % 2 else figures(1000.0 + number, 3.25)
        view.finish(f"zero-stage{number}_micro4_很长的名字", state, "内存不足 " * 30 if number % 2 else "", metrics)
    for number in range(running):
        view.trial(f"micro{number}").update(training(3, 13, tokens_per_second=77.0))
    return view


def test_the_table_of_a_terminal() -> None:
    clock = Clock()
    told = [" ".join(line.plain.split()) for line in rendered(filled(120, 12, clock))]
    assert told[0] == "8/24 trials: 4 complete, 4 oom, 2 running, 0:08:00 left"
    assert told[1] == "fastest so far: zero-stage6_micro4_很长的名字: 1,006 tokens/s, 3.2 GiB peak"
    lines = [line.split() for line in told]
    assert lines[2] == ["trial", "state", "tokens/s", "memory", "time", "reason"]
    # Twelve lines: five around, the two that run, and so the last five that ended.
    assert [line[0] for line in lines[3:]] == [
        *(f"zero-stage{number}_micro4_很长的名字" for number in range(3, 8)),
        "micro0",
        "micro1",
    ]
    assert lines[6][1:] == ["complete", "1,006", "3.2", "GiB", "peak", "0:01:00"]
    assert lines[7][1:3] == ["oom", "0:01:00"]
    assert lines[8] == ["micro0", "training", "3/13", "77", "0:00:00"]


@pytest.mark.parametrize("width", [8, 20, 49, 50, 89, 90, 200])
@pytest.mark.parametrize("height", [1, 5, 6, 12, 60])
@pytest.mark.parametrize("running", [0, 2, 30])
def test_the_table_stays_within_the_screen(width: int, height: int, running: int) -> None:
    lines = rendered(filled(width, height, Clock(), running))
    assert len(lines) < max(height, 5)
    assert max(line.cell_len for line in lines) <= width


def test_time_left_counts_the_slots_and_how_long_trials_run_already() -> None:
    clock = Clock()
    view = SweepView(screen(), total=6, clock=clock, slots=2)
    view.finish("earlier", State.complete, "", {})
    assert view.seconds_left() is None  # what ended earlier took no time now
    view.trial("a")
    view.trial("b")
    clock.now += 10
    view.finish("a", State.complete, "", {})
    view.finish("b", State.complete, "", {})
    view.trial("c")
    clock.now += 4
    # c needs 6 s more, two more trials 10 s each, on two slots.
    assert view.seconds_left() == pytest.approx(13.0)


def timed(view: SweepView, clock: Clock, *seconds: float) -> None:
    for took in seconds:
        view.trial(f"t{len(view.ended)}")
        clock.now += took
        view.finish(f"t{len(view.ended)}", State.complete, "", {})


def test_time_left_is_that_of_warm_trials() -> None:
    clock = Clock()
    view = SweepView(screen(), total=6, clock=clock)
    timed(view, clock, 30)
    assert view.seconds_left() == 150.0  # nothing better is known
    timed(view, clock, 2, 3, 2)
    assert view.seconds_left() == 4.0


def test_no_time_is_left_where_the_sweep_stops_before() -> None:
    clock = Clock()
    view = SweepView(screen(), total=6, clock=clock)
    timed(view, clock, 2, 2)
    view.stops_at = clock.now + 9
    assert view.seconds_left() == 8.0
    view.stops_at = clock.now + 7
    assert view.seconds_left() is None


def test_columns_stay_where_they_are() -> None:
    clock = Clock()
    view = SweepView(screen(120, 8, terminal=True), total=9, live=True, clock=clock)

    def places() -> list[int]:
        head = next(line.plain for line in rendered(view) if line.plain.startswith("trial"))
        return [head.index(name) for name in ("state", "tokens/s", "memory", "time", "reason")]

    view.finish("a_rather_long_name-12345678", State.complete, "", figures(1.0, 1.0))
    before = places()
    timed(view, clock, 1, 1, 1, 1)
    view.trial("b").update(training(1, 2))
    assert "a_rather_long_name" not in "\n".join(line.plain for line in rendered(view)[2:]), "it has left the screen"
    assert places() == before


def test_a_name_too_long_keeps_its_ends() -> None:
    name = "zero-stage2_offload-cpu_all_activation-checkpoint_micro-4-7fc9093a"
    assert without_middle(name, 30) == "zero-stag…point_micro-4-7fc9093a"[:10] + name[-20:]
    assert without_middle(name, len(name)) == name
    for room in range(4, 40):
        assert len(without_middle(name, room)) == room
        assert cell_len(without_middle("很长的名字" * 9, room)) <= room
    view = SweepView(screen(60, 12, terminal=True), total=9, live=True)
    view.finish(name, State.complete, "", figures(1.0, 1.0))
    assert any("7fc9093a" in line.plain for line in rendered(view)[1:])


def test_only_a_terminal_that_is_due_is_drawn_again() -> None:
    clock = Clock()
    console = screen(terminal=True)
    with SweepView(console, total=3, live=True, clock=clock) as view:
        view.trial("a")
        view.refresh()
        drawn = len(console.file.getvalue())  # type: ignore[attr-defined]
        view.refresh()
        assert len(console.file.getvalue()) == drawn  # type: ignore[attr-defined]
        clock.now += 1
        view.refresh()
        assert len(console.file.getvalue()) > drawn  # type: ignore[attr-defined]
        view.note("a warning")
        view.refresh()
    assert any(line.strip().endswith("a warning") for line in written(console))


def test_trials_tell_their_progress_on_threads_of_their_own() -> None:
    view = SweepView(screen(terminal=True), total=200, live=True)
    failed: list[BaseException] = []

    def trial(name: str) -> None:
        try:
            with view.trial(name) as one:
                for step in range(200):
                    one.update(training(step, 200), [{"step": step, "tokens_per_second": 1.0}])
                    view.note(f"{name} {step}") if step % 100 == 0 else None
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=trial, args=(f"t{number}",)) for number in range(20)]
    with view:
        for thread in threads:
            thread.start()
            view.refresh()
            rendered(view)
        for thread in threads:
            thread.join()
        view.refresh()
        for number in range(20):
            view.finish(f"t{number}", State.complete, "", figures(1.0))
    assert failed == []
    assert len([line for line in written(view.console) if line.rstrip().endswith((" 0", " 100"))]) == 40


@pytest.mark.parametrize("room", range(0, 80, 7))
def test_columns_give_way_in_order(room: int) -> None:
    natural = [30, 12, 8, 13, 7, 90]
    widths = fitted(natural, room)
    assert sum(widths) <= max(room, len(natural))
    assert all(least <= width for least, width in zip([1] * 6, widths, strict=True))
    if room >= 20 + 40 + 12:
        assert widths[1:5] == natural[1:5]
