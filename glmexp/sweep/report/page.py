"""``report.html``: one file that opens without a network.

All text from data, paths and errors is escaped. As a second wall the page's own policy forbids every connection, and every
script without this file's nonce, so that even an injected tag could neither run nor send anything.
"""

import html
import importlib.util
import json
import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from glmexp.config.choices import Language
from glmexp.sweep.report.answer import axis_name, comma, state_name
from glmexp.sweep.report.columns import Column, columns
from glmexp.sweep.report.content import Content
from glmexp.sweep.report.decision import OUTSIDE_GIB
from glmexp.sweep.report.effects import Effect, Ratio
from glmexp.sweep.report.figures import all_of
from glmexp.sweep.report.trials import Trial
from glmexp.sweep.report.wording import say
from glmexp.trial.closing import printable

PLOTLY = "package_data/plotly.min.js"
LONGEST_CELL = 48
"""Characters of a reason that are shown before it is opened."""
END_OF_NAME = 9
"""Characters of a trial's name that are always seen: those of its hash."""
HEADINGS = {"pareto": "pareto", "knobs": "effects", "predicted": "predicted"}
"""Figure -> the key of its heading."""


def page(content: Content, steps: Sequence[str]) -> list[bytes]:
    """The parts of the file, in order. Plotly's script is in it only if there is a figure."""
    lang, figures = content.lang, all_of(content)
    title = text(say(lang, "title", name=content.name))
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    body = [
        f'<!doctype html>\n<html lang="{lang.value}"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_asset('page.css')}</style></head>\n<body><main>\n<h1>{title}</h1>\n",
        *_answer(content, steps),
    ]
    axis = say(lang, axis_name(content.axis))
    for figure in figures:
        body.append(
            f'<h2>{text(say(lang, HEADINGS[figure["id"]], axis=axis))}</h2>\n<div class="plot" id="{figure["id"]}"></div>\n'
        )
        if figure["id"] == "knobs":
            body += _effects(content)
    if content.trials:
        body += _trials(content)
    data = json.dumps(figures, allow_nan=False).replace("<", "\\u003c")
    body.append(f'</main>\n<script type="application/json" id="figures">{data}</script>\n')
    start, end = f'<script nonce="{nonce}">'.encode(), b"</script>\n"
    scripts = [plotly(), _asset("page.js").encode()] if figures else [_asset("page.js").encode()]
    inside = b"".join(part.encode("utf-8", errors="backslashreplace") for part in body)
    return [inside, *(part for script in scripts for part in (start, script, end)), b"</body></html>\n"]


def text(value: str) -> str:
    """A text from anywhere, as the content of an element or of a quoted attribute."""
    return html.escape(printable(value))


@cache
def plotly() -> bytes:
    """Plotly's script as its package ships it, found without importing the package."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None, "plotly is a dependency of glmexp"
    assert spec.submodule_search_locations is not None
    return (Path(spec.submodule_search_locations[0]) / PLOTLY).read_bytes()


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _answer(content: Content, steps: Sequence[str]) -> Iterator[str]:
    lang, told = content.lang, content.answer
    first, *rest = told.sentences or [told.states]
    yield f'<section class="answer"><p class="first">{text(first)}</p>\n{_paragraphs(rest)}'
    if steps:
        yield "<ul>\n" + "".join(f"<li>{text(line)}</li>\n" for line in steps) + "</ul>"
    yield f"</section>\n<h2>{text(say(lang, 'states'))}</h2>\n" + _paragraphs((told.states, *told.notes))
    if told.how:
        yield f"<h2>{text(say(lang, 'how'))}</h2>\n" + _paragraphs(told.how)


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{text(line)}</p>\n" for line in lines)


def _trials(content: Content) -> Iterator[str]:
    lang, trials, shown = content.lang, content.ranked, columns(content, full=True)
    states = dict.fromkeys(trial.state.value for trial in trials)
    chips = "".join(
        f'<button class="chip {state}" data-state="{state}" aria-pressed="true">{state_name(lang, state)}</button>'
        for state in states
    )
    hints = [say(lang, "sort"), say(lang, "struck")]
    if content.axis == "gpu":
        hints.append(say(lang, "cards", outside=OUTSIDE_GIB))
    count = text(say(lang, "shown", count="{}")).format(f'<span id="shown">{len(trials)}</span>')
    prompt = text(say(lang, "filter"))
    yield (
        f'<h2>{text(say(lang, "trials"))}</h2>\n<p class="hint">{text(" ".join(hints))}</p>\n'
        f'<div class="tools"><input id="filter" type="search" placeholder="{prompt}" aria-label="{prompt}">{chips}'
        f'<span class="hint">{count}</span></div>\n'
        '<div class="scroll"><table id="trials"><thead><tr>'
    )
    yield "".join(f'<th class="{_kind(column)}"><button>{text(column.title)}</button></th>' for column in shown)
    yield "</tr></thead>\n<tbody>\n"
    beaten = {trial.name for trial in content.front.beaten}
    for trial in trials:
        classes = f"{'dominated' if trial.name in beaten else ''} {'recommended' if trial is content.recommended else ''}"
        cells = _name(trial) + "".join(_cell(column, trial) for column in shown[1:])
        yield f'<tr class="{classes.strip()}" data-state="{trial.state.value}">{cells}</tr>\n'
    yield "</tbody></table></div>\n"


def _kind(column: Column) -> str:
    return f"{'number' if column.numeric else ''} {'figure' if column.figure else ''}".strip()


def _name(trial: Trial) -> str:
    """The first cell. Its middle is cut by the style sheet, so that the text is whole to whoever filters or copies."""
    start, end = trial.name[:-END_OF_NAME], trial.name[-END_OF_NAME:]
    return f'<td title="{text(trial.name)}"><div class="name"><span>{text(start)}</span>{text(end)}</div></td>'


def _cell(column: Column, trial: Trial) -> str:
    whole = column.text(trial).strip()
    first, _, more = whole.partition("\n")
    if more or len(first) > LONGEST_CELL:
        rest = f"<pre>{text(more)}</pre>" if more else ""
        return f'<td><details><summary title="{text(whole)}">{text(first)}</summary>{rest}</details></td>'
    order = column.order(trial) if column.order else None
    sort = "" if order is None else f' data-order="{order!r}"'
    return f'<td class="{_kind(column)}"{sort}>{text(first)}</td>'


def _effects(content: Content) -> Iterator[str]:
    lang = content.lang
    unset = say(lang, "not set")
    titles = [say(lang, key) for key in ("knob", "against", "pairs", "speed", axis_name(content.axis), "not complete")]
    yield f'<p class="hint">{text(say(lang, "paired"))}</p>\n<div class="scroll"><table id="effects"><thead><tr>'
    yield "".join(f"<th>{text(title)}</th>" for title in titles) + "</tr></thead>\n<tbody>\n"
    for effect in content.effects:
        cells = (
            f"{effect.key}={effect.value or unset}",
            effect.reference or unset,
            str(effect.pairs),
            _ratio(effect.speed, lang),
            _ratio(effect.memory, lang),
            _lost(effect, lang),
        )
        yield f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>\n"
    yield "</tbody></table></div>\n"


def _ratio(ratio: Ratio | None, lang: Language) -> str:
    """``×1.2 (1.1-1.3)``."""
    if ratio is None:
        return say(lang, "pairless")
    low, high = f"{ratio.low:.3g}", f"{ratio.high:.3g}"
    return f"×{ratio.middle:.3g}" + (f" ({low} – {high})" if low != high else "")


def _lost(effect: Effect, lang: Language) -> str:
    """``3 of 8 (2 oom, 1 failed)``."""
    if not effect.lost:
        return ""
    states = comma(lang).join(f"{count} {state_name(lang, state)}" for state, count in effect.lost.items())
    return say(lang, "of", count=effect.lost.total(), all=effect.trials, states=states)
