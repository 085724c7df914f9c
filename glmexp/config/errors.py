"""What a user got wrong, said once: the only exception that ends a run with exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches

USER_ERROR = 2
"""Exit code of a run that a UserError ended."""


class UserError(ValueError):
    """Something the user can mend: the message names the key, its value and the next move in at most six lines."""


def missing_package(setting: str, package: str, install: str, otherwise: str) -> UserError:
    """For a package that few need and that ``setting`` asks for: ``install`` is what pip is told, ``otherwise`` the way out."""
    found = f"{setting}: the package {package} is not installed."
    return UserError(f"{found}\nInstall it with `pip install {install}`, or {otherwise}.")


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name most like ``word``, or None if nothing comes close."""
    found = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None
