"""One run on the parent's side: write the folder, start the ranks, watch, classify, write the result."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from glmexp.config.checkpoint import saves_on_signal
from glmexp.config.compose import Composed
from glmexp.config.errors import UserError
from glmexp.config.files import save
from glmexp.config.schema import Config
from glmexp.dsconfig import build
from glmexp.track.base import NullTracker, RunInfo, Tracker
from glmexp.trial import resume
from glmexp.trial.commands import WORKER, commands, rank_environment
from glmexp.trial.config_hash import config_hash
from glmexp.trial.evaluations import EvaluationsTail, described, in_step
from glmexp.trial.evaluations import metrics as evaluation_metrics
from glmexp.trial.machine import oom_kills
from glmexp.trial.outcome import Evidence, classify
from glmexp.trial.placement import Placement
from glmexp.trial.processes import Ending, Limits, Processes, Signals, ask_to_save, new_tag, watch
from glmexp.trial.progress import View
from glmexp.trial.record import CONFIG, DS_CONFIG, LOG, RESULT, RankRecord, log_size, log_tail, read_rank, write_json
from glmexp.trial.redact import redact
from glmexp.trial.result import (
    MetricsTail,
    Result,
    complete_metrics,
    describe_device,
    exit_code,
    finite,
    times_since,
    versions,
    write_result,
)
from glmexp.trial.starter import COLD, Starter

__all__ = ["Result", "exit_code", "run_trial"]

LONGEST_REASON = 2000


def run_trial(
    composed: Composed,
    folder: Path,
    overrides: Sequence[str],
    placement: Placement,
    *,
    view: View | None = None,
    tracker: Tracker | None = None,
    environ: Mapping[str, str] | None = None,
    worker: str = WORKER,
    starter: Starter = COLD,
    signals: Signals | None = None,
    name: str | None = None,
    group: str | None = None,
    ds_config: dict[str, Any] | None = None,
    going_on: bool = False,
) -> Result:
    """Runs one trial to its end, whatever that is, and returns what ``result.json`` holds. May be called from any thread.

    Args:
        folder: the trial folder; created if need be, must hold no earlier run unless ``going_on``.
        overrides: the user's command line, for the record.
        view: shown while the run goes on; entered and left here.
        tracker: fed from ``metrics.jsonl``; its failure becomes a warning in the result.
        worker: the module that a rank runs.
        starter: what starts the ranks.
        signals: shared by several trials and entered by the caller; null catches them here, for this trial alone.
        name: short name of the trial for the tracker.
        group: the sweep it belongs to, for the tracker.
        ds_config: what DeepSpeed is told; null derives it from the config.
        going_on: the folder holds an earlier session of this run, which goes on from its newest checkpoint.

    A signal (SIGINT, SIGTERM, SIGHUP) ends the ranks and gives state ``interrupted``; nothing is raised for it. Ranks that save
    checkpoints save one first, which SIGUSR1 and ``launch.timeout_minutes`` ask for too; a second signal ends them at once. On
    nodes but the first nothing is shown, tracked or written besides the ranks' own files: the result is the first node's.

    Raises:
        UserError: the config cannot be built for this machine, or another process is at this run; nothing is written then.
    """
    environ = dict(os.environ if environ is None else environ)
    ds_config = build(composed.config, placement.machine) if ds_config is None else ds_config
    folder.mkdir(parents=True, exist_ok=True)
    if not going_on:
        refuse_used(folder)
    first = placement.node == 0
    shown, tracked = (view, tracker) if first else (None, None)
    with resume.held(folder) if first else nullcontext():
        trial = _Trial(composed.config, folder, placement, environ, shown, tracked, starter, going_on)
        info = RunInfo(folder, composed.config, ds_config, name=name, group=group, going_on=going_on)
        result = trial.run([redact(override, environ) for override in overrides], info, worker, signals)
        if first:
            trial.record(result)
            trial.close(result)
    return result


class _Trial:
    def __init__(
        self,
        config: Config,
        folder: Path,
        placement: Placement,
        environ: Mapping[str, str],
        view: View | None,
        tracker: Tracker | None,
        starter: Starter,
        going_on: bool,
    ) -> None:
        self.config = config
        self.folder = folder
        self.placement = placement
        self.environ = environ
        self.view = view
        self.tracker = tracker or NullTracker()
        self.starter = starter
        self.ranks = range(placement.first_rank, placement.first_rank + placement.ranks)
        self.going_on = going_on
        self.tail = MetricsTail(folder, going_on)
        self.evaluations = EvaluationsTail(folder, going_on)
        self.tag = new_tag()
        self.log_from = log_size(folder / LOG)
        self.warnings: list[str] = []
        self.told = 0

    def run(self, overrides: list[str], info: RunInfo, worker: str, shared: Signals | None) -> Result:
        known = versions()
        # Before the ranks start: the data file may be changed while they read it.
        digest = config_hash(self.config, info.ds_config, self.placement, known)
        killed_before, started = oom_kills(), time.time()
        records: list[RankRecord] = []
        trouble = ""
        catching = nullcontext(shared) if shared else Signals(saves_on_signal(self.config))
        with catching as signals, self.view or nullcontext():
            if self.placement.node == 0:
                resume.begin(self.folder, digest, self.tag, overrides, self.config, self.going_on)
            write_configs(self.config, info.ds_config, self.folder)
            try:
                ending = self._launch(signals, replace(info, versions=known, world_size=self._world_size), worker)
            except OSError as error:  # no memory for a process, too many files open
                ending, trouble = Ending({}, None, None), f"the ranks could not be started: {error}"
            records = self.records()
        state, reason = classify(
            Evidence(
                ending,
                self.ranks,
                records,
                log=(trouble or log_tail(self.folder / LOG, self.log_from)),
                oom_kills=oom_kills() - killed_before,
                timeout_minutes=self.config.launch.timeout_minutes,
                hang_minutes=self.config.launch.hang_minutes,
                port=_port_origin(self.placement),
            )
        )
        resumed = next((record.resumed for record in records if record.rank == 0), None)
        self.tail.resume(math.inf if resumed is None and self.going_on else resumed or 0)
        self.tail.fresh()
        self.evaluations.resume(resumed or 0)
        self.evaluations.fresh()
        self.warnings += [line for record in records for line in record.warnings]
        told = next((record.metrics for record in records if record.rank == 0), {})
        told = evaluation_metrics(self.evaluations.rows) | told
        return Result(
            state=state,
            reason=redact(trouble or reason, self.environ)[:LONGEST_REASON],
            overrides=overrides,
            config_hash=digest,
            world_size=self._world_size,
            metrics=finite(complete_metrics(told, self.tail.rows, self.config.task, self.tail.earlier)),
            predicted=None,
            versions=known,
            device=describe_device(self.placement),
            times=times_since(started),
            signal=ending.signal_number or next((record.signal for record in records if record.signal), None),
            resumed=resumed or None,
            warnings=self.warnings,
        )

    @property
    def _world_size(self) -> int:
        return self.placement.machine.world_size

    def _launch(self, signals: Signals, info: RunInfo, worker: str) -> Ending:
        environment, notes = rank_environment(self.environ, self.placement, self.tag, os.getpid())
        starting = [*self.placement.lines(self.environ.get("CUDA_VISIBLE_DEVICES")), *self.placement.notes, *notes]
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.writelines(f"{line}\n" for line in starting)
        if self.view is not None:
            self._show(self.view.note, "\n".join(starting))
        launched = commands(self.placement, self.config.launch.backend, self.folder, environment, worker)
        launch = self.config.launch
        limits = Limits(_seconds(launch.timeout_minutes), _seconds(launch.hang_minutes))
        ask = self.ask_to_save if saves_on_signal(self.config) else lambda records: False
        with Processes(launched, self.folder / LOG, self.tag, self.starter) as processes:
            # The dashboard's package loads while the ranks load theirs.
            self.tracker.start(info)
            return watch(processes, self.observe, self.placement.ranks, signals, limits, ask)

    def ask_to_save(self, records: Sequence[RankRecord]) -> bool:
        """Asks the ranks to save and to end; whether they have anything to save."""
        asked = ask_to_save(self.tag, records)
        if asked and self.view is not None:
            self._show(self.view.note, "saving first; a second signal (Ctrl-C) ends the run at once")
        return asked

    def observe(self) -> tuple[list[RankRecord], int]:
        """Hands what is new to the tracker and the view; the latest record of each rank and the rows so far."""
        records = self.records()
        resumed = next((record.resumed for record in records if record.rank == 0), None)
        if self.tail.waiting and resumed is not None:
            self.tail.resume(resumed)
            self.evaluations.resume(resumed)
            self.tracker.go_on(resumed)
        rows = self.tail.fresh()
        evaluations = self.evaluations.up_to(self.tail.rows[-1].get("step") or 0 if self.tail.rows else 0)
        for row in in_step(rows, evaluations):
            self.tracker.log(row)
        self.tell(records)
        if self.view is not None and evaluations:
            self._show(self.view.note, "\n".join(map(described, evaluations)))
        if self.view is not None:
            latest = {"eval_loss": self.evaluations.rows[-1].get("loss")} if self.evaluations.rows else {}
            self._show(self.view.update, records, [{**row, **latest} for row in rows])
        return records, len(self.tail.rows)

    def tell(self, records: Sequence[RankRecord]) -> None:
        """Shows the notes of the first rank here that are new; its warnings are shown at the end, with the result."""
        notes = next((record.notes for record in records if record.rank == self.placement.first_rank), [])
        if self.view is not None and len(notes) > self.told:
            self._show(self.view.note, "\n".join(notes[self.told :]))
            self.told = len(notes)

    def records(self) -> list[RankRecord]:
        return [record for record in (read_rank(self.folder, rank) for rank in self.ranks) if record is not None]

    def _show(self, draw: Callable[..., None], *what: object) -> None:
        """A display that breaks (a closed terminal, an odd encoding) must not take the run along."""
        try:
            draw(*what)
        except Exception as error:
            self.warnings.append(f"the progress display stopped: {type(error).__name__}: {error}")
            self.view = None

    def record(self, result: Result) -> None:
        """Writes ``result.json``; where that cannot be, as on a full disk, a warning says so and there is none."""
        try:
            write_result(result, self.folder)
        except OSError as error:
            result.warnings.append(f"{self.folder / RESULT} could not be written: {error.strerror or error}")

    def close(self, result: Result) -> None:
        """Closes the tracker, outside the signal handlers: a dashboard that hangs can be left with Ctrl-C."""
        self.tracker.finish(finite(asdict(result)))
        if self.tracker.error is not None:
            result.warnings.append(redact(f"tracker: {self.tracker.error}", self.environ))
            self.record(result)


def write_configs(config: Config, ds_config: Mapping[str, Any], folder: Path) -> None:
    """What a run starts from: ``config.yaml`` and ``ds_config.json``."""
    save(config, folder / CONFIG)
    write_json(folder / DS_CONFIG, ds_config)


def refuse_used(folder: Path) -> None:
    """Raises UserError for a folder that holds an earlier run, or anyone's ``config.yaml``: nothing is written over."""
    used = next((name for name in (RESULT, CONFIG, DS_CONFIG) if (folder / name).exists()), None)
    if used or any(folder.glob("rank*.json")):
        raise UserError(f"{folder} holds {used or 'an earlier run'} already\nleave hydra.run.dir out, or name a new folder")


def _port_origin(placement: Placement) -> str:
    """What sets the rendezvous port, for the message that it is taken."""
    if placement.outer is None:
        return "the port is chosen anew with each run: start again"
    setting = {
        "torchrun": "torchrun --master-port or --rdzv-endpoint",
        "deepspeed": "deepspeed --master_port",
        "srun": "MASTER_PORT",
    }
    return f"port {placement.port}, set by {setting[placement.outer.name]}"


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60 * minutes
