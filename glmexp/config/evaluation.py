"""Rules of ``eval``; those of the best checkpoint and of ``eval.patience`` are in ``checkpoint``."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from glmexp.config.checkpoint import validates
from glmexp.config.choices import Source, Task
from glmexp.config.data_schema import DataConfig
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size

OF_GENERATION = ("eval.metrics", "eval.max_new_tokens", "eval.temperature", "eval.top_p", "eval.seed")
"""What a run without ``eval.generate`` leaves to ``evaluate`` and ``predict``."""

LATER = "leave it out: the verb evaluate scores answers after the run"


def where_from(config: Config) -> str:
    """The settings that give validation samples, for messages."""
    return "data.eval_split=NAME" if config.data.source is Source.hub else "data.eval_path=FILE or data.eval_share=0.1"


def validation_alone(data: DataConfig) -> DataConfig:
    """``data`` without the samples to train on, where the validation samples are not drawn from them."""
    if data.eval_path is not None:
        return replace(data, path=data.eval_path, limit=None)
    return replace(data, split=data.eval_split) if data.eval_split is not None else data


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    asked = config.eval
    if asked.temperature == 0 and asked.top_p < 1:
        yield f"eval.top_p={asked.top_p:g} has no effect with eval.temperature=0, the likeliest token; add eval.temperature=0.9"
    if asked.micro is not None and sequence_parallel_size(config) > 1:
        yield f"eval.micro={asked.micro} has no effect with comm=ulysses, which takes batch.micro samples; leave it out"
    if asked.generate:
        if sequence_parallel_size(config) > 1:
            yield f"eval.generate=true does not go with comm=ulysses, whose ranks share each sample; {LATER}"
        if config.kernels.deepcompile:
            yield f"eval.generate=true does not go with kernels=deepcompile, which compiles the forward pass; {LATER}"
    if config.task is Task.measure or validates(config):
        return
    if asked.every is not None:
        yield f"eval.every={asked.every} has no effect without validation samples: add {where_from(config)}"
    if asked.generate:
        yield f"eval.generate=true has no effect without validation samples: add {where_from(config)}"


def warnings(config: Config, sources: Mapping[str, str]) -> Iterator[str]:
    """What was set on the command line and has no effect on the run, at most one line."""
    if config.task is Task.measure or (config.eval.generate and validates(config)):
        return
    told = [key for key in OF_GENERATION if sources.get(key, "").startswith("command line")]
    if told:
        have = "have" if len(told) > 1 else "has"
        yield f"{', '.join(told)} {have} no effect on this run without eval.generate=true; evaluate and predict go by it later"
