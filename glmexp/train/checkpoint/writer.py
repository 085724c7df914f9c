"""How DeepSpeed's files reach the disk: with what glmexp adds, for good, and with a failure that no other rank waits for."""

import os
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine


class FileWriter(TorchCheckpointEngine):  # type: ignore[misc]
    """Takes the place of the engine's own while a checkpoint is saved.

    ``engine.save_checkpoint`` meets the other ranks after its files are written: a rank that raised would leave them waiting.
    So a failure is kept here until all of them are through.
    """

    def __init__(self, added: dict[str, Any]) -> None:
        super().__init__()
        self.added = added
        self.sizes: dict[str, int] = {}
        """Name -> bytes of each file that this rank wrote."""
        self.failure: str | None = None

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        """Writes one file, with ``added`` beside DeepSpeed's keys. PyTorch puts a CRC-32 of each tensor into it."""
        file = Path(path)
        try:
            torch.save({**state_dict, **self.added}, file)
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
            self.sizes[file.name] = file.stat().st_size
        except (OSError, RuntimeError) as error:  # what PyTorch's C++ side meets on the disk is a RuntimeError
            self.failure = self.failure or _words(error, file)


def _words(error: Exception, file: Path) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{file.name} could not be written: {error.strerror}"
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{file.name} could not be written{_free(file.parent)}: {first[:160]}"


def _free(folder: Path) -> str:
    """PyTorch does not say what the system told it; a full disk is the likeliest cause."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    return f" ({disk.f_bavail * disk.f_frsize / 1e9:.2f} GB are free there)"


def settle(folder: Path) -> None:
    """Makes the names in a folder last, should the machine go down."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
