"""What the task verbs do with a composed configuration: ``check`` it, or run it to a result."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from glmexp.architecture import detect
from glmexp.config.batch import solve
from glmexp.config.choices import Device, Init, MeasureSamples, Task
from glmexp.config.compose import Composed
from glmexp.config.errors import UserError
from glmexp.config.measure import initialisation, random_tokens
from glmexp.config.rules import warnings, without_sweep
from glmexp.config.schema import Config
from glmexp.config.sequence_parallel import sequence_parallel_size
from glmexp.dsconfig.effect import bucket_bytes, mebibytes, one_rank_note
from glmexp.dsconfig.examine import examine
from glmexp.track.selection import preflight, tracker_for
from glmexp.trial.placement import Placement, check_device, resolve
from glmexp.trial.progress import ProgressView, closing
from glmexp.trial.record import CONFIG, DS_CONFIG, State
from glmexp.trial.run import exit_code, refuse_used, run_trial, write_configs


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


def run_task(composed: Composed, folder: Path, overrides: Sequence[str]) -> int:
    """Does what ``config.task`` says in ``folder``; returns the exit code, raises UserError."""
    return check(composed, folder) if composed.config.task is Task.check else run(composed, folder, overrides)


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


def run(composed: Composed, folder: Path, overrides: Sequence[str]) -> int:
    """``train`` or ``measure``, shown on the terminal as it goes."""
    config = composed.config
    check_inputs(config)
    placement = resolve(config, os.environ)
    _, cautions = examine(config, placement.machine)
    console = Screen(soft_wrap=True, highlight=False)
    doubts = [*warnings(config, composed.sources), *without_sweep(composed.sources), *cautions]
    for line in [*doubts, *preflight(config.tracker, os.environ)]:
        warn(line)
    first = placement.node == 0
    if first:
        console.print(f"{config.task.value}: {config.model.path}, {config.method.name.value}, in {folder}", markup=False)
        if config.task is Task.measure:
            console.print(what_is_measured(config), markup=False)
        console.print(arithmetic(config, placement), markup=False)
    tracker = tracker_for(config.tracker, os.environ, warn)
    result = run_trial(composed, folder, overrides, placement, view=ProgressView(None, console), tracker=tracker)
    if first:
        for line in result.warnings:
            warn(line)
        if result.state is State.invalid:
            print(f"glmexp: {result.reason}", file=sys.stderr)
        else:
            console.print(closing(asdict(result), folder, config, tracker.where))
    return exit_code(result)


def check_inputs(config: Config) -> None:
    """Raises UserError for a file or folder that is not there or cannot be read; what is in them is the ranks' to judge."""
    path = config.data.path
    if not random_tokens(config) and path is not None:
        with readable(f"data.path={path}"):
            _check_data(Path(path))
    model = config.model.path
    if model.startswith("/"):
        with readable(f"model.path={model}"):
            if not Path(model).is_dir():
                raise UserError(f"model.path={model} is not there\ngive a folder with config.json and weights, or a hub id")
            detect(Path(model))  # refuses quantised weights and architectures that would train wrongly, from config.json alone


def _check_data(path: Path) -> None:
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "is not there"
        raise UserError(f"data.path={path} {what}\ngive a JSONL or JSON file; a relative path starts at the folder of the call")
    path.open("rb").close()


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
    world_size = placement.machine.world_size
    sharing = sequence_parallel_size(config)
    return solve(config.batch, world_size, sharing).arithmetic(world_size, sharing)
