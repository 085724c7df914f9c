"""The training loop: batch, forward, backward, step, measure."""

import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from glmexp.config.choices import Task
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.data import Batch
from glmexp.train.device import all_reduced, synchronize
from glmexp.train.engine import gradient_norm, loss_scale, zero_stage
from glmexp.train.failure import Where
from glmexp.train.loss import loss_sum, target_count
from glmexp.train.metrics.clock import Activity, StepClock
from glmexp.train.metrics.figures import MetricsFile, StepFigures, finite, peak_allocated_gib, reset_peak
from glmexp.train.metrics.flops import model_flops
from glmexp.train.metrics.peaks import peak_tflops
from glmexp.train.pause import Pause
from glmexp.train.requests import EndRequests
from glmexp.train.sequence_parallel import Part, part_of
from glmexp.train.skips import Skips
from glmexp.trial.record import Phase, RankWriter

LOGGER = logging.getLogger(__name__)

FLOOR_REACHED = "Current loss scale already at minimum"
"""Beginning of what DeepSpeed's DynamicLossScaler raises (deepspeed/runtime/fp16/loss_scaler.py)."""


class Content(NamedTuple):
    """What a global batch holds, over all ranks."""

    targets: int
    tokens: int
    """Without padding."""
    padded_tokens: int
    tflops: float | None
    """Model FLOPs of the step in 1e12; None where they are not known."""


class Loop:
    """Runs optimizer steps on a DeepSpeed engine.

    The loss is the mean over the target tokens of the whole global batch, whatever the accumulation and the number of
    ranks: each micro batch contributes its summed cross entropy over the number of targets of all micro batches of all
    ranks. A mean of means would weigh a token by the company it is in. Ranks that share a sample sum over their own columns.
    """

    def __init__(
        self, engine: DeepSpeedEngine, config: Config, steps: int, writer: RankWriter, where: Where, requests: EndRequests
    ) -> None:
        self.engine = engine
        self.config = config
        self.steps = steps
        self.writer = writer
        self.where = where
        self.device: torch.device = engine.device
        self.world_size = dist.get_world_size()
        self.sharing = sequence_parallel_size(config)
        self.place = dist.get_rank() % self.sharing
        self.skips = Skips(config)
        self.requests = requests
        self.asked_to_end = False
        self.measuring = config.task is Task.measure
        self.warmup_steps = config.measure.warmup_steps if self.measuring else 0
        self.lines: list[StepFigures] = []
        self.clock = StepClock(self.device)
        self.flops = model_flops(engine.module)
        self.peak_tflops = peak_tflops(self.device, config.precision)

    def run(
        self, batches: Iterator[list[Batch]], metrics: MetricsFile, first_step: int = 1, pause: Pause | None = None
    ) -> list[StepFigures]:
        """One optimizer step for each list of micro batches; returns those that count, which a warm-up does not.

        Args:
            first_step: the step of the first list.
            pause: what is done after each step, once it is recorded; may end the run.

        Raises:
            DivergedError: the loss is not finite, or skipping steps leads nowhere. The weights of the last applied step stand.
        """
        self.engine.train()
        for step in range(first_step, self.steps + 1):
            self.where.step = step
            self.draw_anew(step)
            if self.measuring:
                self.meet(step)
            started = time.perf_counter()
            self.enter(Activity.data)
            parts = [part_of(batch, self.sharing, self.place) for batch in next(batches)]
            scale, lr = loss_scale(self.engine), float(self.engine.get_lr()[0])
            content = self.count(parts)
            loss = self.accumulate(parts, content.targets)
            self.skips.refuse_loss(step, loss, scale)
            grad_norm, skipped = self.update(step, scale)
            self.clock.enter(None)  # what fails while the device is waited for is still of the update
            synchronize(self.device)
            self.where.activity = None
            spent, seconds, peak = self.slowest_and_fullest(time.perf_counter() - started)
            tokens = content.tokens
            line = StepFigures(step, loss, lr, grad_norm, skipped, scale, tokens, tokens / seconds, peak, seconds)
            line = self.with_efficiency(line, content, spent)
            self.record(line, metrics)
            self.skips.record(step, skipped, scale, loss_scale(self.engine))
            if pause is not None and pause.after(step, self.skips, self.asked_to_end):
                break
        return self.lines[self.warmup_steps :]

    def draw_anew(self, step: int) -> None:
        """Seeds dropout with the step and the rank, so that a run that goes on here draws what it would have drawn."""
        seed = hashlib.sha256(f"{self.config.train.seed}:{step}:{dist.get_rank()}".encode()).digest()
        torch.manual_seed(int.from_bytes(seed[:8], "little", signed=True))

    def meet(self, step: int) -> None:
        """Lets a measured step begin on all ranks at once: what one of them does between two steps is no other's waiting."""
        synchronize(self.device)
        all_reduced([0.0], self.device)
        if step == self.warmup_steps + 1:
            self.end_warmup()

    def end_warmup(self) -> None:
        """The peak of GPU memory begins anew."""
        if self.lines:
            seconds, peak = ", ".join(f"{line.step_seconds:.3g}" for line in self.lines), self.lines[-1].peak_allocated_gib
            memory = "" if peak is None else f", {peak:.2f} GiB peak with the building of model and engine"
            LOGGER.info("warm-up: steps of %s s%s", seconds, memory)
        reset_peak(self.device)

    def enter(self, activity: Activity) -> None:
        """From here on the time of the step, and a message of a failure, are of this activity."""
        self.where.activity = activity.value
        self.clock.enter(activity)

    def count(self, parts: list[Part]) -> Content:
        """What the global batch holds. Ranks that share samples share their FLOPs, too."""
        flops = sum(self.flops.of(part.lengths) for part in parts) / self.sharing if self.flops else 0.0
        counted = [
            sum(target_count(part.targets) for part in parts),
            sum(part.tokens for part in parts),
            sum(part.input_ids.numel() for part in parts),
            flops / 1e12,
        ]
        targets, tokens, padded_tokens, tflops = all_reduced([float(number) for number in counted], self.device)
        if targets == 0:
            raise ValueError("a global batch without any target token: the data side drops such samples")
        return Content(int(targets), int(tokens), int(padded_tokens), tflops if self.flops else None)

    def accumulate(self, parts: list[Part], targets: int) -> float:
        """Forward and backward of every micro batch; returns the loss of the global batch.

        ``engine.backward`` divides by the accumulation and the engine averages over ranks, hence the factor. The engine's own
        boundary decides when gradients are reduced; the last micro batch's ``engine.step()`` is left to ``update``.
        """
        factor = len(parts) * self.world_size / targets
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, part in enumerate(parts, start=1):
            self.where.micro, self.where.length = len(part.input_ids), part.length
            self.enter(Activity.forward)
            loss = self.forward(part.to(self.device))
            self.enter(Activity.backward)
            self.engine.backward(loss * factor)
            total += loss.detach()
            if number < len(parts):
                self.engine.step()
        self.enter(Activity.update)
        return all_reduced([float(total)], self.device)[0] / targets

    def forward(self, part: Part) -> torch.Tensor:
        """Summed cross entropy of this rank's part of one micro batch.

        No attention mask is needed: padding is on the right, where a causal model does not look, and without one the attention
        kernel that needs no mask tensor can be taken.
        """
        logits = self.engine(**part.inputs(), use_cache=False).logits
        return loss_sum(logits, part.targets)

    def update(self, step: int, scale: float) -> tuple[float | None, bool]:
        """The optimizer step; (gradient norm before clipping or None if not finite, whether the step was skipped)."""
        if zero_stage(self.engine) == 0:
            norm = gradient_norm(self.engine)
            if finite(norm) is None:
                self.discard_gradients()
                return None, True
            self.engine.step()
        else:
            try:
                self.engine.step()
            except Exception as error:
                if FLOOR_REACHED in str(error):
                    raise self.skips.at_floor(step, scale) from error
                raise
            norm = float(self.engine.get_global_grad_norm())
        skipped = not self.engine.was_step_applied()
        return (None if skipped else finite(norm)), skipped

    def discard_gradients(self) -> None:
        """Skips a step at stage 0, where DeepSpeed would write infinity or NaN into all fp32 weights."""
        self.engine.zero_grad()
        self.engine.skipped_steps += 1
        self.engine.global_steps += 1
        self.engine.micro_steps += 1  # what engine.step() counts the accumulation by

    def slowest_and_fullest(self, seconds: float) -> tuple[dict[Activity, float], float, float | None]:
        """(seconds of each activity and of the whole step on the slowest rank, peak GiB of the fullest); None on the CPU."""
        peak = peak_allocated_gib(self.device)
        self.where.peak_allocated_gib = peak
        spent = self.clock.split()
        asked = float(self.requests.received is not None)  # one collective a step for all that has to be agreed upon
        told = all_reduced([*spent.values(), seconds, peak or 0.0, asked], self.device, dist.ReduceOp.MAX)
        *slowest, seconds, fullest, asked = told
        self.asked_to_end = bool(asked)
        return dict(zip(spent, slowest, strict=True)), seconds, None if peak is None else fullest

    def with_efficiency(self, line: StepFigures, content: Content, spent: dict[Activity, float]) -> StepFigures:
        """``line`` with where its time went and how much of what the devices can compute was of use."""
        tflops = None if content.tflops is None else content.tflops / line.step_seconds / self.world_size
        return replace(
            line,
            padded_tokens=content.padded_tokens,
            padded_tokens_per_second=content.padded_tokens / line.step_seconds,
            tflops_per_second=tflops,
            mfu=None if tflops is None or self.peak_tflops is None else tflops / self.peak_tflops,
            data_seconds=spent[Activity.data],
            forward_seconds=spent[Activity.forward],
            backward_seconds=spent[Activity.backward],
            update_seconds=spent[Activity.update],
        )

    def record(self, line: StepFigures, metrics: MetricsFile) -> None:
        """A line of ``metrics.jsonl``, which holds no warm-up, and the progress of this rank."""
        self.lines.append(line)
        if line.step > self.warmup_steps:
            metrics.append(line)
        numbers: dict[str, Any] = {
            "loss": line.loss,
            "lr": line.lr,
            "tokens_per_second": line.tokens_per_second,
            "peak_allocated_gib": line.peak_allocated_gib,
        }
        shown = {name: value for name, value in numbers.items() if finite(value) is not None}
        self.writer.progress(Phase.training, line.step, self.steps, **shown)
