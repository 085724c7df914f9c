"""All that a report says, worked out once for the files that say it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmexp.config.choices import Language, Task
from glmexp.sweep.report.answer import Answer, answer
from glmexp.sweep.report.decision import Axis, Front, decide, pareto
from glmexp.sweep.report.effects import Effect, effects
from glmexp.sweep.report.trials import Settings, Trial, Trials, read_trials
from glmexp.trial.record import CONFIG


@dataclass(frozen=True)
class Content:
    name: str
    """The sweep's."""
    lang: Language
    trials: Sequence[Trial]
    swept: Sequence[str]
    """Keys of overrides whose values differ between the trials."""
    trained: bool
    """The trials have trained, so that their losses mean something."""
    recommended: Trial | None
    axis: Axis
    front: Front
    effects: Sequence[Effect]
    answer: Answer


def gather(folder: Path, settings: Settings) -> Content:
    """Reads a sweep folder and decides."""
    trials = read_trials(folder)
    choice = decide(trials.ended, settings)
    return Content(
        name=folder.resolve().name,
        lang=settings.lang,
        trials=trials.ended,
        swept=trials.swept,
        trained=_trained(trials, folder),
        recommended=choice.trial,
        axis=choice.axis,
        front=pareto(trials.ended, choice.axis),
        effects=effects(trials.ended, trials.swept, choice.axis),
        answer=answer(trials, choice, settings),
    )


def _trained(trials: Trials, folder: Path) -> bool:
    """All trials of a sweep have one task; the first configuration that is there tells it."""
    for trial in trials.ended:
        try:
            text = (folder / trial.name / CONFIG).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        return re.search(rf"(?m)^task: {Task.train.value}$", text) is not None
    return False
