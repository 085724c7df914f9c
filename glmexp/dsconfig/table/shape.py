"""How the table describes a key: its type and range, where it belongs, and whether DeepSpeed uses it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Type = Literal["flag", "whole", "number", "text", "choice", "list", "mapping", "anything"]


@dataclass(frozen=True)
class Key:
    """A key that holds a value."""

    type: Type
    default: Any = None
    """What DeepSpeed takes when the key is left out."""
    null: bool = False
    """null is a value of its own, mostly "not set"."""
    null_is_false: bool = True
    """A flag read with ``dict.get`` takes null for false; where DeepSpeed calculates with it, it does not."""
    choices: tuple[Any, ...] = ()
    """The values of a ``choice``, or of each item of a list."""
    words: tuple[str, ...] = ()
    """Words that are accepted beside values of the type."""
    folded: tuple[str, ...] = ()
    """Further choices, lower-case, that DeepSpeed compares without regard to case."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    items: Type | None = None
    """Type of each item of a list; None takes any."""
    single: bool = False
    """One item may stand for the list of itself."""
    alias: str = ""
    """A second name that DeepSpeed takes for the same key."""
    unused: str = ""
    """Why this DeepSpeed never uses the key; empty for a key that it uses."""


@dataclass(frozen=True)
class Removed:
    """A key of older releases."""

    why: str
    """What became of it and what to write now."""
    gone: str = ""
    """The first release without it, where that is known."""
    works: bool = False
    """Still read, under another name, with a warning."""


@dataclass(frozen=True)
class Section:
    """A key that holds further keys."""

    keys: Mapping[str, "Node"]
    checked: bool = True
    """A pydantic model: DeepSpeed refuses unknown names and values of a wrong type and drops "auto". Otherwise the section
    is read key by key with ``dict.get``, and whatever else is in it is ignored without a word."""
    null: bool = False
    removed: Mapping[str, Removed] = field(default_factory=dict)
    open: bool = False
    """Other names are passed on as they are (to an optimizer's constructor, say) and cannot be judged here."""
    alias: str = ""
    unused: str = ""


@dataclass(frozen=True)
class Variants:
    """A section whose keys depend on a word beside it: ``optimizer.params`` on ``optimizer.type``."""

    by: str
    sections: Mapping[str, Section]
    """The word -> its section."""
    other: Section
    """For any other word."""
    fold: bool = False
    """The words are lower-case here and compared without regard to case."""
    null: bool = False

    def of(self, word: Any) -> Section:
        return self.sections.get(word.lower() if self.fold else word, self.other) if isinstance(word, str) else self.other


Node = Key | Section | Variants


def flag(default: bool | None = False, **more: Any) -> Key:
    return Key("flag", default, null=default is None, **more)


def whole(default: int | None, **more: Any) -> Key:
    """A whole number."""
    return Key("whole", default, null=more.pop("null", default is None), **more)


def number(default: float | None, **more: Any) -> Key:
    return Key("number", default, null=more.pop("null", default is None), **more)


def text(default: str | None = None, **more: Any) -> Key:
    return Key("text", default, null=default is None, **more)


def choice(default: Any, *choices: Any, **more: Any) -> Key:
    return Key("choice", default, null=more.pop("null", default is None), choices=choices, **more)


def listing(default: Any = None, **more: Any) -> Key:
    return Key("list", default, null=more.pop("null", default is None), **more)


def mapping(default: Any = None, **more: Any) -> Key:
    return Key("mapping", default, null=more.pop("null", default is None), **more)


def anything(default: Any = None, **more: Any) -> Key:
    return Key("anything", default, null=True, **more)
