"""The trials that a sweep asks for: each composed, checked and named before the first of them starts."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from glmexp.config.choices import Language, Task
from glmexp.config.compose import Composed
from glmexp.config.errors import UserError
from glmexp.config.rules import warnings
from glmexp.config.wording import from_hydra
from glmexp.dsconfig.examine import examine
from glmexp.sweep.overrides import asked, values_of
from glmexp.trial.config_hash import config_hash
from glmexp.trial.machine import Probe
from glmexp.trial.placement import Placement, resolve
from glmexp.trial.result import versions
from glmexp.trial.tasks import check_inputs

LONGEST_PART = 24
LONGEST_LABEL = 80


@dataclass(frozen=True)
class Job:
    """One trial that can run."""

    number: int
    overrides: tuple[str, ...]
    """What the command line comes to for this trial."""
    label: str
    """The swept values in short, such as ``zero-stage2_micro-4``."""
    composed: Composed
    placement: Placement
    ds_config: dict[str, Any]
    config_hash: str
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the trial's folder."""
        return f"{self.label}-{self.config_hash[:8]}"


@dataclass(frozen=True)
class Invalid:
    """A combination that a rule refuses."""

    number: int
    overrides: tuple[str, ...]
    label: str
    reason: str

    @property
    def name(self) -> str:
        """Name of the trial's folder: without a configuration, the overrides have to tell it apart."""
        digest = hashlib.sha256("\n".join(asked(self.overrides)).encode()).hexdigest()
        return f"{self.label}-{digest[:8]}"


Compose = Callable[[Sequence[str]], Composed]
"""Overrides -> checked configuration; raises UserError or one of Hydra's and OmegaConf's errors."""


def job(
    number: int, overrides: Sequence[str], swept: Iterable[str], compose: Compose, found: Probe, slots: int
) -> Job | Invalid:
    """Composes and checks one trial for this machine.

    Args:
        swept: the keys that differ between the trials.
        found: the machine.
        slots: trials at once, which share its GPUs and cores.
    """
    name = label(overrides, swept)
    try:
        composed = compose(overrides)
        config = composed.config
        check_inputs(config)
        launching = config.task is not Task.check  # a check may be of another machine
        placement = resolve(config, os.environ, share(found, slots, config.launch.ranks), launching=launching)
        ds_config, cautions = examine(config, placement.machine)
        digest = config_hash(config, ds_config, placement, versions())
    except (UserError, OmegaConfBaseException, OSError) as error:
        told = from_hydra(error) if isinstance(error, OmegaConfBaseException) else error
        return Invalid(number, tuple(overrides), name, str(told))
    # The language and the card of a sweep are the report's, so that they have an effect.
    card = replace(config.hardware, gpu_memory_gib=None)
    doubts = (*warnings(replace(config, lang=Language.en, hardware=card), composed.sources), *cautions)
    return Job(number, tuple(overrides), name, composed, placement, ds_config, digest, doubts)


def share(found: Probe, slots: int, ranks: int | None) -> Probe:
    """What one of ``slots`` trials at once has of the machine; a number of ranks that was set counts its GPUs itself."""
    gpus = found.gpus if ranks is not None else found.gpus[: max(1, len(found.gpus) // slots)]
    return replace(found, gpus=gpus, cpus=max(1, found.cpus // slots))


def label(overrides: Iterable[str], swept: Iterable[str]) -> str:
    """The swept values of one trial in letters, digits, dash, dot and underscore."""
    values = values_of(overrides)
    parts = [part(key, values[key]) for key in swept if key in values]
    return "_".join(parts)[:LONGEST_LABEL] or "trial"


def part(key: str, value: str) -> str:
    """``batch.micro=4`` as ``micro-4``; of a path, its last piece."""
    shown = PurePosixPath(value).stem if "/" in value else value
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", shown).strip("-.") or "x"
    return f"{key.rpartition('.')[2].replace('/', '-')}-{safe[:LONGEST_PART]}"
