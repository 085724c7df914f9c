"""Secrets kept out of files: by the name of an environment variable, by its value, and in URLs."""

import re
from collections.abc import Mapping, Sequence

from glmexp.config.errors import UserError

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
HARMLESS = {"TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH"}
NEEDED_BY_RANKS = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN"}
"""The keys to gated models: a rank fetches them."""

URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
SHORTEST_SECRET = 6
"""A shorter value, such as ``1`` or ``true``, would also be found in text that has nothing to do with it."""
HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether a variable of this name is taken to hold a secret."""
    return bool(SECRET_NAME.search(name)) and name not in HARMLESS


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank: what trains needs no key but those that open a model's page."""
    return {name: value for name, value in environ.items() if not is_secret(name) or name in NEEDED_BY_RANKS}


def secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Value -> variable, of the values that are looked for in texts; the longest first."""
    found = {value: name for name, value in environ.items() if is_secret(name) and _may_be_found(name, value)}
    return dict(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))


def _may_be_found(name: str, value: str) -> bool:
    """Whether a value in a text is that secret: MAX_TOKENS=131072 and KEY_FILE=/home/me/key stand for nothing secret."""
    plain = value.isdecimal() or name.upper().endswith(("_PATH", "_FILE", "_DIR"))
    return len(value) >= SHORTEST_SECRET and not plain


def redact(text: str, environ: Mapping[str, str]) -> str:
    """``text`` without the values of secret variables and without user and password in URLs."""
    text = URL_CREDENTIALS.sub(HIDDEN, text)
    for value in secrets(environ):
        text = text.replace(value, HIDDEN)
    return text


def refuse_secret_values(overrides: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raises UserError for an override with the value of a secret variable: it would be in files, names and dashboards."""
    for override in overrides:
        name = next((name for value, name in secrets(environ).items() if value in override), None)
        if name is not None:
            key = redact(override, environ).partition("=")[0]
            raise UserError(
                f"{key}=...: holds the value of {name}, and overrides are written to files and dashboards\n"
                f"give it another way; if it is no secret, call the command with `env -u {name}`"
            )
