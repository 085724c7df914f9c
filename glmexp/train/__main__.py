"""One rank: ``python -m glmexp.train FOLDER``, with a launcher's variables in the environment or by hand as a run of its own.

FOLDER holds ``config.yaml`` and ``ds_config.json``. Exit code 0 if the run is complete and 1 otherwise; how it ended is in
``rank<N>.json``.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.train import failure, logs
from glmexp.train.ranks import Ranks, from_environment
from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import CONFIG, RankWriter, State

LOGGER = logging.getLogger("glmexp.train")


Work = Callable[[Path, Config, Ranks, RankWriter, failure.Where], dict[str, Any]]
"""What a rank does in its folder; returns the figures for ``result.json``."""


def train(folder: Path, config: Config, ranks: Ranks, writer: RankWriter, where: failure.Where) -> dict[str, Any]:
    """Trains or measures."""
    from glmexp.train.run import Run

    return Run(folder, config, ranks, writer, where).execute()


def main(arguments: list[str], work: Work = train) -> NoReturn:
    """Runs one rank to its end."""
    die_with_parent()
    # Whatever loads a file of tensors here loads nothing else; a parent has said so already.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    if len(arguments) != 1:
        sys.exit("usage: python -m glmexp.train FOLDER")
    folder = Path(arguments[0])
    if not folder.is_dir():
        sys.exit(f"{folder.absolute()} is not a folder")
    ranks = from_environment()
    logs.configure(ranks.rank)
    writer = RankWriter(folder, ranks.rank)
    leave(0 if run(folder, ranks, writer, work) else 1)


def run(folder: Path, ranks: Ranks, writer: RankWriter, work: Work = train) -> bool:
    """Does the work and records the outcome, whatever it is; whether it is complete."""
    where = failure.Where(world_size=ranks.world_size)
    config: Config | None = None
    try:
        from glmexp.config import load

        config = load(folder / CONFIG)
        metrics = work(folder, config, ranks, writer, where)
    except failure.PeerEndedError as error:
        LOGGER.warning("stopped: %s", error)
        return False
    except BaseException as error:
        record_failure(error, config, where, writer)
        return False
    writer.finish(State.complete, metrics=metrics if ranks.rank == 0 else None)
    return True


def record_failure(error: BaseException, config: Config | None, where: failure.Where, writer: RankWriter) -> None:
    """The outcome into the record, the traceback into the log."""
    where.note_peak()
    state, message = failure.describe(error, config, where)
    writer.finish(state, message)
    if not isinstance(error, UserError | failure.DivergedError | failure.EndedOnRequestError):
        LOGGER.error("%s", "".join(traceback.format_exception(error)).rstrip())
    LOGGER.error("%s: %s", state.value, message)


def leave(code: int) -> NoReturn:
    """Ends the process at once: tearing down NCCL or gloo can hang while a peer sits in a collective."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
