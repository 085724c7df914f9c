"""One rank's life, from the trial folder to the last figure. The order is: what may refuse first, what is dear last."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from glmexp.config.batch import Batch
from glmexp.config.checkpoint import saves_on_signal
from glmexp.config.choices import Source, Task
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.train import device as devices
from glmexp.train import logs, ops
from glmexp.train.failure import PeerEndedError, Where
from glmexp.train.ranks import Ranks
from glmexp.train.requests import EndRequests
from glmexp.train.task import for_task
from glmexp.trial.orphan import is_alive
from glmexp.trial.record import DS_CONFIG, METRICS, Phase, RankWriter, read_rank

LOGGER = logging.getLogger(__name__)

CLOCK_SLACK_SECONDS = 5.0
"""How much earlier than this rank the node's first one may have started."""


class Run:
    """One rank of one trial."""

    def __init__(self, folder: Path, config: Config, ranks: Ranks, writer: RankWriter, where: Where) -> None:
        self.folder = folder
        self.config = for_task(config)
        self.ranks = ranks
        self.writer = writer
        self.where = where
        self.started = writer.record.updated
        self.ds_config: dict[str, Any] = json.loads((folder / DS_CONFIG).read_text(encoding="utf-8"))
        self.device = devices.choose(config.launch.device, ranks)
        ops.prepare_environment()
        devices.cap_memory(config.hardware, self.device)
        self.sharing = sequence_parallel_size(config)
        self.requests = EndRequests(saves_on_signal(self.config))
        self.tokenizer: Any = None

    def execute(self) -> dict[str, Any]:
        """Trains or measures; returns the figures for ``result.json``."""
        from glmexp.train.engine import batch_numbers

        logs.join_libraries(self.ranks.rank)
        batch = batch_numbers(self.ds_config, self.ranks.world_size)
        samples = self.prepare(batch.total)
        with self.phase(Phase.building):
            ops.ensure(self.ds_config, self.tell)
        devices.start_process_group(self.config, self.device)
        self.tell_devices()
        from glmexp.train.checkpoint.checkpoints import Checkpoints
        from glmexp.train.packing import check_packing
        from glmexp.train.stream import Stream

        stream = Stream(samples, self.config, batch, self.ranks)
        steps = stream.steps
        checkpoints = Checkpoints(self.folder, self.config, steps, batch.total, self.ranks, self.writer)
        resumed = checkpoints.choose()
        checkpoints.check_room()
        engine = self.build(steps, batch.micro)
        if stream.order.packed:
            check_packing(engine)
        self.tell_arithmetic(engine, stream)
        if resumed:
            self.resume(engine, resumed, steps)
        with self.requests:  # what comes after the last step lets the run come to its end
            metrics = self.train(engine, stream, checkpoints, resumed)
            if self.config.train.save_weights:
                self.save(engine)
            self.part()
        return metrics

    def prepare(self, total: int) -> Any:
        """The tokenised samples, where global batches of ``total`` are read.

        The node's first rank fetches, checks and tokenises; the others wait on its files. No collective: its time limit would
        have to exceed the tokenising of any data set.
        """
        from glmexp.data import Samples, prepare
        from glmexp.models import describe, preflight
        from glmexp.models.method import check_targets
        from glmexp.train.sequence_parallel import check_model
        from glmexp.train.stream import samples_needed

        config = self.config
        if not self.ranks.leads_node:
            self.wait_for_leader()
            return Samples.open(self.folder)
        preflight(config.model)
        check_targets(config.model, config.method)
        described = describe(config.model).config
        if self.sharing > 1:
            check_model(described, self.sharing)
        vocabulary = int(described.vocab_size)
        self.tell_limit(getattr(described, "max_position_embeddings", None))
        prompts = self.prompts()
        with self.phase(Phase.tokenising):
            report = lambda done, total: self.writer.progress(Phase.tokenising, done, total)  # noqa: E731
            prepare(config.data, prompts, vocabulary, config.train.seed, self.folder, report, samples_needed(config, total))
        samples, validation = Samples.open(self.folder), Samples.open(self.folder, "validation")
        self.tell_data("data", samples.counts)
        if validation is not None:
            self.tell_data("validation data", validation.counts)
        self.writer.progress(Phase.loading)
        return samples

    @property
    def measuring(self) -> bool:
        return self.config.task is Task.measure

    def tell(self, line: str) -> None:
        """One line for the log and for the screen."""
        LOGGER.info("%s", line)
        self.writer.note(line)

    def tell_data(self, name: str, counts: Any) -> None:
        """How many samples were read, kept, cut and dropped: on the screen, and in the result where some were lost."""
        LOGGER.info("%s: %s", name, counts.describe())
        lost = bool(counts.cut or counts.dropped or counts.bad)
        self.writer.note(f"{name}: {counts.describe()}", warning=lost)
        for line in counts.details():
            self.tell(f"{name}: {line}")
        if counts.first_bad:
            LOGGER.warning("bad lines of the %s: %s", name, "; ".join(counts.first_bad))

    def tell_limit(self, longest: int | None) -> None:
        """Warns of samples longer than the positions that the model was trained on."""
        asked = self.config.data.max_length
        if longest is not None and asked > longest:
            line = f"data.max_length={asked} is beyond the {longest} positions of the model"
            LOGGER.warning("%s", line)
            self.writer.note(line, warning=True)

    def prompts(self) -> Any:
        """The prompt format; None for synthetic data, which needs no tokenizer."""
        from glmexp.models import load_tokenizer, locate
        from glmexp.models.prompts import prompts_for

        if self.config.data.source is Source.synthetic:
            return None
        self.tokenizer = load_tokenizer(locate(self.config.model), self.config.model.template)
        return prompts_for(self.tokenizer)

    def build(self, steps: int, micro: int) -> Any:
        """Weights, tuning method, engine."""
        from glmexp.models import build_model
        from glmexp.models import method as methods
        from glmexp.models.quantised import quantization
        from glmexp.train import engine as engines
        from glmexp.train.sequence_parallel import share

        config = self.config
        with self.phase(Phase.loading):
            compute = devices.DTYPES[config.precision.autocast_dtype or config.precision.dtype]
            packing = quantization(config.method, compute)
            # Kept until the engine stands: transformers holds it by a weak reference only. What is quantised is loaded whole.
            partition = None if packing else engines.partition_on_load(self.ds_config)
            dtype = devices.DTYPES[config.precision.dtype]
            seed = config.train.seed
            model = build_model(config.model, dtype, config.kernels.attention.value, seed, self.device, packing)
        with self.phase(Phase.building):
            groups = share(model, micro, self.sharing)
            torch.manual_seed(seed)  # adapters must be drawn alike on every rank
            model = methods.apply(model, config.method)
            self.tell(methods.describe_trainable(model))
            engine = engines.start(model, config, self.ds_config, steps, groups)
            del partition
        torch.manual_seed(seed + self.ranks.rank)  # dropout must not be alike
        return engine

    def resume(self, engine: Any, resumed: Any, steps: int) -> None:
        """The state of a checkpoint into the new engine; the present configuration's lr is in force from the next step."""
        from glmexp.train.checkpoint.restore import restore

        restore(engine, resumed)
        found, lr, config = resumed.saved, engine.get_lr()[0], self.config
        self.tell(
            f"resumed from {found.path}: step {found.step + 1} of {steps} runs at lr {lr:.3g}, by the present "
            f"optimizer.lr={config.optimizer.lr:g} and scheduler={config.scheduler.name.value}"
        )

    def train(self, engine: Any, stream: Any, checkpoints: Any, resumed: Any) -> dict[str, Any]:
        """The loop and what it measured."""
        from glmexp.train.evaluation.validation import validation_of
        from glmexp.train.loop import Loop
        from glmexp.train.metrics.figures import SETTLING_STEPS, MetricsFile, run_figures
        from glmexp.train.metrics.movement import Movement
        from glmexp.train.pause import Pause

        movement = Movement(engine)
        done, steps = resumed.saved.step if resumed else 0, checkpoints.steps
        kept = done if checkpoints.in_place else 0
        loop = Loop(engine, self.config, steps, self.writer, self.where, self.requests)
        if resumed:
            loop.skips.go_on(resumed.saved.state)
        pause, ended = None, False
        if not self.measuring:
            validation = validation_of(
                engine, self.tokenizer, self.config, steps, done, self.folder, self.writer, self.requests
            )
            pause = Pause(engine, self.config, checkpoints, self.requests, self.writer, self.where, validation)
        with self.phase(Phase.training, steps), MetricsFile(self.folder / METRICS, self.ranks.rank, kept) as metrics:
            if self.ranks.rank == 0:
                self.writer.resume(done)
            if pause is not None and done:
                ended = pause.begin(done, loop.skips)
            lines = [] if ended else loop.run(stream.batches(done), metrics, done + 1, pause)
        summary = loop.skips.summary()
        if summary:
            LOGGER.info("%s", summary)
        if lines:  # a run may have been killed when it was about to export
            movement.tell(loop.skips.applied)
        settling = 0 if self.measuring else SETTLING_STEPS
        figures = run_figures(lines, settling, stream.samples_a_step, self.ranks, self.device, loop.peak_tflops)
        return figures | (pause.metrics() if pause else {})

    def save(self, engine: Any) -> None:
        """``export/``: the last weights, or with ``checkpoint.best`` the best."""
        from glmexp.train.weights.save import save
        from glmexp.train.weights.trained import put_best

        with self.phase(Phase.saving):
            if self.config.checkpoint.best and (told := put_best(engine.module, self.folder, self.config, self.where.step)):
                self.tell(told)
            written = save(engine, self.tokenizer, self.config, self.folder, self.ranks.rank)
        if written is None and self.ranks.rank == 0:
            self.writer.note("the weights were not written: the disk has no room for them; see train.log", warning=True)

    def part(self) -> None:
        """Waits until every rank has what it needs of the others, so that one that exits takes no connection away.

        By then each rank's work is done, so that a failure of the parting itself, as when a peer was faster, does not matter.
        """
        try:
            dist.all_reduce(torch.zeros(1, device=self.device))
            devices.synchronize(self.device)
        except RuntimeError as error:
            LOGGER.debug("a peer has gone already: %s", error)

    def tell_devices(self) -> None:
        """One line a rank: which device it is on."""
        described: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(described, devices.describe(self.device))
        for rank, text in enumerate(described):
            LOGGER.info("rank %d: %s", rank, text)

    def tell_arithmetic(self, engine: Any, stream: Any) -> None:
        """The batch arithmetic of the engine, said and checked before the first step."""
        world, total = self.ranks.world_size, engine.train_batch_size()
        batch = Batch(engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps(), total)
        multiplied = batch.micro * batch.accumulation * (world // self.sharing)
        if multiplied != total or total != self.ds_config["train_batch_size"]:
            raise ValueError(f"the engine's batch does not add up: {batch.arithmetic(world, self.sharing)}")
        LOGGER.info("%s", batch.arithmetic(world, self.sharing, stream.order.packed))
        if told := stream.tell():
            self.tell(told)

    @contextmanager
    def phase(self, phase: Phase, total: int | None = None) -> Iterator[None]:
        """Tells the parent, and whoever writes an error message, what is going on."""
        self.where.phase = phase
        self.writer.progress(phase, 0, total)
        yield

    def wait_for_leader(self) -> None:
        """Returns when the node's first rank has the model's files checked and the data tokenised, as its record tells.

        Raises:
            PeerEndedError: it has ended before that.
        """
        leader = self.ranks.rank - self.ranks.local_rank
        while True:
            record = read_rank(self.folder, leader)
            # An older record is that of an earlier run of this folder.
            if record is not None and record.updated >= self.started - CLOCK_SLACK_SECONDS:
                if record.outcome is not None or not is_alive(record.pid):
                    raise PeerEndedError(f"rank {leader} has ended: {record.outcome.value if record.outcome else 'killed'}")
                if record.phase not in (Phase.starting, Phase.tokenising):
                    return
            time.sleep(0.05)
