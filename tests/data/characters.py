"""A stand-in for the tokenizer and its prompts: one id a character, so that expectations can be read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.config.choices import OnBad, OverLength, Source, Turns
from glmexp.config.data_schema import ColumnsConfig, DataConfig

END = 2


@dataclass(frozen=True)
class Segment:
    ids: list[int]
    learn: bool
    closing: bool = False


class CharacterPrompts:
    """Ids are code points; each message follows the one before, and an answer is closed by ``END``."""

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        closed = "".join(message["content"] + chr(END) * (message["role"] == "assistant") for message in messages)
        return [ord(character) for character in closed]

    def conversation(self, messages: list[dict[str, Any]], turns: Turns = Turns.all) -> list[Segment]:
        segments = []
        for place, message in enumerate(messages):
            answer = message["role"] == "assistant"
            learn = answer and (turns is Turns.all or place == len(messages) - 1)
            segments.append(Segment([ord(character) for character in message["content"]], learn))
            segments += [Segment([END], learn, closing=True)] if answer else []
        return segments


def data_config(path: Path | str | list[Path] | None, **changes: Any) -> DataConfig:
    """A data config that reads ``path``; ``columns`` may be a dict of the names that are set."""
    columns = dict.fromkeys(("prompt", "input", "response", "history", "messages", "system"))
    columns.update(changes.pop("columns", {}))
    values: dict[str, Any] = {
        "source": Source.file,
        "path": [str(item) for item in path] if isinstance(path, list) else path and str(path),
        "columns": ColumnsConfig(**columns),
        "max_length": 512,
        "max_source_length": None,
        "max_target_length": None,
        "over_length": OverLength.cut,
        "on_bad": OnBad.error,
        "limit": None,
    }
    return DataConfig(**{**values, **changes})
