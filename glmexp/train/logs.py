"""The worker's log: INFO once, from rank 0; warnings of any rank with its number; each line once."""

import logging
import sys
import warnings

LOGGER = logging.getLogger("glmexp.train")


class _LossScaleNotices(logging.Filter):
    """Drops DeepSpeed's own overflow lines: the loop tells each skipped step in one line of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "[deepspeed] OVERFLOW!" not in record.getMessage()


def configure(rank: int) -> None:
    """Sets up the root logger on stderr, which the parent collects into ``train.log``."""
    handler = logging.StreamHandler(sys.stderr)
    origin = "" if rank == 0 else f"[rank {rank}] "
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {origin}%(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("glmexp").setLevel(logging.INFO if rank == 0 else logging.WARNING)
    # PEFT imports bitsandbytes wherever it is installed, for LoRA too; 4-bit weights are used on GPUs alone.
    logging.getLogger("bitsandbytes.backends.cpu").setLevel(logging.ERROR)
    logging.captureWarnings(True)
    if rank == 0:
        for category in (FutureWarning, DeprecationWarning, PendingDeprecationWarning):
            warnings.filterwarnings("ignore", category=category)
        # LambdaLR cannot see that a ZeRO optimizer steps on behalf of the one it was built on.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
    else:
        # Python's warnings are about the code and would come from every rank alike.
        warnings.simplefilter("ignore")


def join_libraries(rank: int) -> None:
    """Lets DeepSpeed and transformers log through the root handler; call once both are imported.

    Both install a handler of their own, which would print each line in a second format.
    """
    from deepspeed.utils import logger as deepspeed_logger
    from transformers.utils import logging as transformers_logging

    deepspeed_logger.handlers[:] = []
    deepspeed_logger.propagate = True
    deepspeed_logger.setLevel(logging.WARNING if rank == 0 else logging.ERROR)
    deepspeed_logger.addFilter(_LossScaleNotices())
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(logging.WARNING if rank == 0 else logging.ERROR)
