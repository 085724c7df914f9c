"""Which weight files a folder holds, and what is in them, from headers only (no torch, no tensor is read)."""

import json
from dataclasses import dataclass
from pathlib import Path

from glmexp.config.errors import UserError

LFS_POINTER = b"version https://git-lfs"
# Order of preference, as transformers' own: safetensors before pickles.
_FILES = (("model.safetensors", False), ("pytorch_model.bin", True))
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Header:
    """One tensor of a file: its dtype as the file spells it (``F16``, ``float16``) and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Weights:
    """The weight files of a folder, in order."""

    files: tuple[Path, ...]
    pickled: bool
    """``.bin`` files, which are read with ``torch.load(weights_only=True)``."""
    index: dict[str, str] | None
    """Tensor to file name, when the folder has an index."""


def find_weights(folder: Path) -> Weights:
    """The weight files in ``folder``. UserError if there are none, or if the index names one that is not there."""
    for name, pickled in _FILES:
        if (folder / name).is_file():
            return Weights((folder / name,), pickled, None)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _shards(folder, index, pickled)
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        raise UserError(f"{folder} holds an adapter, not a model. Set model.path to the adapter's base model.")
    others = sorted(path.name for path in folder.glob("*.gguf"))
    raise UserError(
        f"{folder} holds no weights: no model.safetensors, no pytorch_model.bin and no index of either"
        + (f", only {others[0]}, which cannot be trained" if others else "")
        + ".\nFetch the weights there, set model.path to another folder, or set model.init=random to train without them."
    )


def _shards(folder: Path, index: Path, pickled: bool) -> Weights:
    refuse_pointer(index)
    try:
        mapping = {str(key): str(value) for key, value in json.loads(index.read_text("utf-8"))["weight_map"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index} is not an index of weight files ({error!r}). Fetch it again.") from None
    names = sorted(set(mapping.values()))
    for name in names:
        if Path(name).name != name:
            raise UserError(f"{index} names {name!r}, which is outside the folder. Fetch the model from its publisher.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{folder} lacks {missing[0]}{more} of {len(names)} weight files that {index.name} names.\n"
            "Fetch the missing files, or set model.path to a complete folder."
        )
    return Weights(tuple(folder / name for name in names), pickled, mapping)


def refuse_pointer(path: Path) -> None:
    """UserError if ``path`` is the pointer that git leaves in place of a large file."""
    with path.open("rb") as handle:
        if handle.read(len(LFS_POINTER)) == LFS_POINTER:
            raise UserError(
                f"{path} is a git-lfs pointer, not the file itself.\n"
                f"Run `git lfs pull` in {path.parent}, or fetch the model from the hub by its id (model.path=owner/name)."
            )


def safetensors_header(path: Path) -> dict[str, Header]:
    """The tensors of a safetensors file. UserError if it is a git-lfs pointer, cut short or not such a file.

    Format: 8 bytes little-endian header length, that many bytes of JSON, then the data.
    """
    refuse_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if size < 8 or length > _LARGEST_HEADER:
            raise UserError(f"{path} ({size} bytes) is not a safetensors file. Fetch it again.")
        text = handle.read(length)
    _refuse_short(path, size, 8 + length)
    try:
        content = json.loads(text)
        content.pop("__metadata__", None)
        found = {name: Header(str(item["dtype"]), tuple(item["shape"])) for name, item in content.items()}
        end = max((item["data_offsets"][1] for item in content.values()), default=0)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} has a broken safetensors header ({error!r}). Fetch it again.") from None
    _refuse_short(path, size, 8 + length + end)
    return found


def _refuse_short(path: Path, size: int, needed: int) -> None:
    if size < needed:
        raise UserError(f"{path} is cut short: {size} of {needed} bytes. Fetch it again.")
