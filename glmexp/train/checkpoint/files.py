"""The tensors of a checkpoint, by name and whole, whatever ZeRO stage and number of ranks wrote it.

Nothing of a file is run: weights only, besides a few named classes of DeepSpeed that hold numbers. The files are mapped into
memory, so that what is not asked for is not read.
"""

import importlib
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from glmexp.config.errors import UserError
from glmexp.train.checkpoint.layout import Flat, Piece
from glmexp.trial.saved import Saved, find

OWN = "glmexp"
"""Key of what is added to DeepSpeed's files: ``layout`` and ``shapes``."""
SCALARS = ("step",)
"""What an optimizer counts for each of its tensors; one number for the whole run here."""


def trained_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Name in the model -> whole tensor on the host of each parameter that was trained: the fp32 master weights.

    Args:
        checkpoint: a checkpoint's folder, or a run's for its newest.

    Raises:
        UserError: there is none, or it is damaged.
    """
    contents = Contents(find(checkpoint))
    return {name: contents.read(name, 0, math.prod(shape)).reshape(shape).clone() for name, shape in contents.shapes.items()}


class Contents:
    """One checkpoint, open for reading. Raises UserError for a file that cannot be read or holds more than weights."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Name -> whole shape of each trained parameter."""
        self._flats: list[tuple[Flat, dict[str, Any]]] = []
        self._places: dict[str, list[tuple[Piece, int]]] = defaultdict(list)
        for file in sorted(saved.path.glob("*.pt")):
            content = load(file)
            self.shapes.update({name: tuple(shape) for name, shape in content[OWN]["shapes"].items()})
            for flat, state in _flats(content):
                for piece in flat.pieces:
                    self._places[piece.name].append((piece, len(self._flats)))
                self._flats.append((flat, state))

    def keys(self, name: str) -> list[str]:
        """What the optimizer keeps for each element of a parameter, such as exp_avg; empty before the first step."""
        found = self._state(name)
        return [key for key, value in found.items() if torch.is_tensor(value) and value.dim() > 0]

    def count(self, name: str) -> int | None:
        """The updates that the optimizer has counted for a parameter; None if it counts none."""
        found = self._state(name)
        return next((int(found[key]) for key in SCALARS if key in found), None)

    def read(self, name: str, start: int, stop: int, key: str | None = None) -> torch.Tensor:
        """Elements [start, stop) of a parameter, flat, or of what the optimizer keeps under ``key``."""
        parts, reached = [], start
        for piece, index in sorted(self._places[name], key=lambda place: place[0].start):
            if piece.start <= reached < min(piece.stop, stop):
                flat, state = self._flats[index]
                source = (flat.master if key is None else state[key]).reshape(-1)
                until = min(piece.stop, stop)
                parts.append(source[piece.at + reached - piece.start : piece.at + until - piece.start])
                reached = until
        if reached != stop:
            raise UserError(f"{self.saved.path} is damaged: {name} ends at {reached} of {stop}\nuse another checkpoint")
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _state(self, name: str) -> dict[str, Any]:
        return self._flats[self._places[name][0][1]][1]


def load(file: Path) -> dict[str, Any]:
    """One file, weights only, mapped into memory. Raises UserError."""
    try:
        with torch.serialization.safe_globals(_known_classes()):
            content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        if not isinstance(content, dict) or OWN not in content:
            raise UserError(f"{file} is no part of a checkpoint of glmexp\ngive a checkpoint that glmexp has written")
        return content
    except UnpicklingError as error:
        reason = next((line.strip() for line in str(error).splitlines() if "GLOBAL" in line or "Unsupported" in line), "")
        raise UserError(
            f"{file} holds more than weights, and nothing of it was run: {reason[:200] or type(error).__name__}\n"
            "somebody has changed it: use another checkpoint"
        ) from error
    except (OSError, RuntimeError, EOFError, KeyError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} cannot be read: {str(error).splitlines()[0][:200]}\nuse another checkpoint") from error


def _known_classes() -> list[Any]:
    """Classes of DeepSpeed's checkpoints that are no tensors: plain numbers each."""
    # The attribute of this name on deepspeed.utils is another thing.
    fragments = importlib.import_module("deepspeed.utils.tensor_fragment")
    scalers = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")
    stages = importlib.import_module("deepspeed.runtime.zero.config")
    return [fragments.fragment_address, scalers.LossScaler, scalers.DynamicLossScaler, stages.ZeroStageEnum]


def _flats(content: dict[str, Any]) -> Iterator[tuple[Flat, dict[str, Any]]]:
    """The optimizer's tensors in one file, with the state of each."""
    optimizer = content.get("optimizer_state_dict") or content.get("optimizer")
    if optimizer is None:  # stages 1 to 3 have the compute weights in files of their own
        return
    base = optimizer.get("base_optimizer_state") or optimizer.get("optimizer_state_dict") or optimizer
    masters = _masters(content, optimizer)
    for index, pieces in enumerate(content[OWN]["layout"]):
        flat = Flat(masters[index], [Piece(*piece) for piece in pieces])
        yield flat, base["state"].get(index, {})


def _masters(content: dict[str, Any], optimizer: dict[str, Any]) -> list[torch.Tensor]:
    """The master weights, under the name that each of DeepSpeed's optimizers gives them."""
    for key in ("single_partition_of_fp32_groups", "fp32_flat_groups", "fp32_groups_flat"):
        if key in optimizer:
            return list(optimizer[key])
    if "fp32_groups" in optimizer:
        return [tensor for group in optimizer["fp32_groups"] for tensor in group]
    return [content["module"][pieces[0][0]] for pieces in content[OWN]["layout"]]  # fp32 at stage 0: the weights themselves
