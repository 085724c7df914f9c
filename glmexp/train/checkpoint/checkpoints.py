"""The checkpoints of one run: what is saved when, how it becomes whole, which are kept, and which one a run goes on from.

DeepSpeed writes its files, each rank its own part, into a hidden folder; when all of them are on the disk, rank 0 adds
``state.json`` and renames the folder. A save that fails, as on a full disk, fails on all ranks alike and takes nothing along.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from glmexp.config.checkpoint import AUTO, resume_path
from glmexp.config.choices import Method
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.train.checkpoint.disk import check_room
from glmexp.train.checkpoint.files import OWN, Contents
from glmexp.train.checkpoint.layout import layout, trained
from glmexp.train.checkpoint.restore import scaler_state
from glmexp.train.checkpoint.writer import FileWriter, settle
from glmexp.train.engine import zero_stage
from glmexp.train.ranks import Ranks
from glmexp.train.skips import Skips
from glmexp.trial import saved
from glmexp.trial.record import Phase, RankWriter, write_json

LOGGER = logging.getLogger(__name__)

READ = ("applied", "skipped", "skipped_in_a_row", "zero_stage", "loss_scaler", "batch.total", "method", "optimizer")
"""What a run that goes on reads in ``state.json`` besides ``step`` and ``files``."""


class Checkpoints:
    """Saves, keeps and finds the checkpoints of one run; all ranks call each method together."""

    def __init__(self, folder: Path, config: Config, steps: int, batch_total: int, ranks: Ranks, writer: RankWriter) -> None:
        self.run = folder
        self.root = folder.absolute() / saved.FOLDER
        self.config = config
        self.steps = steps
        self.batch_total = batch_total
        self.ranks = ranks
        self.writer = writer
        self.newest: str | None = None
        """Name of the checkpoint here that a run would go on from now."""
        self.in_place = False
        """Whether this run goes on with an earlier session of itself in the same folder."""

    def choose(self) -> Contents | None:
        """The checkpoint to go on from, checked and open; None for a fresh start. Rank 0 decides.

        ``auto`` passes over a damaged one with a warning. Reads all of the checkpoint once, shared among the ranks.

        Raises:
            UserError: the one that was named is absent, damaged or of another run.
        """
        if self.ranks.rank == 0:
            self._remove_leftovers()
        older: Path | None = None
        while self.config.train.resume is not None:
            found, wrong = self._from_rank_0(partial(self._candidate, older))
            if wrong is not None:
                raise UserError(wrong)
            if found is None:
                return None
            contents, wrong = self._open(found)
            if wrong is None:
                assert contents is not None
                self._check(contents.saved)
                self.in_place = found.path.parent == self.root
                self.newest = found.path.name if self.in_place else None
                return contents
            if self.config.train.resume != AUTO:
                raise UserError(wrong)
            self._warn(f"checkpoint {found.path.name} is passed over: {wrong.splitlines()[0]}")
            older = found.path
        return None

    def check_room(self) -> None:
        """Raises UserError where the disk has less room than the run will need."""
        _, wrong = self._from_rank_0(partial(check_room, self.config, self.run, self.steps))
        if wrong is not None:
            raise UserError(wrong)

    def _candidate(self, older: Path | None) -> saved.Saved | None:
        """The checkpoint that was named, or under ``auto`` the newest whole one of this run, below ``older``."""
        path = resume_path(self.config)
        if path is not None:
            return saved.find(Path(path))
        for folder in reversed(saved.folders(self.run)):
            if older is not None and saved.step_of(folder) >= saved.step_of(older):
                continue
            wrong = saved.damage(folder)
            if wrong is None:
                return saved.find(folder)
            self._warn(f"checkpoint {folder.name} is passed over: {wrong}")
        return None

    def _open(self, found: saved.Saved) -> tuple[Contents | None, str | None]:
        """The checkpoint open on every rank, or what is wrong with it on the first that found fault."""
        lacking = [key for key in READ if key not in found.state and found.state.get("format") == saved.FORMAT]
        contents, wrong = None, f"{saved.STATE} lacks {lacking[0]}" if lacking else None
        files = sorted(found.path / name for name in found.state["files"])
        for file in files[self.ranks.rank :: self.ranks.world_size]:
            wrong = wrong or saved.corruption(file)
        try:
            contents = Contents(found)
        except UserError as error:
            wrong = wrong or str(error)
        told: list[str | None] = [None] * self.ranks.world_size
        dist.all_gather_object(told, wrong)
        first = next((words for words in told if words), None)
        if first is not None and str(found.path) not in first:
            first = f"{found.path} is damaged: {first}\nuse another checkpoint"
        return contents, first

    def _check(self, found: saved.Saved) -> None:
        """Raises UserError for a checkpoint that this run cannot go on from; warns of what is not as it was."""
        state, config = found.state, self.config
        saved.check_same(found, config)
        last = min(self.steps, config.train.stop_after or self.steps)
        exports_alone = found.step == self.steps and config.train.resume == AUTO  # it was killed on its last metres
        if found.step >= last and not exports_alone:
            field = "train.stop_after" if last != self.steps else "train.max_steps"
            raise UserError(f"{found.path} is of step {found.step}, and the run ends at step {last}\nraise {field}")
        if state["batch.total"] != self.batch_total:
            self._warn(
                f"batch.total was {state['batch.total']} samples and is {self.batch_total}: the run goes on at sample "
                f"{found.step * self.batch_total} of its order, and not at {found.step * state['batch.total']}"
            )

    def save(self, engine: DeepSpeedEngine, step: int, skips: Skips) -> bool:
        """Saves ``checkpoints/step-NNNNNN`` and removes those that are not to be kept; whether that worked.

        Where it did not, as on a full disk, a warning says so and what was saved before stands.
        """
        name, started = saved.tag(step), time.monotonic()
        building = self.root / f".{name}.saving"
        with self._phase(), _own_writer(engine, self.root.parent) as files:
            engine.save_checkpoint(
                str(self.root),
                tag=building.name,
                save_latest=False,
                exclude_frozen_parameters=self.config.method.name is not Method.full,
            )
        sizes, failure = self._agree(files)
        if failure is None:
            state = self._state(engine, step, skips) | {"files": sizes}
            _, failure = self._from_rank_0(partial(self._publish, building, name, state))
        if failure is not None:
            if self.ranks.rank == 0:
                shutil.rmtree(building, ignore_errors=True)
            stands = f"{self.newest} stands" if self.newest else "there is none yet"
            self._warn(f"checkpoint {name} was not saved: {failure}; {stands}")
            return False
        self.newest = name
        size = sum(sizes.values())
        LOGGER.info("checkpoint %s saved: %.3g GB in %.1f s", name, size / 1e9, time.monotonic() - started)
        return True

    def keep_best(self, engine: DeepSpeedEngine, step: int, skips: Skips, value: float) -> None:
        """Makes the checkpoint of ``step``, which is saved if it is not, the best one by ``checkpoint.best``."""
        name = saved.tag(step)
        if self.newest != name and not self.save(engine, step, skips):
            return
        content = {"tag": name, "score": self.config.checkpoint.best, "value": value, "step": step}
        _, failure = self._from_rank_0(partial(self._mark, content))
        if failure is not None:
            self._warn(f"checkpoints/{saved.BEST} was not written: {failure}")

    def _mark(self, content: dict[str, Any]) -> None:
        write_json(self.root / saved.BEST, content)
        self._rotate(content["step"])

    def _agree(self, files: "FileWriter") -> tuple[dict[str, int], str | None]:
        """Name -> size of every rank's files, and the first failure that any of them met."""
        told: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(told, (files.sizes, files.failure))
        failures = [f"rank {rank}: {failure}" for rank, (_, failure) in enumerate(told) if failure]
        return {name: size for sizes, _ in told for name, size in sizes.items()}, failures[0] if failures else None

    def _publish(self, building: Path, name: str, state: dict[str, Any]) -> None:
        """``state.json`` last, then the name under which the checkpoint is whole; then what is too old goes."""
        for file, size in state["files"].items():
            if not (building / file).is_file() or (building / file).stat().st_size != size:
                raise UserError(f"{building / file} cannot be seen from rank 0: the ranks need a folder that they share")
        write_json(building / saved.STATE, state)
        settle(building)
        target = self.root / name
        if target.exists():
            self._remove(target)
        os.rename(building, target)
        settle(self.root)
        self._rotate(state["step"])

    def _state(self, engine: DeepSpeedEngine, step: int, skips: Skips) -> dict[str, Any]:
        return {
            "format": saved.FORMAT,
            "step": step,
            "applied": skips.applied,
            "skipped": skips.total,
            "skipped_in_a_row": skips.in_a_row,
            "world_size": self.ranks.world_size,
            "zero_stage": zero_stage(engine),
            "precision": self.config.precision.dtype.value,
            "loss_scaler": scaler_state(engine),
            "batch.total": self.batch_total,
            "saved": time.time(),
            **saved.unchanging(self.config),
        }

    def _rotate(self, step: int) -> None:
        """Leaves the newest ``checkpoint.keep`` up to ``step`` and the best one.

        Later ones are those that were passed over as damaged, which may not take the place of one that is whole.
        """
        best = saved.best(self.run)
        done = [folder for folder in saved.folders(self.run) if saved.step_of(folder) <= step]
        kept = {folder.name for folder in done[-self.config.checkpoint.keep :]}
        for folder in done:
            if folder.name not in kept and (best is None or folder.name != best["tag"]):
                self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """Out of sight at once, so that a kill meanwhile leaves no half of a checkpoint to be found."""
        hidden = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """What a run that was killed left of a checkpoint that it was writing or removing."""
        for path in self.root.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _from_rank_0(self, do: Callable[[], Any]) -> tuple[Any, str | None]:
        """What ``do`` returns on rank 0, or what is wrong, on all ranks."""
        told: list[Any] = [None, None]
        if self.ranks.rank == 0:
            try:
                told[0] = do()
            except (OSError, UserError) as error:
                told[1] = str(error)
        dist.broadcast_object_list(told, src=0)
        return told[0], told[1]

    def _warn(self, line: str) -> None:
        if self.ranks.rank == 0:
            LOGGER.warning("%s", line)
            self.writer.note(line, warning=True)

    @contextmanager
    def _phase(self) -> Iterator[None]:
        """Tells the parent that a checkpoint is being saved, and afterwards what went on before."""
        record = self.writer.record
        before = (record.phase, record.done, record.total, record.numbers)
        self.writer.progress(Phase.saving)
        try:
            yield
        finally:
            phase, done, total, numbers = before
            self.writer.progress(phase, done, total, **numbers)


@contextmanager
def _own_writer(engine: DeepSpeedEngine, base: Path) -> Iterator[FileWriter]:
    """DeepSpeed's files through ``FileWriter``, and no copies of its conversion scripts beside them."""
    parts = {"layout": [[astuple(piece) for piece in flat.pieces] for flat in layout(engine)], "shapes": trained(engine.module)}
    files = FileWriter({OWN: parts})
    before = engine.checkpoint_engine
    engine.checkpoint_engine, engine._copy_recovery_script = files, lambda save_path: None
    try:
        yield files
    finally:
        engine.checkpoint_engine = before
        del engine._copy_recovery_script
