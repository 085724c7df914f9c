"""What a run looks like while it goes on: bars on a terminal, plain lines elsewhere.

An observer of the records that ranks write and of ``metrics.jsonl``; it reads no file and knows no process.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from glmexp.trial.closing import closing, duration, printable
from glmexp.trial.record import Phase, RankRecord

__all__ = ["ProgressView", "View", "closing"]

TITLES = {
    Phase.starting: "starting",
    Phase.tokenising: "tokenising",
    Phase.loading: "loading weights",
    Phase.building: "building",
    Phase.training: "training",
    Phase.evaluating: "evaluating",
    Phase.saving: "saving weights",
}
"""Phases with a bar of their own, in the words of the user."""
UNITS = {Phase.tokenising: "samples", Phase.loading: "tensors", Phase.training: "steps", Phase.evaluating: "samples"}
RECENT_STEPS = 30
"""Steps that the time left is reckoned from: few enough to follow a change of pace."""
REDRAW_SECONDS = 0.25
"""Between two drawings of the bars: smooth enough, and light over a slow connection."""


class View(Protocol):
    """What a trial is shown through while it goes on: entered, updated a few times a second, left."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def update(self, records: Sequence[RankRecord], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Takes the latest record of each rank and the rows that came since the last call."""
        ...

    def note(self, line: str) -> None:
        """Takes one or more lines for the user."""
        ...


class ProgressView:
    """Draws one trial: enter it, ``update`` it a few times a second, leave it.

    Args:
        total_steps: optimizer steps of the run; null takes what the ranks tell.
        console: where to draw.
        every_seconds: between two plain lines of one phase.
        live: bars (true) or lines (false); null asks the console. Lines are for anything that is not a terminal, so that a
            log file holds no cursor movement.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total_steps: int | None,
        console: Console,
        every_seconds: float = 10.0,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self._phase: Phase | None = None
        self._row: dict[str, Any] = {}
        self._pace = Pace(total_steps, clock)
        on_terminal = is_terminal(console) if live is None else live
        self._view: _Bars | _Lines = _Bars(console, clock) if on_terminal else _Lines(self.note, every_seconds, clock)

    def __enter__(self) -> "ProgressView":
        self._view.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._view.close()

    def update(self, records: Sequence[RankRecord], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Takes the latest record of each rank and the rows that came since the last call."""
        for row in rows:
            self._row = dict(row)
        if not records:
            return
        # The lowest rank is the one that tokenises, measures and saves; the others wait for it.
        record = min(records, key=lambda item: item.rank)
        if record.phase is Phase.training:
            self._show_step(record.done, record.total, record.numbers)
        elif rows:  # the last steps came together with the news of the next phase
            self._show_step(0, None, {})
        if record.phase not in TITLES:
            self._view.end()
        elif record.phase is not Phase.training:
            self._enter(record.phase, record.total)
            self._view.draw(record.phase, record.done, record.total, "")

    def _show_step(self, told_done: int, told_total: int | None, numbers: Mapping[str, float]) -> None:
        done, total = self._pace.at(int(self._row.get("step") or told_done), told_total)
        self._enter(Phase.training, total)
        self._view.draw(Phase.training, done, total, describe({**numbers, **self._row}, self._pace.seconds_left(done, total)))

    def _enter(self, phase: Phase, total: int | None) -> None:
        if phase is not self._phase:
            self._phase = phase
            self._view.enter(phase, total)

    def note(self, line: str) -> None:
        """One line of plain text, above the bars if there are any."""
        self.console.print(Text(printable(line)), soft_wrap=True)


def is_terminal(console: Console) -> bool:
    """Whether the cursor may be moved; FORCE_COLOR makes rich believe in a terminal that is a file."""
    attached = getattr(console.file, "isatty", lambda: False)()
    return bool(attached) and console.is_terminal and not console.is_dumb_terminal


def describe(told: Mapping[str, Any], seconds_left: float | None) -> str:
    """Loss, lr, tokens a second, peak memory and time left, as far as they are known."""
    forms = {
        "loss": "loss {:.4f}",
        "lr": "lr {:.2e}",
        "tokens_per_second": "{:,.0f} tokens/s",
        "peak_allocated_gib": "{:.1f} GiB peak",
        "eval_loss": "validation loss {:.4f}",
        "evaluating": "evaluating {:.0f} %",
    }
    parts = [form.format(told[key]) for key, form in forms.items() if isinstance(told.get(key), int | float)]
    if told.get("skipped"):
        parts.append("step skipped")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


class Pace:
    """Where the steps stand and how long the rest takes at the pace of the last ones."""

    def __init__(self, total: int | None, clock: Callable[[], float]) -> None:
        self.total = total
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque(maxlen=RECENT_STEPS)

    def at(self, step: int, told_total: int | None) -> tuple[int, int | None]:
        if step > 0 and (not self._seen or step > self._seen[-1][1]):
            self._seen.append((self._clock(), step))
        self.total = told_total or self.total
        return step, self.total

    def seconds_left(self, done: int, total: int | None) -> float | None:
        if total is None or done >= total or len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (ended - began) / (last - first) * (total - done)


class _Bars:
    """A bar a phase and the latest figures below; drawn on ``draw`` only, so that it costs no thread."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._drawn_at = 0.0
        self._tasks: dict[Phase, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )
        self._figures = ""
        self._task: TaskID | None = None
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._live.refresh()
        self._live.stop()

    def enter(self, phase: Phase, total: int | None) -> None:
        self.end()
        if phase in self._tasks:  # one bar a phase, also if a rank comes back to it
            if phase is not Phase.training:  # which goes on after a checkpoint
                self._progress.reset(self._tasks[phase], total=total)
        else:
            self._tasks[phase] = self._progress.add_task(TITLES[phase], total=total, count="")
        self._task = self._tasks[phase]
        self._drawn_at = 0.0

    def end(self) -> None:
        """Fills the bar of the phase that is over."""
        if self._task is not None:
            total = next(task.total for task in self._progress.tasks if task.id == self._task)
            count = f"{total:.0f}/{total:.0f}" if total else ""
            self._progress.update(self._task, total=total or 1, completed=total or 1, count=count)
            self._task = None
            self._live.refresh()

    def draw(self, phase: Phase, done: int, total: int | None, figures: str) -> None:
        if self._task is None:
            return
        self._figures = figures or self._figures
        self._progress.update(self._task, total=total, completed=done, count=f"{done}/{total}" if total else "")
        if self._clock() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = self._clock()
            self._live.refresh()

    def _render(self) -> RenderableType:
        lines: list[RenderableType] = [self._progress.get_renderable()]
        if self._figures:
            lines.append(Text(self._figures, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)


class _Lines:
    """A line when a phase begins, then one every few seconds, and one for the first and the last step.

    Checkpoints interrupt the training again and again: what comes back between steps, or soon after, is not told anew.
    """

    def __init__(self, write: Callable[[str], None], every_seconds: float, clock: Callable[[], float]) -> None:
        self._write = write
        self._every_seconds = every_seconds
        self._clock = clock
        self._written_at = 0.0
        self._written_done = 0
        self._reached: dict[Phase, int] = {}
        """Phases that have begun, with the units that were written last."""
        self._stepped = False
        """Whether the last step is taken."""

    def open(self) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing to give back."""

    def end(self) -> None:
        """The last line of a phase is told when it is reached."""

    def enter(self, phase: Phase, total: int | None) -> None:
        again = phase in self._reached
        stepping = Phase.training in self._reached and not self._stepped
        reached = self._reached.setdefault(phase, 0)
        self._written_done = reached if phase is Phase.training else 0
        if again and (stepping or phase is Phase.training or self._clock() - self._written_at < self._every_seconds):
            return
        unit = UNITS.get(phase)
        if total == 1 and unit:
            unit = unit.removesuffix("s")
        self._write(f"{TITLES[phase]}: {total} {unit}" if total and unit else TITLES[phase])
        self._written_at = self._clock()

    def draw(self, phase: Phase, done: int, total: int | None, figures: str) -> None:
        if done <= self._written_done:
            return
        stepping = phase is Phase.training
        self._stepped |= stepping and done == total
        ends = stepping and (self._written_done == 0 or done == total)
        if not ends and self._clock() - self._written_at < self._every_seconds:
            return
        count = f"{done}/{total}" if total else str(done)
        self._write(f"step {count}  {figures}".rstrip() if stepping else f"{TITLES[phase]}: {count}")
        self._written_at, self._written_done, self._reached[phase] = self._clock(), done, done
