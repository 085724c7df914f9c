"""What is done between two optimizer steps, where all ranks stand at the same place: saving, and ending early."""

import logging
import signal

from deepspeed import DeepSpeedEngine

from glmexp.config.schema import Config
from glmexp.train.checkpoint import Checkpoints
from glmexp.train.failure import EndedOnRequestError
from glmexp.train.requests import EndRequests
from glmexp.train.skips import Skips
from glmexp.trial.record import RankWriter

LOGGER = logging.getLogger(__name__)


class Pause:
    """Called by the loop after each optimizer step of a training run."""

    def __init__(
        self, engine: DeepSpeedEngine, config: Config, checkpoints: Checkpoints, requests: EndRequests, writer: RankWriter
    ) -> None:
        self.engine = engine
        self.config = config
        self.checkpoints = checkpoints
        self.requests = requests
        self.writer = writer

    def after(self, step: int, skips: Skips, asked: bool) -> bool:
        """Whether the run ends with this step, before its last.

        Args:
            asked: whether a rank was asked to end; every rank is told the same.

        Raises:
            EndedOnRequestError: it was, and what can be saved has been.
        """
        every, stop = self.config.checkpoint.every, self.config.train.stop_after == step
        if (every is not None and step % every == 0) or stop or asked:
            self.checkpoints.save(self.engine, step, skips)
        if asked:
            raise EndedOnRequestError(self.farewell())
        if stop and step < self.checkpoints.steps:
            last = self.checkpoints.steps
            line = f"ended after step {step} of {last} (train.stop_after); train.resume=auto goes on from there"
            LOGGER.info("%s", line)
            self.writer.note(line)
        return stop

    def farewell(self) -> str:
        """Why the run ends, and how it goes on."""
        number = self.requests.received
        cause = f"ended by {signal.Signals(number).name}" if number else "ended on request of another rank"
        newest = self.checkpoints.newest
        if newest is None:
            return f"{cause}; no checkpoint could be saved"
        return f"{cause}; saved checkpoint {newest}; the same command with train.resume=auto goes on"
