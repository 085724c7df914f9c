"""All that a report says, worked out once for the files that say it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmexp.config.choices import Language, MeasureSamples, Task
from glmexp.sweep.report.answer import Answer, answer
from glmexp.sweep.report.decision import Axis, Front, decide, is_ruined, pareto, speedless
from glmexp.sweep.report.effects import Effect, effects
from glmexp.sweep.report.trials import Settings, Trial, read_trials
from glmexp.trial.record import CONFIG


@dataclass(frozen=True)
class Content:
    name: str
    """The sweep's."""
    lang: Language
    trials: Sequence[Trial]
    """In the order in which they were started."""
    swept: Sequence[str]
    """Keys of overrides whose values differ between the trials."""
    losses: bool
    """Some trial saw real samples, so that losses mean something."""
    recommended: Trial | None
    limit_gib: float | None
    """What the recommendation must fit; None on the host's axis too."""
    left_out: Sequence[Trial]
    """Complete trials that were not compared: beyond the limit, or ruined."""
    axis: Axis
    front: Front
    effects: Sequence[Effect]
    answer: Answer

    @property
    def ranked(self) -> list[Trial]:
        """The complete trials by falling speed, then the rest as they were started."""
        return sorted(self.trials, key=lambda trial: -(trial.speed or 0.0) if trial.complete else 1.0)


def gather(folder: Path, settings: Settings) -> Content:
    """Reads a sweep folder and decides."""
    trials = read_trials(folder)
    choice = decide(trials.ended, settings, trials.swept)
    sound = [trial for trial in trials.ended if trial in choice.compared or not is_ruined(trial)]
    # How it was measured is no knob, and a speed that differs by the learning rate is noise.
    knobs = [key for key in trials.swept if not key.startswith("measure.") and not speedless(key)]
    return Content(
        name=folder.resolve().name,
        lang=settings.lang,
        trials=trials.ended,
        swept=trials.swept,
        losses=any(_real_samples(folder / trial.name) for trial in trials.ended if trial.loss is not None),
        recommended=choice.trial,
        limit_gib=settings.gpu_memory_gib if choice.axis == "gpu" else None,
        left_out=[trial for trial in trials.ended if trial.complete and trial not in choice.compared],
        axis=choice.axis,
        front=pareto(sound, choice.axis),
        effects=[effect for effect in effects(trials.ended, trials.swept, choice.axis) if effect.key in knobs],
        answer=answer(trials, choice, settings),
    )


def _real_samples(folder: Path) -> bool:
    """Whether a trial trained, or measured with the samples themselves in place of random tokens."""
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return re.search(rf"(?m)^task: {Task.train.value}$|^  samples: {MeasureSamples.longest.value}$", text) is not None
