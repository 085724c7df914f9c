"""Rules about how samples share rows and batches (``data.packing``, ``data.group_by_length``), and which are held out."""

from collections.abc import Iterator

from glmexp.config.choices import Source, Task, Turns
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size

OF_REAL_SAMPLES = {"packing": False, "group_by_length": False, "eval_share": None, "turns": Turns.all}
"""Fields of ``data`` that random tokens, all of one length and all learnt, leave without effect -> what they are unset."""


def contradictions(config: Config) -> Iterator[str]:
    """Rules across fields, one broken rule a line."""
    data = config.data
    if data.source is Source.synthetic:
        for name, unset in OF_REAL_SAMPLES.items():
            value = getattr(data, name)
            if value != unset:
                shown = str(getattr(value, "value", value)).lower()
                yield f"data.{name}={shown} has no effect with data=synthetic, whose samples are random tokens; leave it out"
    if data.eval_limit is not None and data.eval_path is None and data.eval_split is None and data.eval_share is None:
        yield f"data.eval_limit={data.eval_limit} has no effect without validation samples: add data.eval_path or eval_share"
    if data.packing and data.group_by_length:
        yield "data.group_by_length=true has no effect with data.packing=true, whose rows are full; leave one out"
    if data.packing and sequence_parallel_size(config) > 1:
        yield "data.packing=true does not go with comm=ulysses, which drops the mask that keeps samples apart; choose one"


def warnings(config: Config) -> Iterator[str]:
    """What is likely not what was meant, one line each."""
    if config.data.group_by_length and config.batch.micro == 1 and config.task is not Task.measure:
        yield "data.group_by_length=true saves no padding with batch.micro=1, which has none; ranks only wait less"
