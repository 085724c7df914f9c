"""The layouts in which trained weights are written: a model, an adapter, a prefix, and the original ChatGLM's.

Each function fills a new folder from tensors on the host; ``verify`` then reads back what the files say of themselves.
"""

import json
import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from transformers import GenerationConfig, GlmForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from glmexp.architecture import read_config
from glmexp.architecture.checkpoint import Header, safetensors_header
from glmexp.architecture.keys import INVERSE_FREQUENCIES, expected_shapes, inverse_frequencies, to_original
from glmexp.config.choices import Method
from glmexp.config.errors import UserError
from glmexp.config.schema import Config, MethodConfig
from glmexp.models import describe, prefix
from glmexp.models.description import Description
from glmexp.models.source import TINY, local_folder
from glmexp.train.evaluation.generate import stop_ids

State = dict[str, torch.Tensor]

ORIGINAL_FILES = (
    *("tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("generation_config.json", "LICENSE", "MODEL_LICENSE"),
)
"""What an original folder holds besides weights, config.json and code, as far as it has them."""
LARGEST_FILE = "5GB"
WHOLE_MODEL = (Method.full, Method.freeze)
"""Methods whose export is a model of its own; the others' goes onto the base model."""


def write_model(model: PreTrainedModel, state: State, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """config.json, generation_config.json and the weights under the model's own names; ``state`` is emptied meanwhile.

    ``state`` holds the parameters; what the model keeps besides (persistent buffers) is taken from it.
    """
    persistent = set(model.state_dict())
    state.update({name: buffer.detach().cpu() for name, buffer in model.named_buffers() if name in persistent})
    model.config.use_cache = True  # off for training only
    model.config.dtype = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    _complete(model.generation_config, model, tokenizer)
    count, names = elements(state), set(state)
    model.save_pretrained(str(folder), state_dict=state)
    verify(folder, count, names if isinstance(model, GlmForCausalLM) else None)


def _complete(settings: GenerationConfig | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Generation settings with which plain ``generate`` ends an answer where it was trained to end, and that can be saved."""
    if settings is None:
        return
    if tokenizer is not None:
        stops = stop_ids(model, tokenizer)
        settings.eos_token_id = stops if len(stops) > 1 else stops[0]
        if settings.pad_token_id is None:
            settings.pad_token_id = tokenizer.pad_token_id
    try:
        settings.validate(strict=True)
    except ValueError:  # as Llama-2's own: it gives a temperature and does not sample; transformers reads and does not write it
        settings.do_sample = True


def write_adapter(model: PreTrainedModel, state: State, base: str, folder: Path) -> None:
    """adapter_config.json, which names the base model, and adapter_model.safetensors; ``state`` is by names in ``model``."""
    for settings in model.peft_config.values():
        settings.base_model_name_or_path = base_name(base)
        settings.target_modules = sorted(settings.target_modules)
    count = elements(state)
    # "auto" would ask the hub whether the vocabulary was resized.
    model.save_pretrained(str(folder), state_dict=state, save_embedding_layers=False)
    verify(folder, count, set(adapter_names(model)))
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def write_prefix(state: State, config: Config, folder: Path) -> None:
    """prefix_config.json, which names the base model, and the prefix encoder under the names of ChatGLM2's official code."""
    folder.mkdir()
    save_file(official_prefix(state), folder / prefix.FILE, metadata={"format": "pt"})
    verify(folder, elements(state), set(official_prefix(state)))
    settings = {
        "base_model_name_or_path": base_name(config.model.path),
        "prefix_length": config.method.prefix_length,
        "prefix_projection": config.method.prefix_projection,
    }
    _write_json(folder / prefix.SETTINGS, settings)


def official_prefix(state: State) -> State:
    return {name.replace(prefix.SUBMODULE, prefix.OFFICIAL, 1): tensor for name, tensor in state.items()}


def original_base(config: Config) -> Description:
    """The base model, whose original layout ``layout=original`` writes. Raises UserError for a base of another layout."""
    described = describe(config.model)
    if not described.original or described.spec is None or described.folder is None:
        raise UserError(
            f"layout=original: {config.model.path} is not in the original layout of ChatGLM2, ChatGLM3 or GLM-4\n"
            "leave layout out: the export then has the layout of the base model"
        )
    return described


def write_original(state: State, base: Description, folder: Path) -> None:
    """The whole model under the names of the original ChatGLM code, with the base folder's configuration and tokenizer."""
    assert base.spec is not None
    assert base.folder is not None
    folder.mkdir()
    dtype = next(iter(state.values())).dtype
    original = dict(to_original(state.items(), base.spec, lambda parts, dim: torch.cat(list(parts), dim)))
    original[INVERSE_FREQUENCIES] = torch.tensor(inverse_frequencies(base.spec), dtype=dtype)
    save_torch_state_dict(original, folder, max_shard_size=LARGEST_FILE)
    verify(folder, elements(original), {*expected_shapes(base.spec), INVERSE_FREQUENCIES})
    _copy_original(base.folder, folder, {"torch_dtype": str(dtype).removeprefix("torch.")})


def write_original_prefix(state: State, base: Description, method: MethodConfig, folder: Path) -> None:
    """A prefix as ChatGLM2's P-tuning script leaves it: pytorch_model.bin, and a config.json that says its length."""
    assert base.folder is not None
    folder.mkdir()
    torch.save(official_prefix(state), folder / prefix.OFFICIAL_FILE)
    changes = {"pre_seq_len": method.prefix_length, "prefix_projection": bool(method.prefix_projection)}
    _copy_original(base.folder, folder, changes)


def _copy_original(base: Path, folder: Path, changes: Mapping[str, Any]) -> None:
    """config.json with some fields changed, and the other files of an original folder; its code stays where it is."""
    content = read_config(base)
    assert content is not None
    _write_json(folder / "config.json", {**content, **changes})
    for name in ORIGINAL_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def base_name(base: str) -> str:
    """The base model as an export names it: a hub id, or an absolute folder."""
    folder = local_folder(base)
    return base if folder is None or base == TINY else str(folder.absolute())


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def headers(folder: Path) -> dict[str, Header]:
    """Every tensor in the safetensors files of a folder. UserError for a broken file."""
    return {name: header for file in sorted(folder.glob("*.safetensors")) for name, header in safetensors_header(file).items()}


def elements(state: State) -> int:
    """Numbers in all tensors."""
    return sum(tensor.numel() for tensor in state.values())


def verify(folder: Path, count: int, names: set[str] | None = None) -> None:
    """Reads back what the files say: no tensor is empty, they hold ``count`` numbers, and ``names`` where those are given.

    An architecture of transformers may store weights under other names than its modules have; then only the count can tell.

    Raises:
        ValueError: they do not. What ZeRO stage 3 partitions is written with shape [0] where it is not gathered.
    """
    found = headers(folder)
    empty = [name for name, header in found.items() if prod(header.shape) == 0]
    if empty:
        raise ValueError(f"{len(empty)} tensors in {folder} are empty, the first is {empty[0]}")
    if names is not None and found.keys() != names:
        odd = sorted(found.keys() ^ names)
        raise ValueError(f"{folder} has not the tensors of the model: {len(odd)} are odd, such as {odd[0]}")
    written = sum(prod(header.shape) for header in found.values())
    if written != count:
        raise ValueError(f"{folder} holds {written} numbers, and the model {count}")


def adapter_names(model: PreTrainedModel) -> dict[str, str]:
    """Name in an adapter's file -> name of the parameter in a PEFT model: PEFT leaves the adapter's own name out of files."""
    from peft import get_peft_model_state_dict

    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    # The tensors pass through as they are, so that each can be told by its identity.
    filed = get_peft_model_state_dict(model, state_dict=dict(named), save_embedding_layers=False)
    known = {id(parameter): name for name, parameter in named.items()}
    return {name: known[id(tensor)] for name, tensor in filed.items()}


def is_adapter(method: Method) -> bool:
    return method in (Method.lora, Method.qlora)
