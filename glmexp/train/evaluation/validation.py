"""Evaluations during a run: when they are made, which was the best, and when there is no use in going on."""

import logging
import math
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from transformers import PreTrainedTokenizerBase

from glmexp.config.checkpoint import LOSSES
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.data import Samples
from glmexp.models import load_tokenizer, locate
from glmexp.train.evaluation.evaluator import Evaluation, EvaluationsFile, Evaluator
from glmexp.train.requests import EndRequests
from glmexp.trial.record import Phase, RankWriter

LOGGER = logging.getLogger(__name__)


class Best:
    """The best value of one score so far, and how many evaluations have not bettered it since."""

    def __init__(self, score: str) -> None:
        self.score = score
        self.step = 0
        """Of the best evaluation; 0 before the first."""
        self.value = math.inf if self.lower else -math.inf
        self.waited = 0

    @property
    def lower(self) -> bool:
        """Whether a lower value is the better one."""
        return self.score in LOSSES

    def take(self, step: int, value: float | None) -> bool:
        """Whether this evaluation is better than all before it; a value that is no number never is."""
        better = value is not None and (value < self.value if self.lower else value > self.value)
        if better:
            assert value is not None
            self.step, self.value, self.waited = step, value, 0
        else:
            self.waited += 1
        return better


def validation_of(
    engine: DeepSpeedEngine,
    tokenizer: PreTrainedTokenizerBase | None,
    config: Config,
    steps: int,
    resumed: int,
    folder: Path,
    writer: RankWriter,
    requests: EndRequests,
) -> "Validation | None":
    """The evaluations of a run; None without validation samples. A rank that has not tokenised reads the tokenizer here."""
    samples = Samples.open(folder, "validation")
    if samples is None:
        return None
    generating = config.eval.generate
    if generating and tokenizer is None:
        tokenizer = load_tokenizer(locate(config.model), config.model.template)
    micro = engine.train_micro_batch_size_per_gpu()
    if sequence_parallel_size(config) == 1:
        micro = config.eval.micro or micro
    evaluator = Evaluator(engine.module, tokenizer, samples, config, micro, engine.device, folder, generating, requests)
    return Validation(evaluator, config, steps, resumed, folder, writer)


class Validation:
    """Evaluates a run as it goes on; all ranks call each method together.

    What was the best survives in ``evaluations.jsonl``: a run that goes on in its folder reads it again, up to its checkpoint.

    Args:
        steps: the last optimizer step of the run.
        resumed: the step that the run goes on from; 0 for a fresh start.
    """

    def __init__(
        self, evaluator: Evaluator, config: Config, steps: int, resumed: int, folder: Path, writer: RankWriter
    ) -> None:
        self.evaluator = evaluator
        self.config = config
        self.steps = steps
        self.writer = writer
        self.file = EvaluationsFile(folder, dist.get_rank(), resumed)
        self.best = Best(config.checkpoint.best) if config.checkpoint.best else None
        self.last: Evaluation | None = None
        told: list[Any] = [self.file.rows]
        dist.broadcast_object_list(told, src=0)
        rows: list[dict[str, Any]] = told[0]
        self.known = {row["step"] for row in rows}
        if self.best is not None:
            for row in rows:
                self.best.take(row["step"], row.get(self.best.score))

    def due(self, step: int, ending: bool) -> bool:
        """Whether the weights after ``step`` are to be evaluated; ``ending``, because the run ends with it."""
        every = self.config.eval.every
        return ending or step == self.steps or (every is not None and step % every == 0)

    def owes(self, step: int) -> bool:
        """Whether ``step``, which the run goes on from, was to be evaluated and has not been."""
        return self.due(step, ending=False) and step not in self.known

    def evaluate(self, step: int) -> bool:
        """Evaluates and records; whether this is the best so far by ``checkpoint.best``.

        Raises:
            EndedOnRequestError: a rank was asked to end meanwhile; nothing is recorded.
        """
        total = self.steps
        self.last = self.evaluator.evaluate(
            step, lambda share: self.writer.progress(Phase.training, step, total, evaluating=100 * share)
        )
        self.file.append(self.last)
        LOGGER.info("step %d: validation %s (%d samples, %.3g s)", step, self.last, self.last.samples, self.last.seconds)
        if self.best is None:
            return False
        value = self.last.figures.get(self.best.score)
        return self.best.take(step, value)

    def in_vain(self) -> str | None:
        """Why the run should end now: ``eval.patience`` is used up; None while it is not."""
        patience = self.config.eval.patience
        if patience is None or self.best is None or self.best.waited < patience:
            return None
        return (
            f"ended early: {self.best.score} was not bettered in {self.best.waited} evaluations (eval.patience), "
            f"the best is {self.best.value:.4g} after step {self.best.step}"
        )

    def metrics(self) -> dict[str, float | None]:
        """The last evaluation's part of ``result.json``."""
        return self.last.metrics() if self.last else {}
