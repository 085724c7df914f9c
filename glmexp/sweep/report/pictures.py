"""PNG plots for a README, drawn by matplotlib: ``pareto.png`` and ``knobs.png``, labelled in English."""

import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glmexp.config.choices import Language
from glmexp.sweep.report.answer import one_line
from glmexp.sweep.report.content import Content
from glmexp.sweep.report.decision import Axis, memory_of
from glmexp.sweep.report.effects import Effect, Ratio
from glmexp.sweep.report.figures import BLUE, GREY, OCHRE, RED, host_differs, left_out_name, placed
from glmexp.sweep.report.files import write_whole
from glmexp.sweep.report.trials import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARETO = "pareto.png"
KNOBS = "knobs.png"
LONGEST_LABEL = 40
TITLES: dict[Axis, str] = {"gpu": "GPU memory peak (GiB)", "host": "host memory peak (GiB)"}


def draw(content: Content, folder: Path) -> None:
    """Draws what there is to draw, and removes a plot for which there is no longer anything."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it puts its cache is nothing for the user
    import matplotlib

    shown = [effect for effect in content.effects if effect.speed and effect.memory]
    # A name may hold dollar signs, which matplotlib reads as formulas, and letters that its font lacks.
    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        warnings.simplefilter("ignore", UserWarning)
        _write(_pareto(content) if any(placed(content)) else None, folder / PARETO)
        _write(_knobs(shown, content.axis) if shown else None, folder / KNOBS)


def drawn(folder: Path) -> list[Path]:
    """The plots that are there."""
    return [folder / name for name in (PARETO, KNOBS) if (folder / name).is_file()]


def _write(figure: "Figure | None", path: Path) -> None:
    if figure is None:
        path.unlink(missing_ok=True)
        return
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_whole(path, content.getvalue())


def _pareto(content: Content) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axis, (best, beaten, left_out) = content.axis, placed(content)
    axes.step(_x(best, axis), _y(best), where="post", color=BLUE, linewidth=1)
    if left_out:
        name = left_out_name(content, Language.en)
        axes.scatter(_x(left_out, axis), _y(left_out), s=35, marker="x", color=GREY, linewidth=0.8, label=name)
    if beaten:
        axes.scatter(_x(beaten, axis), _y(beaten), s=40, facecolors="none", edgecolors=BLUE, label="dominated")
    host = [trial.host_gib for trial in best if trial.host_gib is not None]
    if axis == "gpu" and len(host) == len(best) and host_differs(content.trials):
        dots = axes.scatter(_x(best, axis), _y(best), s=50, c=host, cmap="viridis", label="Pareto front", zorder=2)
        figure.colorbar(dots, ax=axes, label="host memory peak (GiB)")
    elif best:
        axes.scatter(_x(best, axis), _y(best), s=50, color=BLUE, label="Pareto front", zorder=2)
    if content.recommended in (*best, *beaten) and content.recommended is not None:
        star = [content.recommended]
        axes.scatter(_x(star, axis), _y(star), s=200, marker="*", color=RED, label="recommended", zorder=3)
    axes.set_xlabel(TITLES[axis])
    axes.set_ylabel("tokens/s")
    if axis == "gpu":
        axes.set_xlim(left=0)
    if content.limit_gib is not None:
        axes.set_xlim(right=axes.get_xlim()[1])  # a far limit does not squeeze the points
        axes.axvline(content.limit_gib, color=RED, linewidth=1, linestyle="--", label=f"{content.limit_gib:g} GiB")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _knobs(shown: Sequence[Effect], axis: Axis) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(8, 1.6 + 0.55 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    places = list(range(len(shown)))[::-1]
    series = (
        ("tokens/s", [effect.speed for effect in shown], BLUE, 0.2),
        (TITLES[axis].removesuffix(" (GiB)"), [effect.memory for effect in shown], OCHRE, -0.2),
    )
    for _, ratios, colour, offset in series:
        values = [ratio for ratio in ratios if ratio is not None]
        axes.barh(
            [place + offset for place in places],
            [_percent(ratio.middle) for ratio in values],
            height=0.38,
            color=[GREY if ratio.low <= 1 <= ratio.high else colour for ratio in values],
            hatch=["//" if effect.partial else "" for effect in shown],
            edgecolor="white",
            linewidth=0,
            xerr=_range(values),
            error_kw={"linewidth": 1, "capsize": 2},
        )
    axes.set_yticks(places, [_label(effect) for effect in shown])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("change in %, all else equal\n(grey: the range includes none; hatched: some trials have no pair)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(handles=[Patch(color=colour, label=name) for name, _, colour, _ in series])
    return figure


def _label(effect: Effect) -> str:
    text = one_line(f"{effect.key}={effect.value or 'not set'} against {effect.reference or 'not set'}")
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}…"


def _range(ratios: Sequence[Ratio]) -> list[list[float]]:
    """How far the bars' error lines reach down and up."""
    return [
        [_percent(ratio.middle) - _percent(ratio.low) for ratio in ratios],
        [_percent(ratio.high) - _percent(ratio.middle) for ratio in ratios],
    ]


def _percent(ratio: float) -> float:
    return (ratio - 1) * 100


def _x(trials: Sequence[Trial], axis: Axis) -> list[float]:
    return [memory_of(trial, axis) or 0.0 for trial in trials]


def _y(trials: Sequence[Trial]) -> list[float]:
    return [trial.speed or 0.0 for trial in trials]
