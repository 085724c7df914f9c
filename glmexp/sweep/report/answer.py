"""The report's sentences: what is recommended, how it was decided, and what to do where nothing is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glmexp.config.choices import Language
from glmexp.sweep.report.decision import (
    OUTSIDE_GIB,
    RUINED_NATS,
    RUINED_SHARE,
    Axis,
    Choice,
    exploded,
    memory_of,
    skipped,
    skipped_share,
    speedless,
)
from glmexp.sweep.report.trials import Settings, Trial, Trials, how_measured
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
    told = comma(lang).join(f"{count} {state_name(lang, state)}" for state, count in counts.items())
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
    how = _how(choice, settings, trials.swept) + _otherwise(choice.trial, choice.compared, lang)
    return Answer(states, _recommended(choice.trial, trials, lang), how, notes)


def count_states(trials: Sequence[Trial]) -> dict[str, int]:
    """State -> number of trials, in the order of ``State``."""
    counts = Counter(trial.state for trial in trials)
    return {state.value: counts[state] for state in State if counts[state]}


def _recommended(trial: Trial, trials: Trials, lang: Language) -> list[str]:
    sentences = [say(lang, "recommended", trial=trial.name, figures=figures(trial, lang))]
    own = [key for key in trials.swept if key in trial.values and key not in how_measured(trial.values)]
    values = [f"{key}={trial.values[key]}" for key in own]
    if values:
        sentences.append(say(lang, "settings", settings=one_line(" ".join(values))))
    return sentences


def figures(trial: Trial, lang: Language) -> str:
    """``1,234 tokens/s, GPU memory 12.3 GiB, host memory 4.5 GiB``; of a training its last loss too."""
    parts = [f"{trial.speed:,.0f} tokens/s"] if trial.speed is not None else []
    for name, gib in (("GPU memory", trial.gpu_gib), ("host memory", trial.host_gib)):
        if gib is not None:
            # Host memory of small models differs in the second decimal.
            parts.append(f"{say(lang, name)} {gib:.{1 if gib >= 10 else 2}f} GiB")
    if trial.trained and trial.loss is not None:
        parts.append(f"{say(lang, 'loss')} {trial.loss:.4f}")
    return comma(lang).join(parts)


def comma(lang: Language) -> str:
    return "，" if lang is Language.zh else ", "


def state_name(lang: Language, state: str) -> str:
    """A state in the language, with the word that is set in ``sweep.retry``."""
    return state if lang is Language.en else f"{say(lang, state)} ({state})"


def _how(choice: Choice, settings: Settings, swept: Sequence[str]) -> list[str]:
    lang, limit = settings.lang, settings.gpu_memory_gib
    on_gpu = choice.axis == "gpu"
    within = say(lang, "within", gib=limit, outside=OUTSIDE_GIB) if limit and on_gpu else ""
    rule = "by loss" if choice.by_loss else settings.objective.value
    axis = say(lang, axis_name(choice.axis))
    sentences = [say(lang, rule, count=len(choice.compared), within=within, axis=axis, keys=comma(lang).join(swept))]
    sentences += _ruined(choice, lang)
    if choice.by_loss and len(choice.tied) > 1:
        sentences.append(say(lang, "tie of loss", count=len(choice.tied)))
    if choice.rival is not None:
        sentences += _near(choice, choice.rival, lang)
    if not choice.by_loss:
        sentences += _lowest_loss(choice, swept, lang)
    if not on_gpu and (limit or not choice.by_loss):
        sentences.append(say(lang, "no limit on host", gib=limit) if limit else say(lang, "host"))
    return sentences


def _ruined(choice: Choice, lang: Language) -> list[str]:
    """Which trials were left out since their training was ruined, or that there is none but those."""
    if not choice.ruined:
        return []
    if choice.trial in choice.ruined:
        return [say(lang, "all ruined", share=RUINED_SHARE, nats=RUINED_NATS)]
    up = [trial for trial in choice.ruined if exploded(trial)]
    idle = [trial for trial in choice.ruined if trial not in up]
    told = [say(lang, "exploded", nats=RUINED_NATS, names=_names([trial.name for trial in up], lang))] if up else []
    shares = [f"{trial.name} ({skipped_share(trial):.0%})" for trial in idle]
    told += [say(lang, "idle", share=RUINED_SHARE, names=_names(shares, lang))] if idle else []
    why = ("；" if lang is Language.zh else "; ").join(told)
    return [say(lang, "left out", count=len(choice.ruined), why=why)]


def _names(names: Sequence[str], lang: Language) -> str:
    """Three of them at most."""
    return comma(lang).join([*names[:3], *(["…"] if len(names) > 3 else [])])


def _near(choice: Choice, rival: Trial, lang: Language) -> list[str]:
    """What the error of measurement leaves open, and what decided among the equally fast."""
    assert choice.trial is not None
    steps = "train.max_steps" if rival.trained else "measure.steps"
    sentences = [say(lang, "near", trial=rival.name, speed=rival.speed or 0.0, steps=steps)]
    others = [trial for trial in choice.tied if (trial.speed or 0.0) > (choice.trial.speed or 0.0)]
    if others:
        fewer = any(skipped(trial) > skipped(choice.trial) for trial in others)
        sentences.append(say(lang, "tie of skipped" if fewer else "tie", count=len(choice.tied)))
    return sentences


def _lowest_loss(choice: Choice, swept: Sequence[str], lang: Language) -> list[str]:
    """Speed has decided, and some of what was swept is about the loss."""
    keys = [key for key in swept if speedless(key)]
    losses = [(trial.loss, trial.name) for trial in choice.compared if trial.trained and trial.loss is not None]
    if not keys or len(losses) < 2:
        return []
    loss, name = min(losses)
    return [say(lang, "lowest loss", keys=comma(lang).join(keys), loss=loss, trial=name)]


def _otherwise(chosen: Trial, compared: Sequence[Trial], lang: Language) -> list[str]:
    """Trials of the comparison that were measured by other settings, as in an earlier session."""
    mine = how_measured(chosen.values)
    others = [other for trial in compared if (other := how_measured(trial.values)) != mine]
    if not others:
        return []
    keys = sorted({key for other in others for key in {*mine, *other} if mine.get(key) != other.get(key)})
    return [say(lang, "otherwise", count=len(others), keys=comma(lang).join(keys))]


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
        reason = one_line(str(bad.result.reason).strip().partition("\n")[0])
        state = state_name(lang, bad.state.value)
        return [say(lang, "nothing complete"), say(lang, "next reason", trial=bad.name, state=state, reason=reason)]
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
