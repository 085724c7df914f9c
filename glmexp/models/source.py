"""Where a model's files are: a folder, the packaged tiny model, or a hub whose files are fetched first.

Nothing fetched is ever run; ``modeling_*.py`` comes along as text, for the meaning of ``rope_ratio`` and the template.
"""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glmexp.architecture.checkpoint import find_weights
from glmexp.config.choices import Hub, Init
from glmexp.config.errors import UserError
from glmexp.config.schema import ModelConfig
from glmexp.models.errors import ModelLoadError

TINY = "tiny"
"""``model.path`` of the model that ships with glmexp."""

_SMALL_FILES = ["*.json", "*.jinja", "tokenizer*", "*.tiktoken", "vocab*", "merges.txt", "*_chatglm.py"]
# Weights are asked for by name, so that a repository's second copy (consolidated, original/, other formats) stays there.
_SAFETENSORS = ["model*.safetensors"]
_PICKLED = ["pytorch_model*.bin"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def local_folder(path: str) -> Path | None:
    """The folder that ``path`` is on this machine, or None if it can only be a hub id."""
    if path == TINY:
        return Path(__file__).parent / "tiny"
    folder = Path(path).expanduser()
    # An empty path would be the working directory.
    return folder if path and folder.is_dir() else None


def locate(model: ModelConfig, local_only: bool = False) -> Path:
    """The folder with the model's files; a hub id is fetched first (its weights not if ``model.init`` is random).

    With ``local_only`` nothing goes over the network: a hub id gives what an earlier ``locate`` fetched. So one rank of a
    node fetches, and the others, once it is done, take its files. Raises ModelLoadError, which names ``model.path``.
    """
    folder = local_folder(model.path)
    if folder is not None:
        return folder
    if Path(model.path).expanduser().is_file():
        raise ModelLoadError(f"model.path={model.path} is a file; set it to the folder that holds the model.")
    if not _HUB_ID.fullmatch(model.path):
        raise ModelLoadError(
            f"model.path={model.path}: there is no such folder, and it is not a hub id (owner/name).\nCheck the path."
        )
    return _fetch(model, local_only)


def located(model: ModelConfig) -> Path:
    """The folder with the model's files, from this machine if they are all here, else fetched."""
    try:
        folder = locate(model, local_only=True)
        if model.init is not Init.random:
            find_weights(folder)
        return folder
    except UserError:
        return locate(model)


def _fetch(model: ModelConfig, local_only: bool) -> Path:
    fetch = _from_modelscope if model.hub is Hub.modelscope else _from_huggingface
    if model.init is Init.random:
        return fetch(model, _SMALL_FILES, local_only)
    folder = fetch(model, _SMALL_FILES + _SAFETENSORS, local_only)
    if not any(folder.glob("model*.safetensors")):
        folder = fetch(model, _SMALL_FILES + _PICKLED, local_only)
    return folder


def _from_huggingface(model: ModelConfig, patterns: list[str], local_only: bool) -> Path:
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(
            snapshot_download(model.path, revision=model.revision, allow_patterns=patterns, local_files_only=local_only)
        )
    except Exception as error:
        # The client raises several families of errors (its own, those of its HTTP library, OSError), all of them a
        # reason that the user must hear.
        raise ModelLoadError(_reason(model, error, _without_credentials(constants.ENDPOINT), local_only)) from error


def _reason(model: ModelConfig, error: Exception, endpoint: str, local_only: bool) -> str:
    """What went wrong with a fetch from the Hugging Face hub, and the next move."""
    from huggingface_hub import errors

    at = f"model.path={model.path} (model.hub=huggingface, {endpoint})"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{at}: access to this model must be granted.\n"
            "Accept its terms on the model's page and log in with `hf auth login`, or set model.path to a local folder."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{at} has no revision {model.revision}. Set model.revision to a branch, tag or commit, or null."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{at}: no such model on the hub, and no such folder here.\n"
            "Check the name; for a private model log in with `hf auth login`. model.hub=modelscope looks on ModelScope."
        )
    if isinstance(error, errors.HFValidationError):
        return f"{at} is neither a folder here nor a hub id (owner/name). Check the path."
    if local_only or os.environ.get("HF_HUB_OFFLINE"):
        return f"{at} is not (wholly) on this machine, and the network is off (HF_HUB_OFFLINE or another rank fetches)."
    return (
        f"{at}: no such folder here, and the hub cannot be reached: {_first_line(error.__cause__ or error)}\n"
        "Set HF_ENDPOINT to a mirror, model.hub=modelscope, or model.path to a folder that holds the model."
    )


def _from_modelscope(model: ModelConfig, patterns: list[str], local_only: bool) -> Path:
    try:
        from modelscope import snapshot_download
    except ImportError:
        raise ModelLoadError(
            "model.hub=modelscope needs the modelscope package. Run `pip install modelscope`, or set model.hub=huggingface."
        ) from None
    chosen: dict[str, Any] = {"revision": model.revision} if model.revision else {}
    try:
        return Path(snapshot_download(model.path, allow_patterns=patterns, local_files_only=local_only, **chosen))
    except Exception as error:
        raise ModelLoadError(
            f"model.path={model.path} (model.hub=modelscope) cannot be fetched: {_first_line(error)}\n"
            "Check the name there (ChatGLM models are under ZhipuAI/), the network, and model.revision;\n"
            "or set model.path to a folder that holds the model."
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return url if "@" not in parts.netloc else parts._replace(netloc=parts.netloc.rsplit("@", 1)[1]).geturl()
