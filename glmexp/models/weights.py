"""The check before anything heavy: names and shapes of every tensor, from file headers only.

transformers itself fills a missing tensor with random numbers, and under ZeRO-3 does not tell of an unknown one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from glmexp.architecture.chatglm import ChatGLMSpec
from glmexp.architecture.checkpoint import Header, Weights, find_weights, refuse_pointer, safetensors_header
from glmexp.architecture.keys import INVERSE_FREQUENCIES, expected_shapes, shapes
from glmexp.config.choices import Init
from glmexp.config.errors import UserError
from glmexp.config.schema import ModelConfig
from glmexp.models.description import Description, describe
from glmexp.models.errors import ModelLoadError

_PREFIX = "transformer.prefix_encoder."
_FLOATS = {"F16", "BF16", "F32", "F64", "float16", "bfloat16", "float32", "float64"}


@dataclass(frozen=True)
class Found:
    """One tensor and the file that holds it."""

    header: Header
    file: Path


def preflight(model: ModelConfig) -> None:
    """Checks that the model can be loaded; reads headers only. Raises ModelLoadError: what, where, what to do."""
    description = describe(model)
    if model.init is not Init.random:
        check_weights(description)


def check_weights(description: Description) -> Weights:
    """The weight files of a described folder, after their headers were checked against its configuration.

    Raises ModelLoadError. An architecture without a spec has its files checked for wholeness; its names and shapes are
    compared when it is loaded.
    """
    if description.folder is None:
        raise ValueError("a model that has no folder has no weights to check")
    try:
        weights = find_weights(description.folder)
        found = read_headers(weights)
        _refuse_partial(weights, found)
        if description.spec is not None:
            _compare(found, description.spec, description.original, description.folder)
    except ModelLoadError:
        raise
    except UserError as error:
        raise ModelLoadError(str(error)) from None
    return weights


def read_headers(weights: Weights) -> dict[str, Found]:
    """Every tensor in the files. UserError for a broken file."""
    found: dict[str, Found] = {}
    for file in weights.files:
        headers = _pickle_header(file) if weights.pickled else safetensors_header(file)
        found |= {name: Found(header, file) for name, header in headers.items()}
    return found


def load_pickle(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a ``.bin`` file, mapped from disk where its format allows it. Never runs what is pickled."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))
    except Exception as error:
        # A cut or foreign file makes the unpickler raise nearly anything.
        raise ModelLoadError(
            f"{file} ({file.stat().st_size} bytes) cannot be read as weights: {type(error).__name__}.\n"
            "It is cut short, or holds more than tensors; fetch it again, as safetensors if there is a choice."
        ) from error
    if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        raise ModelLoadError(f"{file} holds no dictionary of tensors. Set model.path to a model's folder.")
    return content


def _is_zip(file: Path) -> bool:
    with file.open("rb") as handle:
        return handle.read(4) == b"PK\x03\x04"


def _pickle_header(file: Path) -> dict[str, Header]:
    refuse_pointer(file)
    return {
        name: Header(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in load_pickle(file).items()
    }


def _refuse_partial(weights: Weights, found: Mapping[str, Found]) -> None:
    """Refuses tensors that the index promises and no file holds."""
    for name, file in (weights.index or {}).items():
        if name not in found or found[name].file.name != file:
            raise UserError(
                f"{weights.files[0].parent / file} lacks {name}, which the index says it holds.\n"
                "Fetch that file again, together with its index."
            )


def _compare(found: Mapping[str, Found], spec: ChatGLMSpec, original: bool, folder: Path) -> None:
    expected = expected_shapes(spec) if original else shapes(spec)
    ignored = {INVERSE_FREQUENCIES} if original else {"lm_head.weight"} if spec.tied_embeddings else set()
    actual = {name: item for name, item in found.items() if name not in ignored}
    if actual and all(name.startswith(_PREFIX) for name in actual):
        raise UserError(
            f"{next(iter(actual.values())).file} holds a P-tuning prefix only, not a model.\n"
            "Set model.path to the base model's folder."
        )
    actual = {name: item for name, item in actual.items() if not name.startswith(_PREFIX)}
    _refuse_integers(actual)
    missing = [name for name in expected if name not in actual]
    unknown = [name for name in actual if name not in expected]
    if missing:
        raise UserError(_name_message(missing, folder, "lacks", "") + _layers_hint(missing, unknown, spec))
    if unknown:
        raise UserError(
            _name_message(unknown, actual[unknown[0]].file, "holds", ", which this architecture does not have")
            + _layers_hint(missing, unknown, spec)
        )
    for name, shape in expected.items():
        if actual[name].header.shape != shape:
            raise UserError(
                f"{actual[name].file}: {name} has shape {list(actual[name].header.shape)}, and config.json "
                f"({_fields(name)}) gives {list(shape)}.\nWeights and config.json must come from the same model."
            )


def _refuse_integers(actual: Mapping[str, Found]) -> None:
    for name, item in actual.items():
        if name.endswith(".weight_scale") or item.header.dtype not in _FLOATS:
            raise UserError(
                f"{item.file}: {name} is {item.header.dtype}, so the weights are quantised and have no gradient.\n"
                "Set model.path to the unquantised model."
            )


def _name_message(names: list[str], where: Path, verb: str, explanation: str) -> str:
    more = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
    return f"{where} {verb} {names[0]}{more}{explanation}.\n"


def _layers_hint(missing: list[str], unknown: list[str], spec: ChatGLMSpec) -> str:
    """The next move; a checkpoint that is complete but for whole layers points at ``num_layers``."""
    layers = {int(match[1]) for name in missing + unknown if (match := re.search(r"\.layers\.(\d+)\.", name))}
    outside = [name for name in missing + unknown if ".layers." not in name]
    if layers and not outside and (max(layers) == spec.num_layers - 1 or min(layers) >= spec.num_layers):
        return f"config.json says {spec.num_layers} layers: it must come from the same model as the weights."
    return "Fetch the model again, weights and config.json from the same place."


def _fields(name: str) -> str:
    """The fields of the original ``config.json`` that the shape of a tensor follows from."""
    if re.search(r"query_key_value|self_attn\.[qkv]_proj", name):
        return "hidden_size, num_attention_heads, kv_channels, multi_query_group_num"
    if re.search(r"self_attention\.dense|o_proj", name):
        return "hidden_size, num_attention_heads, kv_channels"
    if ".mlp." in name:
        return "hidden_size, ffn_hidden_size"
    return "hidden_size" if "norm" in name else "padded_vocab_size, hidden_size"
