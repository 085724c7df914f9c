"""A disk that is full for a while ends no run: what it has no room for waits."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from glmexp.train.metrics.figures import MetricsFile, StepFigures
from glmexp.trial import record
from glmexp.trial.record import Phase, RankWriter, State, read_rank, write_json


class Disk:
    """Takes so many bytes."""

    name = "metrics.jsonl"

    def __init__(self, room: int) -> None:
        self.room = room
        self.content = b""

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: self.room]
        self.content += taken
        self.room -= len(taken)
        return len(taken)

    def close(self) -> None:
        pass


def figures(step: int) -> StepFigures:
    return StepFigures(step, 1.0, 1e-3, 0.5, False, 1.0, 10, 10.0, None, 1.0)


def test_lines_wait_for_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MetricsFile(tmp_path / "metrics.jsonl", 0) as metrics:
        disk = Disk(100)
        metrics._handle = disk  # type: ignore[assignment]
        metrics.append(figures(1))
        metrics.append(figures(2))
        assert disk.content.count(b"\n") == 0
        assert "No space left on device; 2 lines wait" in caplog.messages[-1]
        disk.room = 10_000
        metrics.append(figures(3))
        assert [json.loads(line)["step"] for line in disk.content.splitlines()] == [1, 2, 3]
        disk.room = 0
        metrics.append(figures(4))
        disk.room = 10_000
    assert json.loads(disk.content.splitlines()[-1])["step"] == 4


def test_progress_may_be_lost_and_an_end_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RankWriter(tmp_path, 0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(record.os, "replace", full)
        writer.progress(Phase.training, 1, 3)
        writer.note("cut", warning=True)
        with pytest.raises(OSError, match=r"rank0\.json"):
            writer.finish(State.complete)
        with pytest.raises(OSError, match=r"No space left on device: '.*result\.json'"):
            write_json(tmp_path / "result.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.json"]
    writer.progress(Phase.training, 2, 3)
    writer.write()
    found = read_rank(tmp_path, 0)
    assert found is not None
    assert found.warnings == ["cut"]
