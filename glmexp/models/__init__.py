"""Models and tokenizers of the worker's side. Importing the package is cheap: torch is imported with the first name taken."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glmexp.models.errors import ModelLoadError

if TYPE_CHECKING:
    from glmexp.models.description import describe
    from glmexp.models.load import build_model, load_model
    from glmexp.models.prefix import load_prefix
    from glmexp.models.source import locate
    from glmexp.models.tokenizer import load_tokenizer
    from glmexp.models.weights import preflight

__all__ = ["ModelLoadError", "build_model", "describe", "load_model", "load_prefix", "load_tokenizer", "locate", "preflight"]

_HOMES = {
    "build_model": "load",
    "describe": "description",
    "load_model": "load",
    "load_prefix": "prefix",
    "load_tokenizer": "tokenizer",
    "locate": "source",
    "preflight": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
