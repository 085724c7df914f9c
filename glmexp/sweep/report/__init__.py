"""The report of a sweep, made from the files of its folder alone: an answer, a table, plots, and files that can be run.

It is built again after every trial, by whichever process has ended one, under a lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.sweep.report import pictures
from glmexp.sweep.report.answer import count_states
from glmexp.sweep.report.content import gather
from glmexp.sweep.report.files import rebuilding, write_whole
from glmexp.sweep.report.markdown import markdown
from glmexp.sweep.report.page import page
from glmexp.sweep.report.recommended import next_steps, write_recommended
from glmexp.sweep.report.table import column, csv_text, row_of
from glmexp.sweep.report.trials import Settings, read_settings

__all__ = ["CSV", "HTML", "MARKDOWN", "Report", "Settings", "build", "read_settings"]

CSV = "report.csv"
MARKDOWN = "report.md"
HTML = "report.html"


@dataclass(frozen=True)
class Report:
    rows: Sequence[Mapping[str, Any]]
    """A row a trial, with the columns of ``report.csv`` as keys."""
    recommended: Mapping[str, Any] | None
    """The row that is recommended."""
    sentences: Sequence[str]
    """For the terminal: the states, then the recommendation or why there is none."""
    counts: Mapping[str, int]
    """State -> number of trials."""
    swept: Sequence[str] = ()
    """The columns of ``rows`` that were swept."""


def build(folder: Path, plots: bool = False, settings: Settings | None = None) -> Report:
    """Writes the report of a sweep folder, each file whole or not at all.

    Args:
        plots: draw the PNG plots too, which takes a second.
        settings: in place of those in ``sweep.json``.
    """
    with rebuilding(folder):
        return _build(folder, plots, settings or read_settings(folder))


def _build(folder: Path, plots: bool, settings: Settings) -> Report:
    content = gather(folder, settings)
    recommended, told = content.recommended, content.answer
    ds_config = write_recommended(recommended, content.swept, settings, folder)
    steps = [] if recommended is None else next_steps(ds_config, folder, content.lang)
    if plots:
        pictures.draw(content, folder)
    rows = [row_of(trial, content.swept) for trial in content.trials]
    write_whole(folder / CSV, csv_text(rows, content.swept))
    write_whole(folder / MARKDOWN, markdown(content, steps, pictures.drawn(folder)))
    write_whole(folder / HTML, *page(content, steps))
    return Report(
        rows,
        next((row for row, trial in zip(rows, content.trials, strict=True) if trial is recommended), None),
        [told.states, *told.notes, *told.sentences, *told.how],
        count_states(content.trials),
        [column(key) for key in content.swept],
    )
