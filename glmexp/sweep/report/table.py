"""``report.csv``: a row a trial, for a spreadsheet or a program.

UTF-8 without a byte order mark, so that the first column's name is clean for whoever reads it. A text that a spreadsheet would
take for a formula gets an apostrophe in front; numbers stay numbers.
"""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from glmexp.sweep.report.trials import Trial
from glmexp.trial.closing import printable
from glmexp.trial.result import METRIC_NAMES

FIRST = ("trial", "state", "reason")
LAST = ("overrides", "world_size", "config_hash", *METRIC_NAMES, "predicted_peak_gib", "seconds", "device")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r]")
"""How a cell starts that Excel, LibreOffice or Google Sheets evaluate; full-width signs count in East Asian locales."""


def row_of(trial: Trial, swept: Sequence[str]) -> dict[str, Any]:
    """The CSV's columns by name, values as they were measured; None where there is none."""
    result = trial.result
    return {
        "trial": trial.name,
        "state": trial.state.value,
        "reason": " ".join(str(result.reason).split()),
        **{column(key): trial.values.get(key) for key in swept},
        "overrides": " ".join(map(str, result.overrides)),
        "world_size": result.world_size,
        "config_hash": result.config_hash,
        **trial.metrics,
        "predicted_peak_gib": trial.predicted_gib,
        "seconds": trial.seconds,
        "device": trial.device,
    }


def column(key: str) -> str:
    """The column of a swept key; an invalid override can bear the name of another column."""
    return f"override {key}" if key in (*FIRST, *LAST) else key


def csv_text(rows: Sequence[dict[str, Any]], swept: Sequence[str]) -> str:
    columns = [*FIRST, *map(column, swept), *LAST]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([cell(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value as it may stand in a cell."""
    if value is None or isinstance(value, int | float):
        return value
    text = printable(str(value))
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text
