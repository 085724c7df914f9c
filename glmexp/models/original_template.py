"""Which prompt format an original ChatGLM folder has.

ChatGLM2 and ChatGLM3 share architecture and tokenizer file, so it is read from the code beside the weights (as text, never
run), else from the names that the folder carries.
"""

import json
import re
from pathlib import Path
from typing import Any

from glmexp.models.errors import ModelLoadError
from glmexp.models.tiktoken_bpe import is_rank_file

_GLM4_VOCABULARY = 151552
# tokenization_chatglm.py and modeling_chatglm.py of ChatGLM3 write the role tokens; ChatGLM2's write the rounds.
_CODE = (("chatglm3", "<|user|>"), ("chatglm3", "<|assistant|>"), ("chatglm2", "[Round "))
_NAMES = (("chatglm2", r"chatglm[-_]?2"), ("chatglm3", r"chatglm[-_]?3"), ("glm4", r"glm[-_]?4"))


def original_template(folder: Path) -> str:
    """chatglm2, chatglm3 or glm4. ModelLoadError asking for ``model.template`` if the folder does not say."""
    config = read_json(folder / "config.json")
    model_file = folder / "tokenizer.model"
    if config.get("padded_vocab_size") == _GLM4_VOCABULARY or (model_file.is_file() and is_rank_file(model_file)):
        return "glm4"
    for file in ("tokenization_chatglm.py", "modeling_chatglm.py"):
        found = _from_code(folder / file)
        if found:
            return found
    told = read_json(folder / "tokenizer_config.json")
    for name in (config.get("_name_or_path"), told.get("name_or_path"), str(folder.resolve())):
        for template, pattern in _NAMES:
            if isinstance(name, str) and re.search(pattern, name, re.IGNORECASE):
                return template
    if "<|user|>" in json.dumps(told):
        return "chatglm3"
    raise ModelLoadError(
        f"{folder} does not say whether its prompts are ChatGLM2's or ChatGLM3's (the two share a tokenizer file).\n"
        "Set model.template=chatglm2 or model.template=chatglm3."
    )


def _from_code(file: Path) -> str | None:
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    return next((template for template, mark in _CODE if mark in text), None)


def read_json(file: Path) -> dict[str, Any]:
    """The object in ``file``; empty if there is no such file. ModelLoadError if it is not a JSON object."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelLoadError(f"{file} is not readable JSON: {error}.\nDownload the file again.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} holds a {type(value).__name__} where a JSON object belongs.\nDownload the file again.")
    return value
