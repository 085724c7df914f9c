import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes samples as JSON lines (a str or bytes is written as it is) and gives the path."""

    def to_file(content: Any, name: str = "train.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file
