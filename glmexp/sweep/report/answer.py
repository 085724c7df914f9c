"""The report's sentences: what is recommended, how it was decided, and what to do where nothing is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glmexp.config.choices import Language, Objective
from glmexp.sweep.report.decision import OUTSIDE_GIB, Axis, Choice, memory_of, skipped
from glmexp.sweep.report.trials import Settings, Trial, Trials
from glmexp.sweep.report.wording import say
from glmexp.trial.closing import printable
from glmexp.trial.record import State

LONGEST = 200


@dataclass(frozen=True)
class Answer:
    states: str
    """How many trials ended how."""
    sentences: Sequence[str]
    """The recommendation, or why there is none, with the next move."""
    how: Sequence[str]
    """How it was decided."""
    notes: Sequence[str]
    """Trials that are not in the table."""


def answer(trials: Trials, choice: Choice, settings: Settings) -> Answer:
    lang = settings.lang
    counts = count_states(trials.ended)
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    key = "count" if len(trials.ended) != 1 else "one"
    states = say(lang, key, count=len(trials.ended), states=told) if told else say(lang, "none yet")
    notes = [say(lang, "running", count=trials.running)] if trials.running else []
    if trials.unreadable:
        names = ", ".join(map(one_line, trials.unreadable[:5]))
        notes.append(say(lang, "unreadable", count=len(trials.unreadable), names=names))
    if not trials.ended:
        return Answer(states, [], [], notes)
    if choice.trial is None:
        return Answer(states, _without(trials.ended, choice, settings, told), [], notes)
    return Answer(states, _recommended(choice.trial, trials, lang), _how(choice, settings), notes)


def count_states(trials: Sequence[Trial]) -> dict[str, int]:
    """State -> number of trials, in the order of ``State``."""
    counts = Counter(trial.state for trial in trials)
    return {state.value: counts[state] for state in State if counts[state]}


def _recommended(trial: Trial, trials: Trials, lang: Language) -> list[str]:
    sentences = [say(lang, "recommended", trial=trial.name, figures=figures(trial, lang))]
    values = [f"{key}={trial.values[key]}" for key in trials.swept if key in trial.values]
    if values:
        sentences.append(say(lang, "settings", settings=one_line(" ".join(values))))
    return sentences


def figures(trial: Trial, lang: Language) -> str:
    """``1,234 tokens/s, GPU memory 12.3 GiB, host memory 4.5 GiB``."""
    parts = [f"{trial.speed:,.0f} tokens/s"] if trial.speed is not None else []
    for name, gib in (("GPU memory", trial.gpu_gib), ("host memory", trial.host_gib)):
        if gib is not None:
            # Host memory of small models differs in the second decimal.
            parts.append(f"{say(lang, name)} {gib:.{1 if gib >= 10 else 2}f} GiB")
    return ("，" if lang is Language.zh else ", ").join(parts)


def _how(choice: Choice, settings: Settings) -> list[str]:
    lang, limit = settings.lang, settings.gpu_memory_gib
    on_gpu = choice.axis == "gpu"
    within = say(lang, "within", gib=limit, outside=OUTSIDE_GIB) if limit and on_gpu else ""
    axis = say(lang, axis_name(choice.axis))
    sentences = [say(lang, settings.objective.value, fitting=len(choice.fitting), within=within, axis=axis)]
    if settings.objective is Objective.throughput and len(choice.tied) > 1:
        uneven = len({skipped(trial) for trial in choice.tied}) > 1
        sentences.append(say(lang, "tie of skipped" if uneven else "tie", count=len(choice.tied)))
    if not on_gpu:
        sentences.append(say(lang, "no limit on host", gib=limit) if limit else say(lang, "host"))
    return sentences


def axis_name(axis: Axis) -> str:
    """The key of its name in ``wording``."""
    return "GPU memory" if axis == "gpu" else "host memory"


def _without(trials: Sequence[Trial], choice: Choice, settings: Settings, states: str) -> list[str]:
    """Why nothing is recommended: the measured do not fit, all ran out of memory, or nothing was measured."""
    lang, limit = settings.lang, settings.gpu_memory_gib
    too_large = bool(choice.candidates)
    out_of_memory = [trial for trial in trials if trial.state in (State.oom, State.oom_host)]
    if not too_large and any(trial.complete for trial in trials):
        return [say(lang, "nothing measured"), say(lang, "next check")]
    if not too_large and not out_of_memory:
        bad = next((trial for trial in trials if trial.state is not State.skipped), trials[0])
        reason = one_line(str(bad.result.reason))
        return [say(lang, "nothing complete"), say(lang, "next reason", trial=bad.name, state=bad.state.value, reason=reason)]
    fits = say(lang, "limit", gib=limit) if limit and too_large else say(lang, "card")
    sentences = [say(lang, "nothing fits", limit=fits, states=states)]
    axis: Axis = "gpu" if too_large or any(trial.gpu_gib for trial in out_of_memory) else "host"
    seen = [trial for trial in (choice.candidates or out_of_memory) if memory_of(trial, axis) is not None]
    if seen:
        least = min(seen, key=lambda trial: memory_of(trial, axis) or 0.0)
        tight = say(lang, "when it ended")
        if too_large:
            tight = say(lang, "cached", reserved=least.reserved_gib, outside=OUTSIDE_GIB)
        sentences.append(say(lang, "least", gib=memory_of(least, axis), trial=least.name, tight=tight))
    on_host = not too_large and all(trial.state is State.oom_host for trial in out_of_memory)
    sentences.append(say(lang, "next memory" if too_large else "next oom_host" if on_host else "next oom"))
    return sentences


def one_line(text: str) -> str:
    """A text from data, paths or errors as part of a sentence."""
    text = " ".join(printable(text).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
