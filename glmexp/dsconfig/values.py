"""Whether a value is one that DeepSpeed takes for a key: its type, its range, and what DeepSpeed converts.

Pydantic sections convert (5e8 to a whole number, "2" to 2, "yes" to true); the others use the value as it is.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from glmexp.config.errors import nearest
from glmexp.config.secrets import without_credentials
from glmexp.dsconfig.findings import Severity
from glmexp.dsconfig.table.shape import Key

Verdict = tuple[Severity, str]

TRUE_WORDS, FALSE_WORDS = ("1", "on", "t", "true", "y", "yes"), ("0", "off", "f", "false", "n", "no")
LIKE = 0.66
"""Likeness from which a word is worth a guess."""
LARGEST = 2**63
"""Pydantic turns no float beyond it into a whole number."""
NOUNS = {
    "flag": "true or false",
    "whole": "a whole number",
    "number": "a number",
    "text": "text",
    "list": "a list",
    "mapping": "an object",
}


def judge(key: Key, value: Any, checked: bool) -> Verdict | None:
    """What is wrong with a value, None where nothing is; ``checked`` says that the key's section is pydantic's."""
    if value is None:
        return _judge_null(key, checked)
    if isinstance(value, str) and value in key.words:
        return None
    if key.type == "flag":
        return _judge_flag(value, checked)
    if key.type in ("whole", "number"):
        return _judge_number(key, value, checked)
    if key.type == "choice":
        return _judge_choice(key, value)
    if key.type == "list":
        return _judge_list(key, value)
    if key.type == "text" and not isinstance(value, str):
        return Severity.error, f"must be text, got {shown(value)}"
    if key.type == "mapping" and not isinstance(value, Mapping):
        return Severity.error, f"must be an object, got {shown(value)}"
    return None


def shown(value: Any) -> str:
    """A value as JSON, cut to what fits a line; nothing in it moves the cursor, fails to print or opens an account."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text = text if text.isprintable() else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    text = without_credentials(text)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _judge_null(key: Key, checked: bool) -> Verdict | None:
    if key.null or (not checked and key.type == "flag" and not key.default and key.null_is_false):
        return None
    return Severity.error, f"null is no value here; leave the key out to get {shown(key.default)}"


def _judge_flag(value: Any, checked: bool) -> Verdict | None:
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return None
    if isinstance(value, str):
        if checked and value.lower() in (*TRUE_WORDS, *FALSE_WORDS):
            meant = "true" if value.lower() in TRUE_WORDS else "false"
            return Severity.warning, f"{shown(value)} is text that DeepSpeed reads as {meant}; write {meant} without quotes"
        if not checked:
            return Severity.error, f"{shown(value)} is text, which counts as true whatever it says; write true or false"
    return Severity.error, f"must be true or false, got {shown(value)}"


def _judge_number(key: Key, value: Any, checked: bool) -> Verdict | None:
    noun = NOUNS[key.type]
    if isinstance(value, bool):
        return Severity.error, f"must be {noun}, got {shown(value)}, which Python counts as {int(value)}; write the number"
    if isinstance(value, str):
        return _judge_numeral(key, value, checked)
    if not isinstance(value, int | float):
        return Severity.error, f"must be {noun}, got {shown(value)}"
    if not _finite(value):
        return Severity.error, f"must be {noun}, got {shown(value)}"
    if key.type == "whole" and isinstance(value, float):
        if not value.is_integer() or abs(value) >= LARGEST:
            return Severity.error, f"must be a whole number, got {shown(value)}"
        if not checked:
            return _judge_range(key, value) or (
                Severity.warning,
                f"{value} stays a number with a decimal point here; write {value:.0f}",
            )
    return _judge_range(key, value)


def _judge_numeral(key: Key, value: str, checked: bool) -> Verdict | None:
    """A number written as text."""
    pattern = r"\s*[+-]?\d+(_\d+)*(\.0*)?\s*" if key.type == "whole" else r"\s*[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
    if checked and not key.words and re.fullmatch(pattern, value, re.ASCII) and len(value) < 300:
        number = float(value) if key.type == "number" else int(value.replace("_", "").partition(".")[0])
        return _judge_range(key, number) or (
            Severity.warning,
            f"{shown(value)} is text that DeepSpeed reads as a number; write it without quotes",
        )
    close = nearest(value, key.words) if key.words else None
    hint = f"; did you mean {shown(close)}?" if close else "; write it without quotes" if _numeric(value) else ""
    return Severity.error, f"must be {NOUNS[key.type]}, got the text {shown(value)}{hint}"


def _numeric(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _judge_range(key: Key, value: float) -> Verdict | None:
    limits = (
        ("at least", key.least, key.least is None or value >= key.least),
        ("greater than", key.above, key.above is None or value > key.above),
        ("at most", key.most, key.most is None or value <= key.most),
        ("less than", key.below, key.below is None or value < key.below),
    )
    if all(holds for _, _, holds in limits):
        return None
    words = " and ".join(f"{word} {limit:g}" for word, limit, _ in limits if limit is not None)
    return Severity.error, f"must be {words}, got {shown(value)}"


def _judge_choice(key: Key, value: Any) -> Verdict | None:
    if value in key.choices and type(value) in {type(choice) for choice in key.choices}:
        return None
    if isinstance(value, str) and value.lower() in key.folded:
        return None
    known = [str(choice) for choice in (*key.choices, *key.folded)]
    close = nearest(value, known, LIKE) if isinstance(value, str) else None
    if not known:
        return Severity.error, f"must be null, got {shown(value)}"
    hint = f"; did you mean {close}?" if close else ""
    listed = ", ".join(known) if len(known) <= 8 or not close else ""
    return Severity.error, f"{shown(value)} is not a value of this key{hint or f'; known: {listed}'}"


def _judge_list(key: Key, value: Any) -> Verdict | None:
    if key.single and isinstance(value, str):
        return None
    if not isinstance(value, list | tuple):
        return Severity.error, f"must be a list, got {shown(value)}"
    if key.items is None and not key.choices:
        return None
    item = Key(key.items or "choice", choices=key.choices)
    for each in value:
        verdict = judge(item, each, checked=False)
        if verdict is not None and verdict[0] is Severity.error:
            return Severity.error, f"an item {verdict[1]}"
    return None
