"""Rules of ``checkpoint``, ``train.resume`` and ``train.stop_after``, and of what decides which checkpoint is the best."""

from collections.abc import Iterator, Mapping

from glmexp.config.choices import Task
from glmexp.config.errors import UserError, nearest
from glmexp.config.offload import offload_option
from glmexp.config.schema import Config

AUTO = "auto"
LOSSES = ("loss", "perplexity")
GENERATION_SCORES = ("rouge-1", "rouge-2", "rouge-l", "bleu-4")
"""Scores of either ``eval.metrics``."""


def resume_path(config: Config) -> str | None:
    """The checkpoint's or run's folder of ``train.resume``; None for a run that starts afresh, and for ``auto``."""
    return None if config.train.resume in (None, AUTO) else config.train.resume


def resumes_itself(config: Config) -> bool:
    """Whether the run goes on with an earlier session of itself where there is one."""
    return config.task is Task.train and config.train.resume == AUTO


def saves_on_signal(config: Config) -> bool:
    """Whether a run that is asked to end saves a checkpoint first."""
    return config.task is Task.train and (config.checkpoint.every is not None or resumes_itself(config))


def validates(config: Config) -> bool:
    """Whether there are validation samples."""
    data = config.data
    return data.eval_path is not None or data.eval_share is not None or data.eval_split is not None


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    train = config.train
    if train.resume is not None and not train.resume.strip():
        yield "train.resume is empty: give a checkpoint's or a run's folder, auto, or null"
    if train.stop_after is not None and train.max_steps is not None and train.stop_after > train.max_steps:
        yield (
            f"train.stop_after={train.stop_after} is beyond train.max_steps={train.max_steps}, the last step; "
            "leave one of them out"
        )
    yield from _best(config)
    yield from _unsaved(config)
    if config.eval.patience is not None:
        if config.checkpoint.best is None:
            yield f"eval.patience={config.eval.patience} needs a score that is to get better: checkpoint.best=loss"
        if config.eval.every is None:
            yield f"eval.patience={config.eval.patience} needs several evaluations: eval.every=N"


def _unsaved(config: Config) -> Iterator[str]:
    """Offloading that keeps state where no checkpoint reaches: on NVMe, between steps, in another process or optimizer."""
    asked = {
        "checkpoint.every": config.checkpoint.every,
        "checkpoint.best": config.checkpoint.best,
        "train.stop_after": config.train.stop_after,
        "train.resume": config.train.resume,
    }
    key = next((key for key, value in asked.items() if value is not None), None)
    option = offload_option(config.offload)
    if config.task is not Task.train or key is None:
        return
    if option in ("nvme", "zenflow", "super_offload"):
        yield f"{key}={asked[key]}: the state of offload={option} cannot be saved; use offload=cpu, or leave {key} out"
    elif config.offload.ratio is not None and config.offload.ratio < 1 and option != "none":
        yield f"{key}={asked[key]}: the state of offload.ratio={config.offload.ratio:g} cannot be saved; leave one of them out"


def _best(config: Config) -> Iterator[str]:
    best = config.checkpoint.best
    if best is None:
        return
    known = (*LOSSES, *GENERATION_SCORES)
    if best not in known:
        close = nearest(best, known)
        yield f"checkpoint.best={best}: no such score{f'; did you mean {close}?' if close else ''}: {', '.join(known)}"
    elif best in GENERATION_SCORES and not config.eval.generate:
        yield f"checkpoint.best={best} is a score of generated answers, and none are generated: add eval.generate=true"
    if not validates(config):
        yield f"checkpoint.best={best} needs validation samples: data.eval_path=FILE, or data.eval_share=0.1"


def check_sources(config: Config, sources: Mapping[str, str]) -> None:
    """Raises UserError for a number of checkpoints to keep that was asked for where none are saved."""
    saved = saves_on_signal(config) or config.train.stop_after is not None or config.checkpoint.best is not None
    if config.task is Task.train and not saved and sources.get("checkpoint.keep", "").startswith("command line"):
        raise UserError(
            f"checkpoint.keep={config.checkpoint.keep} has no effect: no checkpoint is saved\n"
            "add checkpoint.every=N (optimizer steps), or leave checkpoint.keep out"
        )


def warnings(config: Config) -> Iterator[str]:
    """What is likely not what was meant, one line each."""
    if config.task is Task.check and config.train.resume == AUTO:
        yield "train.resume=auto has no effect on check: what a run goes on from is looked for when it starts"
    if resumes_itself(config) and config.checkpoint.every is None and config.train.stop_after is None:
        yield (
            "train.resume=auto without checkpoint.every: a checkpoint is saved on a signal alone, and a run that is killed "
            "begins again; add checkpoint.every=N"
        )
