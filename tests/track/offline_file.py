"""Reads back what W&B recorded offline.

The file is a log in LevelDB's format: a 7-byte header, then blocks of 32 KiB with records of ``crc32, length, type`` and the
payload, which may be split into a first, middle and last part. Each payload is wandb's ``Record`` protobuf message.
"""

import json
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER_BYTES = 7
BLOCK_BYTES = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    name: str = ""
    project: str = ""
    group: str = ""
    host: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def payloads(path: Path) -> Iterator[bytes]:
    """Whole records; a tail cut off by a kill ends the iteration."""
    content = path.read_bytes()
    assert content[:4] == b":W&B", content[:HEADER_BYTES]
    at, parts = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, at)
        data = content[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if kind == 0 or len(data) < length:
            return
        assert zlib.crc32(data, zlib.crc32(bytes([kind]))) == checksum, f"damaged at byte {at}"
        at += HEADER_BYTES + length
        parts = data if kind in (FULL, FIRST) else parts + data
        if kind in (FULL, LAST):
            yield parts


def read_offline(path: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    run = OfflineRun()
    for payload in payloads(path):
        record = Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            told = record.run
            run.name, run.project, run.group, run.host = told.display_name, told.project, told.run_group, told.host
            run.tags = list(told.tags)
            run.config.update(items(told.config.update))
        elif kind == "config":
            run.config.update(items(record.config.update))
        elif kind == "history":
            run.history.append({**items(record.history.item), "_step": record.history.step.num})
        elif kind == "summary":
            run.summary.update(items(record.summary.update))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def items(told: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in told}


def once_closed(path: Path) -> OfflineRun:
    """wandb's own process closes the file a moment after ``finish``, at the latest when this process ends."""
    until = time.monotonic() + 10
    while (run := read_offline(path)).exit_code is None and time.monotonic() < until:
        time.sleep(0.02)
    return run
