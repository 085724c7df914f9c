"""Findings about single keys: unknown, in the wrong place, removed, of the wrong type or range, "auto", never used."""

from collections.abc import Iterator, Mapping
from typing import Any

from glmexp.config.errors import nearest
from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation
from glmexp.dsconfig.table import DESCRIBES, REMARK, SYNONYMS, TOP, Key, Node, Removed, Section, Variants, places
from glmexp.dsconfig.table.optimizer import REMOVED_TYPES
from glmexp.dsconfig.table.precision import BF16
from glmexp.dsconfig.table.trainer import FILLED, OVERWRITTEN
from glmexp.dsconfig.values import judge, shown

AUTO = "auto"
MOST_PLACES = 3
ALMOST_SURE = 0.9
"""Likeness from which a key is a misspelling of its neighbour, even if another section has a key of that name."""
LIKE = 0.66
"""Likeness from which a name of the same section is worth a guess; every word shares some letters with one."""
LIKE_ELSEWHERE = 0.85
PASSED_ON = Key("anything")
"""A value that goes on as it is, to a constructor that the table does not know."""


def findings(config: Mapping[str, Any], situation: Situation) -> Iterator[Finding]:
    """What is wrong with each key by itself, in the order of the config."""
    yield from _section(TOP, config, "", situation)


def _section(section: Section, values: Mapping[str, Any], prefix: str, situation: Situation, of: str = "") -> Iterator[Finding]:
    """``of`` is the type that decides on the section's keys: of an optimizer or a scheduler."""
    known = _named(section)
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name in section.removed:
            yield from _removed(key, value, section.removed[name], values, situation)
        elif name in known:
            node = known[name]
            if not isinstance(node, Variants):
                yield from _known(key, node, value, section, situation)
                continue
            word = values.get(node.by)
            yield from _known(key, node.of(word), value, section, situation, shown(word)[1:-1] if word else "")
        elif not section.open:
            yield _unknown(str(name), section, prefix, of)
        elif isinstance(value, str) and value == AUTO:
            yield _auto(key, PASSED_ON, section.checked, situation)


def _named(section: Section) -> dict[str, Node]:
    """The keys of a section under each of their names."""
    aliases = {node.alias: node for node in section.keys.values() if isinstance(node, Key | Section) and node.alias}
    return {**section.keys, **aliases}


def _known(key: str, node: Key | Section, value: Any, within: Section, situation: Situation, of: str = "") -> Iterator[Finding]:
    if situation.reader == "hf" and key in OVERWRITTEN:
        return  # a rule about the Trainer tells it, whatever the value
    words = (*node.words, *node.choices) if isinstance(node, Key) else ()
    if isinstance(value, str) and value == AUTO and AUTO not in words:
        yield _auto(key, node, within.checked, situation)
    elif key == "zero_optimization" and isinstance(value, bool):
        message = f'{shown(value)} is the form of the first releases; write {{"stage": {int(value)}}}, as which it is read'
        yield Finding(key, Kind.removed, Severity.warning, message)
    elif isinstance(node, Key):
        yield from _value(key, node, value, within)
    elif isinstance(value, Mapping):
        yield from _section(node, value, f"{key}.", situation, of)
    elif value is not None or not node.null:
        yield Finding(key, Kind.value, Severity.error, f"must be an object with keys of its own, got {shown(value)}")


def _value(key: str, node: Key, value: Any, within: Section) -> Iterator[Finding]:
    if key == "optimizer.type" and isinstance(value, str) and value.lower() in REMOVED_TYPES:
        yield _gone(key, REMOVED_TYPES[value.lower()], Severity.error)
    elif isinstance(value, list | tuple) and AUTO in value and AUTO not in node.choices:
        yield _auto(key, node, within.checked, Situation())  # the Trainer replaces whole values only
    elif verdict := judge(node, value, within.checked):
        yield Finding(key, Kind.value, *verdict)
    elif node.unused and value is not None:
        yield Finding(key, Kind.no_effect, Severity.info, f"DeepSpeed {DESCRIBES} does not use it: {node.unused}")


def _auto(key: str, node: Node, checked: bool, situation: Situation) -> Finding:
    if situation.reader == "hf" and key in FILLED:
        return Finding(key, Kind.auto, Severity.info, f"the Trainer fills it in: {FILLED[key]}")
    default = shown(node.default) if isinstance(node, Key) else "its defaults"
    what = f"DeepSpeed drops it and takes {default}" if checked else "DeepSpeed keeps it as a word that it cannot use"
    whose = (
        "neither the Trainer nor accelerate fills it in here, and"
        if situation.reader == "hf"
        else "only the HF Trainer fills it in;"
    )
    return Finding(key, Kind.auto, Severity.error, f'"auto": {whose} {what}; write the value')


def _removed(key: str, value: Any, entry: Removed, beside: Mapping[str, Any], situation: Situation) -> Iterator[Finding]:
    if key == "bfloat16":
        if beside.get("bf16") is not None:
            yield Finding(key, Kind.removed, Severity.error, "an old name of bf16, and ignored beside it; leave it out")
            return
        yield _gone(key, entry, Severity.warning)
        if isinstance(value, Mapping):
            yield from _section(BF16, value, f"{key}.", situation)
        return
    if entry.works and value is None:
        return  # null asks for nothing
    if entry.works and value is False:
        yield Finding(key, Kind.removed, Severity.warning, "an old name, and false asks for nothing; leave it out")
        return
    yield _gone(key, entry, Severity.warning if entry.works else Severity.error)


def _gone(key: str, entry: Removed, severity: Severity) -> Finding:
    if entry.works:
        return Finding(key, Kind.removed, severity, f"an old name that still works; {entry.why}")
    when = f"gone since DeepSpeed {entry.gone}" if entry.gone else "has no effect any more"
    return Finding(key, Kind.removed, severity, f"{when}; {entry.why}")


def _unknown(name: str, section: Section, prefix: str, of: str) -> Finding:
    """A key that its section does not have: it belongs elsewhere, or is a misspelling or another program's word.

    ``of`` is the type whose parameters the section holds, if it holds any.
    """
    key, here = f"{prefix}{name}", prefix.removesuffix(".")
    if not here and REMARK.fullmatch(name):
        return Finding(key, Kind.unknown, Severity.info, "a remark, as it seems: DeepSpeed ignores it")
    meant = name in SYNONYMS or nearest(name, _named(section), ALMOST_SURE)
    if homes := [] if meant else _homes(name, here):
        fate = "DeepSpeed refuses it here" if section.checked else "DeepSpeed does not read it here"
        message = f"{fate}; it belongs to {_listed(name, homes)}: move it, or leave it out"
        return Finding(key, Kind.misplaced, Severity.error, message, _dotted(name, homes))
    if of:
        fate = f"{of} has no parameter {shown(name)[1:-1]}"
    else:
        fate = "no such key, " + ("DeepSpeed refuses it" if section.checked else "DeepSpeed ignores it")
    close = _meant(name.lower().replace("-", "_"), section, here)
    if close is None:
        return Finding(key, Kind.unknown, Severity.error, f"{fate}; leave it out")
    own = close in _named(section)
    homes = [here] if own else _homes(close, here)
    likely = (close if of or not here else f"{here}.{close}") if own else _listed(close, homes)
    hint = f"did you mean {likely}?" if homes else "leave it out"
    return Finding(key, Kind.unknown, Severity.error, f"{fate}; {hint}", _dotted(close, homes))


def _dotted(name: str, homes: list[str]) -> tuple[str, ...]:
    return tuple(f"{home}.{name}" if home else name for home in homes)


def _meant(name: str, section: Section, here: str) -> str | None:
    """What an unknown key most likely stands for: a misspelling first, then a key of another section, then a likeness."""
    known = _named(section)
    if found := SYNONYMS.get(name) or nearest(name, known, ALMOST_SURE):
        return found
    return name if _homes(name, here) else nearest(name, places(), LIKE_ELSEWHERE) or nearest(name, known, LIKE)


def _listed(name: str, homes: list[str]) -> str:
    return " or ".join(f"{home}.{name}" if home else f"{name} at the top level" for home in homes)


def _homes(name: str, here: str) -> list[str]:
    """The sections that have a key of this name and are fewest steps away; none if there are too many to choose from."""
    path = here.split(".") if here else []

    def steps(section: str) -> int:
        other = section.split(".") if section else []
        common = next((i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), min(len(path), len(other)))
        return len(path) + len(other) - 2 * common

    found = [section for section in places().get(name, []) if section != here]
    shortest = min((steps(section) for section in found), default=0)
    near = [section for section in found if steps(section) == shortest]
    return near if len(near) <= MOST_PLACES else []
