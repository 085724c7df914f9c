"""What the dashboards with a server have in common before a run: their package, a key, online or not."""

import importlib.util

from glmexp.config.choices import TrackerMode
from glmexp.config.errors import UserError, missing_package
from glmexp.config.schema import TrackerConfig

WITHOUT = "choose tracker=none (metrics.jsonl is always written)"


def refuse_missing(package: str, install: str) -> None:
    """Raises UserError if the tracker's package, which is called as the tracker is, is not installed; imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise missing_package(f"tracker={package}", package, install, WITHOUT)


def refuse_without_key(config: TrackerConfig, has_key: bool, where: str, command: str) -> None:
    """Raises UserError if ``tracker.mode=online`` has no key; ``where`` says which key was looked for where."""
    if config.mode is TrackerMode.online and not has_key:
        raise UserError(
            f"tracker.mode=online: no {where}.\n"
            f"Log in once with `{command} login`, or choose tracker.mode=offline and run `{command} sync` later."
        )


def goes_offline(config: TrackerConfig, has_key: bool) -> bool:
    """Whether nothing but the lack of a key decides that the run is recorded offline."""
    return config.mode in (None, TrackerMode.auto) and not has_key


def goes_online(config: TrackerConfig, has_key: bool, allowed: bool) -> bool:
    """Whether the run goes to the server: as asked, else (auto) if there is a key and the environment has ``allowed`` it."""
    if config.mode in (None, TrackerMode.auto):
        return has_key and allowed
    return config.mode is TrackerMode.online
