"""Jobs and results made up, and a main loop that runs them on a machine made up."""

import functools
import hashlib
from dataclasses import replace

from glmexp.config.compose import Composed, compose
from glmexp.dsconfig.machine import Machine
from glmexp.sweep.jobs import Job
from glmexp.sweep.search import Skip
from glmexp.trial.placement import Placement
from glmexp.trial.record import State
from glmexp.trial.result import Result


@functools.cache
def base():
    return compose(["task=measure"]).config


def config_with(changes):
    config = base()
    for key, value in changes.items():
        group, _, field = key.partition(".")
        config = replace(config, **{group: replace(getattr(config, group), **{field: value}) if field else value})
    return config


def make_job(number=0, changes=None, device="gpu", ranks=1, overrides=None):
    """A job whose configuration differs from the shipped one in ``changes`` (dotted key -> value)."""
    changes = changes or {}
    config = config_with(changes)
    digest = hashlib.sha256(repr((config, device, ranks)).encode()).hexdigest()[:16]
    words = {key: getattr(value, "value", value) for key, value in changes.items()}
    return Job(
        number,
        tuple(overrides if overrides is not None else (f"{key}={value}" for key, value in words.items())),
        "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in words.items()) or "trial",
        Composed(config, {}),
        Placement(Machine(ranks, device), ranks),
        {},
        digest,
    )


def make_result(state=State.complete, speed=None, gib=None, host=None):
    return Result(
        state=state,
        reason="",
        overrides=[],
        config_hash="0" * 16,
        world_size=1,
        metrics={"tokens_per_second": speed, "peak_allocated_gib": gib, "host_peak_gib": host},
        predicted=None,
        versions={},
        device={},
        times={},
    )


def drive(search, run, slots=1, pick=lambda running: 0):
    """Runs a search to its end as the main loop does: the jobs that ran with their results, and the skips.

    Args:
        run: job -> result.
        pick: which of the running jobs ends next (an index), so that results may come late.
    """
    ran, skipped, running = [], [], []
    while True:
        while len(running) < slots:
            step = search.ask()
            if step is None:
                break
            if isinstance(step, Skip):
                skipped.append(step)
            else:
                running.append(step)
        if not running:
            assert search.done
            return ran, skipped
        job = running.pop(pick(running))
        result = run(job)
        ran.append((job, result))
        search.tell(job, result)
