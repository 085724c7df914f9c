"""What the task asks of a rank, in the words of the rest of the worker, which knows configurations but no task."""

from dataclasses import replace

from glmexp.config.choices import Source, Task
from glmexp.config.measure import initialisation, random_tokens
from glmexp.config.schema import Config


def for_task(config: Config) -> Config:
    """``config`` with what it leaves to the task filled in.

    ``measure`` is a run of ``measure.warmup_steps`` and ``measure.steps`` that saves nothing.
    """
    config = replace(config, model=replace(config.model, init=initialisation(config)))
    if config.task is not Task.measure:
        return config
    data = replace(config.data, eval_path=None, eval_share=None, eval_split=None, eval_limit=None)
    if random_tokens(config):
        data = replace(data, source=Source.synthetic, path=None, limit=None, packing=False, group_by_length=False)
    steps = config.measure.warmup_steps + config.measure.steps
    train = replace(config.train, max_steps=steps, save_weights=False, resume=None, stop_after=None)
    return replace(config, data=data, train=train, checkpoint=replace(config.checkpoint, every=None, best=None))
