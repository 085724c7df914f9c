"""What ``task=measure`` makes of a configuration: fewer steps, over samples of its own, and nothing is saved."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from glmexp.config.choices import Init, MeasureSamples, Source, Task
from glmexp.config.schema import Config

STEPS_ARE_ITS_OWN = ("train.max_steps", "train.epochs")
SAVES_NOTHING = ("train.save_weights", "train.resume", "train.stop_after", "checkpoint.")


def initialisation(config: Config) -> Init:
    """Where the weights come from: ``model.init``; for null pretrained, or random to measure a model that is no folder here."""
    if config.model.init is not None:
        return config.model.init
    local = PurePath(config.model.path).is_absolute()  # composing has made the path of a folder absolute
    return Init.random if config.task is Task.measure and not local else Init.pretrained


def random_tokens(config: Config) -> bool:
    """Whether the samples are random tokens, so that neither a data file nor a tokenizer is read."""
    measured = config.task is Task.measure and config.measure.samples is MeasureSamples.synthetic
    return measured or config.data.source is Source.synthetic


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    longest = config.task is Task.measure and config.measure.samples is MeasureSamples.longest
    if longest and config.data.source is Source.synthetic:
        yield "measure.samples=longest needs real samples, and data=synthetic has none; use data=instruct data.path=..."


def without_effect(config: Config, sources: Mapping[str, str]) -> Iterator[str]:
    """What was set on the command line and has no effect on the task, one line each."""
    asked = [key for key, source in sources.items() if _field_on_command_line(key, source)]
    if config.task is Task.train:
        yield from (f"{key} has no effect on train; the verb measure takes it" for key in asked if key.startswith("measure."))
    if config.task is not Task.measure:
        return
    for key in asked:
        if key in STEPS_ARE_ITS_OWN:
            steps = config.measure
            yield (
                f"{key} has no effect on measure, which runs measure.warmup_steps={steps.warmup_steps} and "
                f"measure.steps={steps.steps}"
            )
        elif key.startswith(SAVES_NOTHING):
            yield f"{key} has no effect on measure, which saves nothing and begins afresh"
        elif key.startswith(("eval.", "data.eval_")):
            yield f"{key} has no effect on measure, which evaluates nothing"
        elif key == "data.group_by_length":
            yield f"{key} has no effect on measure, whose samples come by their length, the longest first"
        elif key.startswith("data.") and key != "data.max_length" and random_tokens(config):
            yield f"{key} has no effect with measure.samples=synthetic; measure.samples=longest reads the samples of the file"


def _field_on_command_line(key: str, source: str) -> bool:
    """Whether a field was set by itself; the option of a group sets all of its fields."""
    kind, _, written = source.partition(": ")
    return kind == "command line" and written.lstrip("+").startswith(f"{key.split('.')[0]}.")
