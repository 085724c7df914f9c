"""How good the model is on the validation samples: loss and perplexity, and scores of the answers that it gives itself."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.data import Samples, collate
from glmexp.train.device import DTYPES, all_reduced
from glmexp.train.evaluation import scores
from glmexp.train.evaluation.generate import generate
from glmexp.train.failure import EndedOnRequestError
from glmexp.train.loss import IGNORED, loss_sum, target_count
from glmexp.train.metrics.figures import finite
from glmexp.train.requests import EndRequests
from glmexp.train.sequence_parallel import part_of
from glmexp.trial.record import EVALUATIONS, PREDICTIONS

LOGGER = logging.getLogger(__name__)

Told = Callable[[float], None]
"""Takes the share of an evaluation that is done, from 0 to 1."""


@dataclass(frozen=True)
class Evaluation:
    """A line of ``evaluations.jsonl``, the same on every rank."""

    step: int
    """Optimizer steps behind the weights."""
    loss: float
    """Mean cross entropy over the target tokens of all samples, in nats."""
    scores: dict[str, float]
    """Means over the samples by ``scores.NAMES``; empty where nothing was generated."""
    samples: int
    seconds: float

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is beyond a float."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def figures(self) -> dict[str, float]:
        """Name -> value of everything by which evaluations can be compared."""
        return {"loss": self.loss, "perplexity": self.perplexity, **self.scores}

    def row(self) -> dict[str, Any]:
        """What is written: a score that was not asked for, infinity and NaN are null."""
        figures = {**dict.fromkeys(scores.NAMES), **self.figures}
        names = ("loss", "perplexity", *scores.NAMES)
        values = {name: finite(figures[name]) for name in names}
        return {"step": self.step, **values, "samples": self.samples, "seconds": round(self.seconds, 3)}

    def metrics(self) -> dict[str, float | None]:
        """Its part of ``result.json``'s metrics: ``eval_loss``, ``eval_rouge-l`` …"""
        return {f"eval_{name}": finite(value) for name, value in self.figures.items()}

    def __str__(self) -> str:
        forms = {"loss": "loss {:.4f}", "perplexity": "perplexity {:.4g}"}
        return ", ".join(forms.get(name, f"{name} {{:.4g}}").format(value) for name, value in self.figures.items())


class Evaluator:
    """Evaluates one model on one set of samples; all ranks call ``evaluate`` together.

    Groups of ranks that share each sample take turns at the samples, sorted by length. Where the samples do not divide, a rank
    that has none left repeats one that does not count: at ZeRO stage 3 every forward pass takes all ranks. torch's generators
    are not drawn from, so that training goes on as if nothing had been evaluated.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        samples: Samples,
        config: Config,
        micro: int,
        device: torch.device,
        folder: Path,
        generating: bool,
        requests: EndRequests | None = None,
    ) -> None:
        """``micro``: samples a forward pass and rank. ``generating``: let the model answer, too; needs ``tokenizer``.

        ``requests``: what may ask the run to end meanwhile.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.samples = samples
        self.config = config
        self.micro = micro
        self.device = device
        self.folder = folder
        self.generating = generating
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()
        self.sharing = sequence_parallel_size(config)
        self.requests = requests or EndRequests(wanted=False)

    def evaluate(self, step: int, told: Told = lambda share: None) -> Evaluation:
        """Evaluates the weights after ``step`` optimizer steps; rank 0 writes the answers to ``predictions.jsonl``.

        Raises:
            EndedOnRequestError: a rank was asked to end meanwhile; on all ranks.
        """
        started = time.perf_counter()
        half = 0.5 if self.generating else 1.0
        with self.evaluating():
            loss = self.loss(lambda share: told(half * share))
            answers = self.answers(lambda share: told(half + half * share)) if self.generating else []
        if answers and self.rank == 0:
            write_predictions(answers, self.folder / PREDICTIONS)
        means = scores.mean([answer["scores"] for answer in answers]) if answers else {}
        # One clock for all ranks, which compare what they got.
        seconds = all_reduced([time.perf_counter() - started], self.device, dist.ReduceOp.MAX)[0]
        return Evaluation(step, loss, means, len(self.samples), seconds)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, no gradients, and the arithmetic of training."""
        mixed = self.config.precision.autocast_dtype
        training = self.model.training
        self.model.eval()
        try:
            with (
                torch.no_grad(),
                torch.autocast(self.device.type, DTYPES[mixed] if mixed else torch.bfloat16, enabled=mixed is not None),
            ):
                yield
        finally:
            self.model.train(training)

    def loss(self, told: Told) -> float:
        """Mean cross entropy over the target tokens of all samples, whatever the ranks and the batches."""
        lengths = [len(self.samples.sample(index)[0]) for index in range(len(self.samples))]
        group, place = divmod(self.rank, self.sharing)
        total, targets = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for chosen, counts, share in self.shares(lengths, self.world_size // self.sharing, group):
            rows = [self.samples.sample(index) for index in chosen] if counts else []
            # DeepSpeed's attention that is shared by ranks takes batches of one size alone.
            missing = (self.micro if self.sharing > 1 else 1) - len(rows)
            ids, labels = self.samples.sample(chosen[0])
            rows += [(ids, np.full_like(labels, IGNORED))] * missing
            part = part_of(collate(rows, pad_id=0), self.sharing, place)
            targets += target_count(part.targets)
            part = part.to(self.device)
            total += loss_sum(self.model(**part.inputs(), use_cache=False).logits, part.targets)
            told(share)
        summed, count = all_reduced([float(total), float(targets)], self.device)
        return summed / count

    def answers(self, told: Told) -> list[dict[str, Any]]:
        """Question, reference, answer and its scores for each sample in order, on every rank."""
        assert self.tokenizer is not None
        settings = self.config.eval
        prompts = [self.samples.question(index) for index in range(len(self.samples))]
        synced = self.config.zero.stage == 3 and self.world_size > 1
        mine: list[dict[str, Any]] = []
        for chosen, counts, share in self.shares([len(prompt.ids) for prompt in prompts], self.world_size, self.rank):
            if not counts and not synced:
                continue
            texts = generate(
                self.model,
                self.tokenizer,
                [prompts[index].ids for index in chosen],
                max_new_tokens=settings.max_new_tokens,
                temperature=settings.temperature,
                top_p=settings.top_p,
                seed=settings.seed,
                synced=synced,
                numbers=chosen,
                device=self.device,
            )
            for index, text in zip(chosen, texts, strict=True):
                if counts:
                    asked, reference = prompts[index].question, prompts[index].reference
                    rated = scores.score(settings.metrics, text, reference)
                    mine.append(
                        {"index": index, "question": asked, "reference": reference, "prediction": text, "scores": rated}
                    )
            told(share)
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, mine)
        return sorted((answer for part in gathered for answer in part), key=lambda answer: int(answer["index"]))

    def shares(self, lengths: Sequence[int], groups: int, group: int) -> Iterator[tuple[list[int], bool, float]]:
        """For each forward pass: this group's samples, whether they count, and the share that is done after it.

        The longest come first, so that a lack of memory shows at once and samples of like length share a batch.

        Raises:
            EndedOnRequestError: a rank was asked to end; on all ranks.
        """
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        together = groups * self.micro
        for start in range(0, len(order), together):
            if self.asked_to_end(agreed=self.in_step):
                break
            block = order[start : start + together]
            mine = block[group * self.micro : (group + 1) * self.micro]
            yield mine or block[:1], bool(mine), min(1.0, (start + together) / len(order))
        if self.asked_to_end(agreed=True):
            raise EndedOnRequestError("an evaluation was broken off")

    @property
    def in_step(self) -> bool:
        """Whether a forward pass takes all ranks."""
        return self.world_size > 1 and (self.config.zero.stage == 3 or self.sharing > 1)

    def asked_to_end(self, agreed: bool) -> bool:
        """Whether this rank was asked to end; ``agreed``, whether any was, which all ranks ask together."""
        asked = self.requests.received is not None
        if not self.requests.wanted or not agreed:
            return asked
        return bool(all_reduced([float(asked)], self.device, dist.ReduceOp.MAX)[0])


class EvaluationsFile:
    """``evaluations.jsonl``; ranks other than 0 neither read nor write it.

    Args:
        after: rows of later steps are removed: they are those of a run that goes on from step ``after``.
    """

    def __init__(self, folder: Path, rank: int, after: int = 0) -> None:
        self.path = folder / EVALUATIONS
        self.writes = rank == 0
        self.waiting = ""
        self.rows: list[dict[str, Any]] = []
        """The rows that were there and stay."""
        if self.writes and self.path.exists():
            read = (_row(line) for line in self.path.read_text(encoding="utf-8").splitlines())
            self.rows = [row for row in read if row is not None and row["step"] <= after]
            _replace(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def append(self, evaluation: Evaluation) -> None:
        """One whole line at once; what a full disk has no room for is written with the next."""
        if not self.writes:
            return
        self.waiting += json.dumps(evaluation.row()) + "\n"
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(self.waiting)
            self.waiting = ""
        except OSError as error:
            LOGGER.warning("%s: %s; the evaluation waits", self.path.name, error.strerror)
            if self.path.exists():
                os.truncate(self.path, before)


def _row(line: str) -> dict[str, Any] | None:
    """One row; None for one that was left half written."""
    try:
        row = json.loads(line)
        return row if isinstance(row["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def write_predictions(answers: Sequence[dict[str, Any]], path: Path) -> None:
    """A line a sample: question, reference, prediction and its scores; the file is replaced as a whole.

    Where that is not possible, as on a full disk, the earlier one stays, with a warning: the scores of the answers are known.
    """
    rows = ({name: answer[name] for name in ("question", "reference", "prediction")} | answer["scores"] for answer in answers)
    try:
        _replace(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    except OSError as error:
        LOGGER.warning("%s: %s; the answers are not kept", path.name, error.strerror)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
