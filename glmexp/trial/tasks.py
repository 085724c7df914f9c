"""What the task verbs do with a composed configuration: ``check`` it, or run it to a result."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from glmexp.architecture import detect
from glmexp.config.batch import Batch, solve
from glmexp.config.checkpoint import resume_path, resumes_itself
from glmexp.config.choices import Device, Init, MeasureSamples, Source, Task
from glmexp.config.compose import Composed
from glmexp.config.data_files import PARQUET, files
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError, missing_package
from glmexp.config.measure import initialisation, random_tokens
from glmexp.config.rules import warnings, without_sweep
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.dsconfig.effect import bucket_bytes, mebibytes, one_rank_note
from glmexp.dsconfig.examine import examine
from glmexp.track.selection import preflight, tracker_for
from glmexp.trial.config_hash import config_hash
from glmexp.trial.placement import Placement, check_device, resolve
from glmexp.trial.progress import ProgressView, closing
from glmexp.trial.record import CONFIG, DS_CONFIG, RESULT, State
from glmexp.trial.result import versions
from glmexp.trial.resume import Decision, decide, other_data
from glmexp.trial.run import exit_code, refuse_used, run_trial, write_configs
from glmexp.trial.saved import check_same, find


class Screen(Console):
    """A console that goes quiet when nothing can be written to it any more: the run goes on to its result.

    As in ``| head``, after its terminal was closed, or when the disk that a file for it lies on is full.
    """

    def _write_buffer(self) -> None:
        try:
            super()._write_buffer()
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError):  # a stream that is no file has no number
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def warn(line: str) -> None:
    """One warning on stderr, for whoever still reads it."""
    with suppress(OSError):
        print(f"warning: {line}", file=sys.stderr)


def run_task(composed: Composed, folder: Path, overrides: Sequence[str], given: bool = False) -> int:
    """Does what ``config.task`` says in ``folder``; returns the exit code, raises UserError.

    ``given``: the folder is that of ``hydra.run.dir``, and not a new one that Hydra named.
    """
    return check(composed, folder) if composed.config.task is Task.check else run(composed, folder, overrides, given)


def check(composed: Composed, folder: Path) -> int:
    """Writes ``config.yaml`` and ``ds_config.json`` and starts nothing.

    A device that was asked for is taken as it is, whatever this machine has; a probed one that lacks something is only
    warned of, since the check may be made on another machine than the run.
    """
    config = composed.config
    check_inputs(config)
    placement = resolve(config, os.environ, launching=False)
    probed = config.launch.device is Device.auto
    try:
        check_device(config, placement, here=probed)
        lacking = []
    except UserError as error:
        if not probed:
            raise
        lacking = [
            f"{str(error).splitlines()[0]} A run here would be refused; to check for another machine, set launch.device."
        ]
    ds_config, cautions = examine(config, placement.machine, probed=probed)
    refuse_used(folder)
    write_configs(config, ds_config, folder)
    asked = "as probed" if probed else "as set"
    print(f"check: {placement.machine.device} ({asked}), {arithmetic(config, placement)}")
    if size := bucket_bytes(ds_config):
        print(f"gradient buckets: {mebibytes(size)} on each rank (zero.reduce_bucket_size)")
    if note := one_rank_note(ds_config, placement.machine):
        print(f"note: {note['en']}")
    for line in [*warnings(config), *without_sweep(composed.sources), *cautions, *lacking]:
        print(f"warning: {line}", file=sys.stderr)
    print(f"wrote {folder / CONFIG}\nwrote {folder / DS_CONFIG}")
    return 0


def run(composed: Composed, folder: Path, overrides: Sequence[str], given: bool) -> int:
    """``train`` or ``measure``, shown on the terminal as it goes."""
    config = composed.config
    check_inputs(config)
    placement = resolve(config, os.environ)
    ds_config, cautions = examine(config, placement.machine)
    session = session_of(config, config_hash(config, ds_config, placement, versions()), placement, folder, given)
    if session.folder != folder:
        for empty in (folder, folder.parent):
            with suppress(OSError):  # the folder of the day may hold other runs
                empty.rmdir()
    folder = session.folder
    console = Screen(soft_wrap=True, highlight=False)
    doubts = [*warnings(config, composed.sources), *without_sweep(composed.sources), *cautions]
    for line in [*doubts, *preflight(config.tracker, os.environ)]:
        warn(line)
    first = placement.node == 0
    if first and session.done:
        console.print(session.words, markup=False)
        return 0
    if first:
        console.print(f"{config.task.value}: {config.model.path}, {config.method.name.value}, in {folder}", markup=False)
        if session.words:
            console.print(session.words, markup=False)
        if config.task is Task.measure:
            console.print(what_is_measured(config), markup=False)
        console.print(arithmetic(config, placement), markup=False)
    tracker = tracker_for(config.tracker, os.environ, warn)
    view = ProgressView(None, console)
    result = run_trial(composed, folder, overrides, placement, view=view, tracker=tracker, going_on=session.going_on)
    if first:
        for line in result.warnings:
            warn(line)
        if result.state is State.invalid:
            print(f"glmexp: {result.reason}", file=sys.stderr)
        else:
            console.print(closing(asdict(result), folder, config, tracker.where))
        if not (folder / RESULT).exists():  # a full disk, which a warning tells of
            return 1
    return exit_code(result)


def session_of(config: Config, digest: str, placement: Placement, folder: Path, given: bool) -> Decision:
    """Where the run takes place and what it begins with, by ``train.resume``. Raises UserError."""
    if resumes_itself(config):
        if placement.nodes > 1:
            raise UserError("train.resume=auto looks for runs of one node\non several give the folder: train.resume=RUN")
        return decide(config, digest, folder, given)
    path = None if config.task is Task.measure else resume_path(config)
    if path is None:
        return Decision(folder, "")
    saved = find(Path(path))
    samples = saved.step * batch_of(config, placement).total
    if (line := other_data(config, saved.path.parent.parent, samples)) is not None and placement.node == 0:
        warn(line)
    return Decision(folder, f"a new run that begins with step {saved.step + 1}, from {saved.path}")


def check_inputs(config: Config) -> None:
    """Raises UserError for a file or folder that is not there or cannot be read; what is in them is the ranks' to judge."""
    if not random_tokens(config):
        _check_data(config.data)
    model = config.model.path
    if model.startswith("/"):
        with readable(f"model.path={model}"):
            if not Path(model).is_dir():
                raise UserError(f"model.path={model} is not there\ngive a folder with config.json and weights, or a hub id")
            detect(Path(model))  # refuses quantised weights and architectures that would train wrongly, from config.json alone
    checkpoint = None if config.task is Task.measure else resume_path(config)
    if checkpoint is not None:
        with readable(f"train.resume={checkpoint}"):
            _check_checkpoint(config, Path(checkpoint))


def _check_checkpoint(config: Config, path: Path) -> None:
    try:
        saved = find(path)
        check_same(saved, config)
    except UserError as error:
        raise UserError(f"train.resume: {error}") from error
    for field in ("max_steps", "stop_after"):
        last = getattr(config.train, field)
        if last is not None and saved.step >= last:
            raise UserError(
                f"train.resume: {saved.path} is of step {saved.step}, and train.{field}={last} ends there\nraise train.{field}"
            )


def _check_data(data: DataConfig) -> None:
    if data.source is Source.hub and find_spec("datasets") is None:
        raise missing_package(f"data.path={data.path}", "datasets", "'glmexp[data]'", "save the dataset as a file")
    for setting, value in (("data.path", data.path), ("data.eval_path", data.eval_path)):
        if data.source is not Source.file or value is None:
            continue
        with readable(f"{setting}={value}"):
            for path in files(setting, value):
                path.open("rb").close()
                if path.suffix.lower() == PARQUET and find_spec("pyarrow") is None:
                    raise missing_package(f"{setting}={path}", "pyarrow", "'glmexp[data]'", "convert it to JSON lines")


@contextmanager
def readable(setting: str) -> Iterator[None]:
    """Makes what the system says of a path a UserError: a name that is too long, no permission, a disk that is gone."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{setting} cannot be read: {error.strerror or error}\ngive another path, or mend its permissions"
        ) from error


def what_is_measured(config: Config) -> str:
    """``3 warm-up and 10 measured steps on random tokens, 512 a sample; random weights``."""
    longest = config.measure.samples is MeasureSamples.longest
    samples = "the longest samples" if longest else f"random tokens, {config.data.max_length} a sample"
    weights = "random" if initialisation(config) is Init.random else "pretrained"
    steps = config.measure
    return f"{steps.warmup_steps} warm-up and {steps.steps} measured steps on {samples}; {weights} weights"


def arithmetic(config: Config, placement: Placement) -> str:
    """``batch: micro 2 x accumulation 4 x ranks 1 = 8``."""
    packed = config.data.packing and not random_tokens(config)
    return batch_of(config, placement).arithmetic(placement.machine.world_size, sequence_parallel_size(config), packed)


def batch_of(config: Config, placement: Placement) -> Batch:
    """The batch on as many ranks as there are."""
    return solve(config.batch, placement.machine.world_size, sequence_parallel_size(config))
