"""A verb's child with torch: it reads a config and a request, answers on its streams and records how it ended."""

import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from glmexp.config import load
from glmexp.config.choices import Device
from glmexp.config.errors import USER_ERROR, UserError
from glmexp.config.schema import Config
from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import CONFIG, REQUEST, RankWriter, State

TOGETHER_SECONDS = 0.3
"""Two SIGINT within this are one."""
Work = Callable[[Config, dict[str, Any], TextIO], None]
"""What a verb does: with the config, the request, and the stream for its answer."""


def answer(folder: Path, work: Work) -> int:
    """Lets ``work`` answer on standard output, where nothing else is written; returns the exit code.

    What libraries print goes to standard error. A user's error is left in ``rank0.json`` for the parent to tell.
    """
    die_with_parent()
    _take_interrupts()
    writer = RankWriter(folder, 0)
    _quieten()
    if isinstance(sys.__stdout__, TextIOWrapper):
        sys.__stdout__.reconfigure(errors="backslashreplace")  # Chinese on an ASCII terminal
    try:
        with contextlib.redirect_stdout(sys.stderr):
            request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
            work(load(folder / CONFIG), request, sys.__stdout__ or sys.stderr)
    except BrokenPipeError:  # as with `predict ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt:
        writer.finish(State.interrupted)
        return 1
    except UserError as error:
        writer.finish(State.invalid, str(error))
        return USER_ERROR
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        writer.finish(State.failed, _in_words(error))
        return 1
    writer.finish(State.complete)
    return 0


def _take_interrupts() -> None:
    """SIGINT as KeyboardInterrupt, once: Ctrl-C at a terminal comes from there and, handed on, from the parent."""
    taken = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal taken
        again, taken = time.monotonic() - taken < TOGETHER_SECONDS, time.monotonic()
        if not again:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())[:400]
    if type(error).__name__ == "OutOfMemoryError" or "out of memory" in text:
        return f"out of GPU memory: {text}\nlaunch.device=cpu uses the host's memory"
    return f"{type(error).__name__}: {text}\nHYDRA_FULL_ERROR=1 shows the traceback"


def _quieten() -> None:
    """Errors alone on standard error, besides what the verb says itself."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    warnings.simplefilter("ignore")


def device(wanted: Device) -> Any:
    """The device that a verb works on; DeepSpeed, if it is imported at all, will agree. UserError without the GPU asked for."""
    import torch
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if wanted is not Device.cpu and torch.cuda.is_available():
        return torch.device("cuda")
    if wanted is Device.gpu:
        raise UserError(f"launch.device=gpu: PyTorch {torch.__version__} cannot use a GPU here\nset launch.device=cpu")
    os.environ["DS_ACCELERATOR"] = "cpu"
    return torch.device("cpu")


def note(line: str) -> None:
    """One line for the person at the terminal, beside the answer."""
    with contextlib.suppress(OSError):
        print(f"note: {line}", file=sys.stderr, flush=True)
