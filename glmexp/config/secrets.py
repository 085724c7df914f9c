"""Secrets that a text would carry into files, dashboards or a terminal."""

import re
from collections.abc import Sequence

from glmexp.config.errors import UserError

SECRET = re.compile(r"oc\.env\s*:\s*([^,}]*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL)[^,}]*)", re.IGNORECASE)
CREDENTIALS = re.compile(r"(\w+://)[^/\s@]+@")


def without_credentials(text: str) -> str:
    """A text whose URLs lack user and password."""
    return CREDENTIALS.sub(r"\1...@", text)


def refuse_secrets(texts: Sequence[str]) -> None:
    """Raises UserError if a text holds a URL with credentials, or interpolates a variable that holds a secret by its name."""
    for text in texts:
        if found := CREDENTIALS.search(text):
            raise UserError(
                f"{found[1]}...@: the configuration is written to files and dashboards, so a URL in it holds no credentials\n"
                "leave them out of the URL; hubs take theirs from HF_TOKEN or a login"
            )
        if found := SECRET.search(text):
            raise UserError(
                f"${{oc.env:{found[1].strip()}}}: the configuration is written to files and dashboards, so it holds no secret\n"
                "give the value itself in a variable whose name has no KEY, TOKEN, SECRET or PASSWORD"
            )
