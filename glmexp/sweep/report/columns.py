"""The columns of the tables that people read, in the Markdown and on the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glmexp.config.choices import Language
from glmexp.sweep.report.answer import state_name
from glmexp.sweep.report.content import Content
from glmexp.sweep.report.decision import CARDS_GIB, fit, skipped
from glmexp.sweep.report.trials import Trial
from glmexp.sweep.report.wording import say

FIT_ORDER = {"no": 0.0, "tight": 1.0, "yes": 2.0}


@dataclass(frozen=True)
class Column:
    title: str
    text: Callable[[Trial], str]
    """What the cell shows; empty where nothing was measured."""
    order: Callable[[Trial], float | None] | None = None
    """What a numeric column is sorted by."""
    figure: bool = False
    """Struck out where the trial is dominated."""

    @property
    def numeric(self) -> bool:
        return self.order is not None


def columns(content: Content, full: bool) -> list[Column]:
    """The columns that hold anything; ``full`` is for the page, which has room for all."""
    lang = content.lang
    settings = [Column(key, _value(key)) for key in content.swept]
    shown = [
        Column(say(lang, "trial"), lambda trial: trial.name),
        Column(say(lang, "state"), lambda trial: state_name(lang, trial.state.value)),
        *settings,
        _figure(say(lang, "speed"), "{:,.0f}", lambda trial: trial.speed),
        *([_metric(lang, "step", "{:.4g}", "step_seconds")] if full else []),
        *([_metric(lang, "spread", "{:.2g}", "step_seconds_spread")] if full else []),
        _figure(say(lang, "gpu"), "{:.2f}", lambda trial: trial.gpu_gib),
        *([_metric(lang, "reserved", "{:.2f}", "peak_reserved_gib")] if full else []),
        *([_figure(say(lang, "predicted_gib"), "{:.2f}", lambda trial: trial.predicted_gib)] if full else []),
        _figure(say(lang, "host_gib"), "{:.2f}", lambda trial: trial.host_gib),
        *([_metric(lang, "loss", "{:.4f}", "loss_last", figure=False)] if content.losses else []),
        *(
            [_metric(lang, "skipped_steps", "{:.0f}", "skipped_steps", figure=False)]
            if any(map(skipped, content.trials))
            else []
        ),
        *([_metric(lang, "mfu", "{:.1%}", "mfu")] if full else []),
        *(_cards(lang) if full else []),
        *([Column(say(lang, "ranks"), lambda trial: str(trial.result.world_size or ""), _ranks)] if full else []),
        *([Column(say(lang, "seconds"), _seconds, lambda trial: trial.seconds)] if full else []),
        Column(say(lang, "reason"), lambda trial: str(trial.result.reason or "")),
    ]
    return [column for column in shown if any(column.text(trial) for trial in content.trials)]


def _value(key: str) -> Callable[[Trial], str]:
    return lambda trial: trial.values.get(key, "")


def _figure(title: str, form: str, value: Callable[[Trial], float | None], figure: bool = True) -> Column:
    def text(trial: Trial) -> str:
        found = value(trial)
        return "" if found is None else form.format(found)

    return Column(title, text, value, figure)


def _metric(lang: Language, word: str, form: str, name: str, figure: bool = True) -> Column:
    return _figure(say(lang, word), form, lambda trial: trial.metrics[name], figure)


def _cards(lang: Language) -> Sequence[Column]:
    def column(card: str, gib: float) -> Column:
        def text(trial: Trial) -> str:
            fits = fit(trial, gib)
            return "" if fits is None else say(lang, fits)

        def order(trial: Trial) -> float | None:
            fits = fit(trial, gib)
            return None if fits is None else FIT_ORDER[fits]

        return Column(say(lang, "fits", card=card), text, order)

    return [column(card, gib) for card, gib in CARDS_GIB.items()]


def _ranks(trial: Trial) -> float | None:
    return trial.result.world_size


def _seconds(trial: Trial) -> str:
    return "" if trial.seconds is None else f"{trial.seconds:.1f}"
