"""What is done between two optimizer steps, where all ranks stand at the same place: evaluating, saving, ending early."""

import logging
import signal

from deepspeed import DeepSpeedEngine

from glmexp.config.schema import Config
from glmexp.train.checkpoint.checkpoints import Checkpoints
from glmexp.train.evaluation.validation import Validation
from glmexp.train.failure import EVALUATION, SAVING, EndedOnRequestError, Where
from glmexp.train.requests import EndRequests
from glmexp.train.skips import Skips
from glmexp.trial import saved
from glmexp.trial.record import RankWriter

LOGGER = logging.getLogger(__name__)


class Pause:
    """Called by the loop after each optimizer step of a training run."""

    def __init__(
        self,
        engine: DeepSpeedEngine,
        config: Config,
        checkpoints: Checkpoints,
        requests: EndRequests,
        writer: RankWriter,
        where: Where,
        validation: Validation | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        self.checkpoints = checkpoints
        self.requests = requests
        self.writer = writer
        self.where = where
        self.validation = validation

    def after(self, step: int, skips: Skips, asked: bool) -> bool:
        """Whether the run ends with this step, before its last.

        Args:
            asked: whether a rank was asked to end; every rank is told the same.

        Raises:
            EndedOnRequestError: it was, and what can be saved has been.
        """
        every, stop = self.config.checkpoint.every, self.config.train.stop_after == step
        # First, since an evaluation takes its time: what ends the run meanwhile takes no step along.
        if (every is not None and step % every == 0) or stop or asked:
            self.save(step, skips)
        if asked:
            raise EndedOnRequestError(self.farewell(step))
        early = False
        if self.validation is not None and self.validation.due(step, ending=stop):
            early = self.evaluate(self.validation, step, skips)
        if stop and step < self.checkpoints.steps:
            last = self.checkpoints.steps
            line = f"ended after step {step} of {last} (train.stop_after)"
            LOGGER.info("%s", line)
            self.writer.note(line)
        return stop or early

    def begin(self, step: int, skips: Skips) -> bool:
        """Before a run goes on from ``step``: what was due there and a signal, or a kill, left no time for.

        Whether the run is at its end by that.
        """
        if self.validation is None:
            return False
        if self.validation.owes(step):
            return self.evaluate(self.validation, step, skips)
        if self.validation.best is not None and self.validation.best.step == step:
            self.checkpoints.keep_best(self.engine, step, skips, self.validation.best.value)
        return self.ends_early(self.validation, step)

    def save(self, step: int, skips: Skips) -> None:
        """Saves a checkpoint, if that of ``step`` is not there yet."""
        if self.checkpoints.newest != saved.tag(step):
            self.where.activity = SAVING
            self.checkpoints.save(self.engine, step, skips)

    def evaluate(self, validation: Validation, step: int, skips: Skips) -> bool:
        """Evaluates, keeps the weights if they are the best so far, and tells whether the run ends because they no longer get
        better.

        Raises:
            EndedOnRequestError: as ``after``; the evaluation is left to the session that goes on.
        """
        self.where.activity = EVALUATION
        try:
            best = validation.evaluate(step)
        except EndedOnRequestError:
            self.save(step, skips)
            raise EndedOnRequestError(self.farewell(step)) from None
        if best and validation.best is not None:
            self.where.activity = SAVING
            self.checkpoints.keep_best(self.engine, step, skips, validation.best.value)
        return self.ends_early(validation, step)

    def ends_early(self, validation: Validation, step: int) -> bool:
        """Whether the run ends with ``step`` by ``eval.patience``, which is then told."""
        reason = validation.in_vain() if step < self.checkpoints.steps else None
        if reason is not None:
            LOGGER.info("%s", reason)
            self.writer.record.early = reason
        return reason is not None

    def metrics(self) -> dict[str, float | None]:
        """The part of the evaluations in ``result.json``."""
        return self.validation.metrics() if self.validation else {}

    def farewell(self, step: int) -> str:
        """Why the run ends, and what it leaves; how it goes on is the parent's to say, who knows how it was started."""
        number = self.writer.record.signal = self.requests.received
        cause = f"ended by {signal.Signals(number).name}" if number else "ended on request of another rank"
        newest = self.checkpoints.newest
        if newest == saved.tag(step):
            return f"{cause}; saved checkpoint {newest}"
        stands = f", and {newest} is the newest" if newest else ""
        return f"{cause}; no checkpoint could be saved{stands}"
