"""What a sweep shows while it goes on: a table on a terminal, one line at the start and one at the end of a trial elsewhere."""

import queue
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from glmexp.trial.closing import STYLES, duration, printable
from glmexp.trial.progress import REDRAW_SECONDS, TITLES, is_terminal
from glmexp.trial.record import BUILDING_OP, Phase, RankRecord, State

LONGEST_REASON = 200
"""Characters of a reason in a line; ``result.json`` has the whole."""
LINES_AROUND = 5
"""Lines of the screen that are not rows of trials: counts, the fastest, the table's head, the cursor's, one to spare."""
COLUMNS = ("trial", "state", "tokens/s", "memory", "time", "reason")
RIGHT = ("tokens/s", "memory", "time")
USUAL = (0, len("loading weights"), len("tokens/s"), len("12.3 GiB peak"), len("0:00:00"), 0)
"""Cells that a column is likely to need, so that it has them from the start."""
GAP = 2
NARROW, MIDDLE = 50, 90
"""Widths of the screen below which the figures, and below which the reasons, are left out."""


class TrialView:
    """What ``run_trial`` draws one trial through. It is called on the trial's thread, so it only keeps what it is told."""

    def __init__(self, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self.clock = clock
        self.say = say
        self.started = clock()
        self.announced = False
        self.progress = ""
        self.builds: list[str] = []
        """Notes of all ranks about ops that they compile."""
        self.figures: dict[str, Any] = {}

    def __enter__(self) -> "TrialView":
        self.started = self.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The end is told to ``SweepView.finish``, with the result."""

    def update(self, records: Sequence[RankRecord], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        latest = dict(rows[-1]) if rows else {}
        if records:
            self._tell_builds([note for record in records for note in record.notes if note.startswith(BUILDING_OP)])
            record = min(records, key=lambda item: item.rank)
            title = TITLES.get(record.phase, record.phase.value)
            if record.phase is Phase.building and self.builds:
                title = f"building {self.builds[-1].removeprefix(BUILDING_OP).split()[0]}"
            self.progress = f"{title} {record.done}/{record.total}" if record.total else title
            latest = {**record.numbers, **latest}
        self.figures = {**self.figures, **latest}

    def _tell_builds(self, notes: Sequence[str]) -> None:
        """They explain a minute in which nothing seems to happen."""
        for note in notes:
            if note not in self.builds:
                self.builds.append(note)
                self.say(note)

    def note(self, line: str) -> None:
        """Not shown: beside other trials' lines it would tell little, and the trial's ``train.log`` has it."""

    @property
    def seconds(self) -> float:
        return self.clock() - self.started


@dataclass(frozen=True)
class Ended:
    name: str
    state: State
    reason: str
    metrics: Mapping[str, Any]
    seconds: float | None
    """null for a trial that did not run in this session."""
    earlier: bool = False
    """It had ended in an earlier session."""

    @property
    def first_line(self) -> str:
        line = next(iter(self.reason.splitlines()), "")
        return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 2]} …"

    def line(self) -> str:
        """``NAME: complete, 1,234 tokens/s, 12.3 GiB peak (5.2 s)``, or with the reason why not."""
        state = f"{self.state.value} earlier" if self.earlier else self.state.value
        took = "" if self.seconds is None else f" ({self.seconds:.1f} s)"
        return f"{self.name}: {listed(state, *self.figures, self.first_line)}{took}"

    @property
    def figures(self) -> tuple[str, str]:
        return speed(self.metrics, " tokens/s"), memory(self.metrics)


class SweepView:
    """Draws a sweep: enter it, hand ``trial(name)`` to each trial, call ``refresh`` a few times a second and ``finish``.

    Only ``trial`` and ``note`` may be called on other threads than the one that draws.

    Args:
        console: where to draw.
        total: trials of the sweep, those that ended earlier included; null if that is not known.
        live: a table (true) or lines (false); null asks the console.
        clock: seconds, monotonic.
        slots: trials at once, for the time left.
    """

    def __init__(
        self,
        console: Console,
        total: int | None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        slots: int = 1,
    ) -> None:
        self.console = console
        self.total = total
        self.clock = clock
        self.slots = slots
        self.ended: list[Ended] = []
        self.running: dict[str, TrialView] = {}
        self.stops_at: float | None = None
        """When no further trial will be started, on ``clock``; null if all of them will."""
        self._widths = list(USUAL)
        """The most cells that each column has needed: columns that become narrow again would jump."""
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._drawn_at = float("-inf")
        self._live: Live | None = None
        if is_terminal(console) if live is None else live:
            self._live = Live(console=console, auto_refresh=False, get_renderable=self.render)

    def __enter__(self) -> "SweepView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tell()
        if self._live is not None:
            self._live.refresh()
            self._live.stop()

    def trial(self, name: str) -> TrialView:
        """The view of one trial, which is running from now on until ``finish``."""
        view = TrialView(self.clock, lambda line: self.note(f"{name}: {line}"))
        self.running[name] = view
        return view

    def note(self, line: str) -> None:
        """One line for the user, shown with the next ``refresh``."""
        self._notes.put(line)

    def finish(self, name: str, state: State, reason: str, metrics: Mapping[str, Any], earlier: bool = False) -> None:
        """Takes how a trial ended: one that ran, was skipped or refused, or had ended in an ``earlier`` session."""
        self._tell()
        view = self.running.pop(name, None)
        ended = Ended(name, state, reason, metrics, None if view is None else view.seconds, earlier)
        self.ended.append(ended)
        if self._live is None:
            of = "" if self.total is None else f"/{self.total}"
            self._print(f"[{len(self.ended)}{of}] {ended.line()}")

    def refresh(self) -> None:
        """Shows what is new; cheap enough to be called as often as one likes."""
        self._tell()
        if self._live is not None and self.clock() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = self.clock()
            self._live.refresh()

    def _tell(self) -> None:
        if self._live is None:
            for name, view in list(self.running.items()):  # a copy: trials start on other threads
                if not view.announced:
                    view.announced = True
                    self._print(f"{name}: started")
        while not self._notes.empty():
            self._print(self._notes.get())

    def _print(self, line: str) -> None:
        self.console.print(Text(printable(line)), soft_wrap=True)

    def seconds_left(self) -> float | None:
        """The median of the trials that ran, times those to come, over the slots; null where that cannot be told.

        The first in each slot wait for the imports of a warm start and count only while there are no others.
        """
        took = [ended.seconds for ended in self.ended if ended.seconds is not None]
        took = took[self.slots :] or took
        if not took or self.total is None:
            return None
        median, running = statistics.median(took), list(self.running.values())
        waiting = max(self.total - len(self.ended) - len(running), 0)
        left = (median * waiting + sum(max(median - view.seconds, 0.0) for view in running)) / self.slots
        stopped_before = self.stops_at is not None and self.clock() + left > self.stops_at
        return None if stopped_before else left

    def fastest(self) -> Ended | None:
        """The complete trial with the most tokens a second."""
        done = [ended for ended in self.ended if ended.state is State.complete and speed(ended.metrics)]
        return max(done, key=lambda ended: float(ended.metrics["tokens_per_second"]), default=None)

    def render(self) -> RenderableType:
        """Counts, the fastest trial, and a table of the last trials that ended and those that run; never above the screen."""
        counts = Counter(ended.state.value for ended in self.ended)
        told = [f"{count} {state}" for state, count in counts.items()]
        told += [f"{len(self.running)} running"] if self.running else []
        left = self.seconds_left()
        told += [f"{duration(left)} left"] if left else []
        of = "" if self.total is None else f"/{self.total}"
        lines: list[RenderableType] = [self._line(f"{len(self.ended)}{of} trials: {', '.join(told) or 'starting'}", "bold")]
        if (best := self.fastest()) is not None:
            lines.append(self._line(f"fastest so far: {best.name}: {listed(*best.figures)}", "green"))
        return Group(*lines, self._table(max(self.console.height - LINES_AROUND, 1)))

    def _line(self, text: str, style: str) -> Text:
        return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")

    def _table(self, rows: int) -> Table:
        running = list(self.running.items())[:rows]
        content: list[list[Text]] = []
        for ended in self.ended[max(len(self.ended) - (rows - len(running)), 0) :]:
            state = Text(ended.state.value, style=STYLES.get(ended.state, "bold red"))
            took = "" if ended.seconds is None else duration(ended.seconds)
            content.append(_row(ended.name, state, ended.metrics, took, ended.first_line))
        for name, view in running:
            state = Text(view.progress or "starting", style="cyan")
            content.append(_row(name, state, view.figures, duration(view.seconds), ""))
        width = self.console.width
        names = COLUMNS[: len(COLUMNS) if width >= MIDDLE else -1 if width >= NARROW else 2]
        for at, name in enumerate(names):
            self._widths[at] = max([self._widths[at], len(name), *(row[at].cell_len for row in content)])
        sizes = fitted(self._widths[: len(names)], width - GAP * len(names))
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        for name, size in zip(names, sizes, strict=True):
            right = "right" if name in RIGHT else "left"
            table.add_column(name, width=size, no_wrap=True, overflow="ellipsis", justify=right)  # type: ignore[arg-type]
        for row in content:
            table.add_row(Text(without_middle(row[0].plain, sizes[0])), *row[1 : len(names)])
        return table


def fitted(natural: Sequence[int], room: int) -> list[int]:
    """Widths that fit into ``room``: the last column gives way first, then names, states, and the others from the right."""
    widths = list(natural)
    for at, least in ((len(widths) - 1, 12), (0, 20), (1, 8), (0, 8), *((at, 1) for at in reversed(range(len(widths))))):
        widths[at] -= min(max(sum(widths) - room, 0), max(widths[at] - least, 0))
    return widths


def without_middle(name: str, room: int) -> str:
    """A trial's name in ``room`` cells: what it begins with and, twice as long, its end with the last values and the hash."""
    if cell_len(name) <= room or room < 4:
        return name
    head = (room - 1) // 3
    start, end = set_cell_size(name, head), name
    while cell_len(end) > room - 1 - head:
        end = end[1:]
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"


def listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _row(name: str, state: Text, figures: Mapping[str, Any], took: str, reason: str) -> list[Text]:
    cells = [printable(name), speed(figures), memory(figures), took]
    texts = [Text(cell) for cell in cells]
    return [texts[0], state, *texts[1:], Text(printable(reason), style="dim")]


def speed(figures: Mapping[str, Any], unit: str = "") -> str:
    value = figures.get("tokens_per_second")
    return f"{value:,.0f}{unit}" if isinstance(value, int | float) else ""


def memory(figures: Mapping[str, Any]) -> str:
    """The GPU's peak, or the host's where no GPU was measured."""
    for name, word in (("peak_allocated_gib", "peak"), ("host_peak_gib", "host")):
        if isinstance(value := figures.get(name), int | float):
            return f"{value:.1f} GiB {word}"
    return ""
