"""Which fields of ``tracker`` each dashboard has a place for."""

from collections.abc import Iterator

from glmexp.config.choices import TrackerName
from glmexp.config.schema import TrackerConfig

FIELDS = {
    TrackerName.none: (),
    TrackerName.tensorboard: (),
    TrackerName.swanlab: ("mode", "project", "entity", "group", "run_name", "tags"),
    TrackerName.wandb: ("mode", "project", "entity", "group", "run_name", "tags", "workspace"),
}
"""Tracker -> the fields that it uses. TensorBoard reads folders: a run is called as its folder is."""


def contradictions(config: TrackerConfig) -> Iterator[str]:
    """One line for each field that is set and has no effect with this tracker."""
    for field in FIELDS[TrackerName.wandb]:
        if field not in FIELDS[config.name] and getattr(config, field):
            others = [f"tracker={name.value}" for name in reversed(FIELDS) if field in FIELDS[name]]
            yield f"tracker.{field} has no effect with tracker={config.name.value}; use {' or '.join(others)}"
