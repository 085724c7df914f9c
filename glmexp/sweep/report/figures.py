"""The page's figures as plotly's own JSON. Plotly reads tags in its texts, so what a trial is called and set to is escaped."""

import html
from collections.abc import Sequence
from typing import Any

from glmexp.config.choices import Language
from glmexp.sweep.report.answer import axis_name, one_line
from glmexp.sweep.report.content import Content
from glmexp.sweep.report.decision import memory_of
from glmexp.sweep.report.effects import Effect, Ratio
from glmexp.sweep.report.trials import Trial
from glmexp.sweep.report.wording import say
from glmexp.trial.closing import printable

BLUE, OCHRE, GREY, RED = "#1f6feb", "#bf8700", "#8c959f", "#cf222e"
LONGEST_LABEL = 60


def all_of(content: Content) -> list[dict[str, Any]]:
    """The figures for which there is something to show."""
    return [figure for figure in (pareto(content), knobs(content), predictions(content)) if figure is not None]


def pareto(content: Content) -> dict[str, Any] | None:
    """Memory against tokens/s, host memory as the colour where the GPU's is on the axis; None without a point."""
    lang, (best, beaten, left_out) = content.lang, placed(content)
    if not (best or left_out):
        return None
    traces = []
    if best:
        traces.append(_dots(best, content, say(lang, "front"), "circle", 11))
        traces[-1] |= {"mode": "lines+markers", "line": {"shape": "hv", "color": BLUE, "width": 1}}
    if beaten:
        traces.append(_dots(beaten, content, say(lang, "dominated"), "circle-open", 9))
    if left_out:
        traces.append(_dots(left_out, content, left_out_name(content, lang), "x-thin-open", 8))
        traces[-1]["marker"] = {"symbol": "x-thin-open", "size": 8, "color": GREY}
    if content.recommended in (*best, *beaten) and content.recommended is not None:
        star = _dots([content.recommended], content, say(lang, "the recommended"), "star", 18)
        traces.append({**star, "marker": {"symbol": "star", "size": 18, "color": RED}})
    layout = _layout(f"{say(lang, axis_name(content.axis))} (GiB)", say(lang, "speed"))
    if content.axis == "host":
        layout["xaxis"]["rangemode"] = "normal"  # most of it is what any process takes
    if content.limit_gib is not None:
        layout["shapes"] = [_upright(content.limit_gib)]
    if any("coloraxis" in trace["marker"] for trace in traces):
        bar = {"title": {"text": say(lang, "host_gib"), "side": "right"}}
        layout["coloraxis"] = {"colorscale": "Viridis", "colorbar": bar}
    return {"id": "pareto", "data": traces, "layout": layout}


def placed(content: Content) -> tuple[list[Trial], list[Trial], list[Trial]]:
    """The plot's points: of the compared trials the front and the dominated, and those that were left out."""
    out = [trial for trial in content.left_out if trial.speed is not None and memory_of(trial, content.axis) is not None]
    best, beaten = ([trial for trial in part if trial not in out] for part in (content.front.best, content.front.beaten))
    return best, beaten, out


def left_out_name(content: Content, lang: Language) -> str:
    return say(lang, "spoiled") if content.limit_gib is None else say(lang, "beyond", gib=content.limit_gib)


def host_differs(trials: Sequence[Trial]) -> bool:
    """Whether host memory is worth a colour: it differs by 0.1 GiB."""
    host = [trial.host_gib for trial in trials if trial.host_gib is not None]
    return bool(host) and max(host) - min(host) >= 0.1


def knobs(content: Content) -> dict[str, Any] | None:
    """Change of speed and memory by each value of each knob, in percent; None without a pair."""
    lang = content.lang
    shown = [effect for effect in content.effects if effect.speed or effect.memory][::-1]
    if not shown:
        return None
    traces = [
        _bars(shown, [effect.speed for effect in shown], say(lang, "speed"), BLUE, lang),
        _bars(shown, [effect.memory for effect in shown], say(lang, axis_name(content.axis)), OCHRE, lang),
    ]
    # Bars have colours of their own each, so the legend has squares in their place.
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": trace["name"],
            "x": [None],
            "y": [trace["y"][0]],
            "hoverinfo": "skip",
            "marker": {"symbol": "square", "size": 12, "color": colour},
        }
        for trace, colour in zip(traces, (BLUE, OCHRE), strict=True)
    ]
    layout = _layout(say(lang, "percent"), "")
    layout |= {"barmode": "group", "height": 160 + 48 * len(shown)}
    layout["yaxis"] = {"automargin": True, "type": "category"}
    return {"id": "knobs", "data": traces, "layout": layout}


def predictions(content: Content) -> dict[str, Any] | None:
    """Predicted against measured GPU peak; None where nothing was predicted."""
    lang = content.lang
    both = [
        (trial, trial.gpu_gib, trial.predicted_gib)
        for trial in content.trials
        if trial.complete and trial.predicted_gib is not None and trial.gpu_gib is not None
    ]
    if not both:
        return None
    top = max(max(measured, predicted) for _, measured, predicted in both)
    dots = {
        "type": "scatter", "mode": "markers", "name": say(lang, "trials"), "marker": {"color": BLUE, "size": 10},
        "x": [measured for _, measured, _ in both], "y": [predicted for _, _, predicted in both],
        "customdata": [_label(trial, content.swept) for trial, _, _ in both],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{x:.2f} / %{y:.2f} GiB<extra></extra>",
    }  # fmt: skip
    line = {
        "type": "scatter", "mode": "lines", "name": say(lang, "equal"), "line": {"color": GREY, "dash": "dot"},
        "x": [0, top], "y": [0, top], "hoverinfo": "skip",
    }  # fmt: skip
    titles = (f"{say(lang, 'measured')} (GiB)", say(lang, "predicted_gib"))
    return {"id": "predicted", "data": [dots, line], "layout": _layout(*titles)}


def plain(text: str) -> str:
    """A text that plotly shows as it is."""
    line = one_line(printable(text))
    return html.escape(line if len(line) <= LONGEST_LABEL else f"{line[:LONGEST_LABEL]}…", quote=False)


def _label(trial: Trial, swept: Sequence[str]) -> list[str]:
    values = (plain(f"{key}={trial.values[key]}") for key in swept if key in trial.values)
    return [plain(trial.name), "<br>".join(values)]


def _dots(trials: Sequence[Trial], content: Content, name: str, symbol: str, size: int) -> dict[str, Any]:
    lang, axis = content.lang, content.axis
    marker: dict[str, Any] = {"symbol": symbol, "size": size, "color": BLUE}
    if axis == "gpu" and host_differs(content.trials):
        marker |= {"color": [trial.host_gib for trial in trials], "coloraxis": "coloraxis"}
    host = ["" if trial.host_gib is None else f"{say(lang, 'host memory')} {trial.host_gib:.2f} GiB" for trial in trials]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "marker": marker,
        "x": [memory_of(trial, axis) for trial in trials],
        "y": [trial.speed for trial in trials],
        "customdata": [[*_label(trial, content.swept), line] for trial, line in zip(trials, host, strict=True)],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{y:,.0f} tokens/s, %{x:.2f} GiB"
        "<br>%{customdata[2]}<extra></extra>",
    }


def _bars(shown: Sequence[Effect], ratios: Sequence[Ratio | None], name: str, colour: str, lang: Language) -> dict[str, Any]:
    """One bar a value of a knob, with a line over the range of its pairs: grey if that includes no change, hatched if some of
    the trials with this value have no pair.
    """
    unset = say(lang, "not set")
    middle, low, high = (
        [None if ratio is None else round((getattr(ratio, part) - 1) * 100, 2) for ratio in ratios]
        for part in ("middle", "low", "high")
    )
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "showlegend": False,
        "marker": {
            "color": [GREY if ratio is not None and ratio.low <= 1 <= ratio.high else colour for ratio in ratios],
            "pattern": {"shape": ["/" if effect.partial else "" for effect in shown], "fillmode": "overlay", "fgcolor": "#fff"},
        },
        "y": [plain(f"{effect.key}={effect.value or unset}") for effect in shown],
        "x": middle,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "thickness": 1,
            "array": [(top or 0) - (centre or 0) for top, centre in zip(high, middle, strict=True)],
            "arrayminus": [(centre or 0) - (bottom or 0) for bottom, centre in zip(low, middle, strict=True)],
        },
        "customdata": [
            f"{say(lang, 'against')} {plain(effect.reference or unset)}, {say(lang, 'pairs')}: {effect.pairs}"
            for effect in shown
        ],
        "hovertemplate": "%{y}: %{x:+.1f} %<br>%{customdata}",
    }


def _upright(x: float) -> dict[str, Any]:
    """A line over the whole height, with its figure."""
    label = {"text": f"{x:g} GiB", "textposition": "end", "font": {"color": RED}}
    line = {"color": RED, "width": 1, "dash": "dash"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line, "label": label}


def _layout(x: str, y: str) -> dict[str, Any]:
    return {
        "height": 440,
        "margin": {"l": 70, "r": 20, "t": 20, "b": 60},
        "xaxis": {"title": {"text": x}, "rangemode": "tozero", "automargin": True},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero", "automargin": True},
        "legend": {"orientation": "h", "y": 1.12},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
