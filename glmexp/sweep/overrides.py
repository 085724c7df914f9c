"""What the overrides of a trial say: key by key, and which keys differ between the trials of a sweep."""

from collections.abc import Iterable, Mapping, Sequence

OF_THE_SWEEP = ("sweep", "tracker", "lang")
"""Groups that are of the sweep as a whole: none of its trials is another one for them."""


def values_of(overrides: Iterable[str]) -> dict[str, str]:
    """Key -> value of overrides as ``key=value``, ``+key=value`` or ``~key``; the last one of a key stands."""
    return {key.lstrip("+~"): value for key, _, value in (str(text).partition("=") for text in overrides)}


def is_of_the_sweep(key: str) -> bool:
    return key.split(".")[0] in OF_THE_SWEEP


def asked(overrides: Iterable[str]) -> list[str]:
    """The overrides that say what a trial is, in an order of their own."""
    return sorted(text for text in overrides if not is_of_the_sweep(next(iter(values_of([text])))))


def swept_keys(trials: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys that do not have the same value in all trials, in order of appearance; ``trials`` come from ``values_of``."""
    return [key for key in dict.fromkeys(key for one in trials for key in one) if len({one.get(key) for one in trials}) > 1]
