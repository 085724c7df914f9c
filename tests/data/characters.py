"""A stand-in for the tokenizer and its prompts: one id a character, so that expectations can be read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.config.choices import OnBad, OverLength, Source
from glmexp.config.data_schema import ColumnsConfig, DataConfig

END = 2


@dataclass(frozen=True)
class Segment:
    ids: list[int]
    learn: bool
    closing: bool = False


class CharacterPrompts:
    """Ids are code points; only the last answer is learnt, closed by ``END``."""

    def conversation(self, messages: list[dict[str, Any]]) -> list[Segment]:
        prompt = "".join(message["content"] for message in messages[:-1])
        return [
            Segment([ord(character) for character in prompt], False),
            Segment([ord(character) for character in messages[-1]["content"]], True),
            Segment([END], True, closing=True),
        ]


def data_config(path: Path | str | None, **changes: Any) -> DataConfig:
    """A data config that reads ``path``; ``columns`` may be a dict of the names that are set."""
    columns = dict.fromkeys(("prompt", "input", "response", "history", "messages", "system"))
    columns.update(changes.pop("columns", {}))
    values: dict[str, Any] = {
        "source": Source.file,
        "path": None if path is None else str(path),
        "columns": ColumnsConfig(**columns),
        "max_length": 512,
        "max_source_length": None,
        "max_target_length": None,
        "over_length": OverLength.cut,
        "on_bad": OnBad.error,
        "limit": None,
    }
    return DataConfig(**{**values, **changes})
