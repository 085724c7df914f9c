"""Tokenizers from a folder: the original ChatGLM files converted, all else by transformers; no code in the folder is run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from glmexp.models import sentencepiece_bpe, tiktoken_bpe
from glmexp.models.conversation import TEMPLATE_KEY, Message, check_template
from glmexp.models.errors import ModelLoadError
from glmexp.models.original_template import original_template, read_json
from glmexp.models.prompts import prompts_for
from glmexp.models.source import local_folder

_MASKS = ("[MASK]", "[gMASK]", "[sMASK]")
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_IMAGES = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
_ORIGINAL_TEMPLATES = ("chatglm2", "chatglm3", "glm4")
_ORIGINAL_CLASSES = ("ChatGLMTokenizer", "ChatGLM4Tokenizer")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")

History = Sequence[tuple[str, str] | Message]


def encode_prompt(self: PreTrainedTokenizerBase, query: str, history: History = ()) -> list[int]:
    """Ids of the prompt that asks ``query`` after ``history``: (question, answer) pairs, or messages with role and content."""
    messages: list[Message] = []
    for turn in history or ():
        if isinstance(turn, Mapping):
            messages.append(turn)
        else:
            question, answer = turn
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return prompts_for(self).prompt([*messages, {"role": "user", "content": query}])


class ChatGLMTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]  # transformers is not followed by mypy
    """ChatGLM2's, ChatGLM3's or GLM-4's tokenizer: the original's ids, left padding, special tokens never read from text."""

    def encode_prompt(self, query: str, history: History = ()) -> list[int]:
        """See ``encode_prompt``."""
        return encode_prompt(self, query, history)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """As transformers', under a class name that plain AutoTokenizer knows."""
        files: tuple[str, ...] = super().save_pretrained(save_directory, *args, **kwargs)
        config = Path(save_directory) / "tokenizer_config.json"
        text = json.dumps(read_json(config) | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2, ensure_ascii=False)
        config.write_text(text + "\n", encoding="utf-8")
        return files


def load_tokenizer(path: str | Path, template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder (``tiny`` is the packaged one), bound to its prompt format.

    ``template`` is one of ``choices.TEMPLATES``; None reads it. Every tokenizer returned has ``encode_prompt``,
    and its format is found by ``prompts_for``. ModelLoadError when the folder has no usable tokenizer, UserError for an unknown
    ``template``.
    """
    if template is not None:
        check_template(template)
    folder = local_folder(str(path))
    if folder is None:
        raise ModelLoadError(f"model.path={path} is not a folder ({Path(path).absolute()}).\nGive a folder that exists.")
    told = read_json(folder / "tokenizer_config.json")
    if TEMPLATE_KEY in told and (folder / "tokenizer.json").is_file():
        tokenizer = _hugging_face(folder, ChatGLMTokenizer if told[TEMPLATE_KEY] in _ORIGINAL_TEMPLATES else AutoTokenizer)
    elif _is_original(folder, told, template):
        return _original(folder, template or original_template(folder))
    else:
        tokenizer = _hugging_face(folder, AutoTokenizer)
    if template is not None:
        tokenizer.init_kwargs[TEMPLATE_KEY] = template
    if not isinstance(tokenizer, ChatGLMTokenizer):
        tokenizer.encode_prompt = MethodType(encode_prompt, tokenizer)
    return tokenizer


def _is_original(folder: Path, told: Mapping[str, Any], template: str | None) -> bool:
    """Whether the tokenizer is to be converted from the original ChatGLM's file. ModelLoadError if that file is absent."""
    config = read_json(folder / "config.json")
    named = config.get("model_type") == "chatglm" or "padded_vocab_size" in config
    named = named or told.get("tokenizer_class") in _ORIGINAL_CLASSES
    if (folder / "tokenizer.model").is_file():
        without_fast = not (folder / "tokenizer.json").is_file()
        return named or (without_fast and (template in _ORIGINAL_TEMPLATES or config.get("model_type") in ("glm", "glm4")))
    if named and not (folder / "tokenizer.json").is_file():
        raise _no_tokenizer(folder, "tokenizer.model")
    return False


def _original(folder: Path, template: str) -> ChatGLMTokenizer:
    file = folder / "tokenizer.model"
    with file.open("rb") as start:
        if start.read(40).startswith(b"version https://git-lfs"):
            raise ModelLoadError(f"{file} is a Git LFS pointer, not the file itself.\nRun `git lfs pull` in {folder}.")
    ranks = tiktoken_bpe.is_rank_file(file)
    if ranks != (template == "glm4") and template in _ORIGINAL_TEMPLATES:
        kind = "GLM-4's tiktoken ranks" if ranks else "SentencePiece"
        raise ModelLoadError(
            f"model.template={template} does not go with {file}, which is {kind}.\n"
            "Set model.template=null to read the format from the folder."
        )
    if ranks:
        backend = tiktoken_bpe.convert(file)
        named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
        specials = ["<|endoftext|>", *_MASKS, "<sop>", "<eop>", *_ROLES, *_IMAGES]
    else:
        backend = sentencepiece_bpe.convert(file)
        named = {"unk_token": "<unk>", "pad_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        specials = [*_MASKS, "sop", "eop", *(() if template == "chatglm2" else _ROLES)]
    _add_specials(backend, [*(token for token in named.values() if token not in specials), *specials])
    tokenizer = ChatGLMTokenizer(
        tokenizer_object=backend,
        padding_side="left",
        truncation_side="right",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        extra_special_tokens=[token for token in specials if token not in named.values()],
        **named,
        **{TEMPLATE_KEY: template},
    )
    # Not given to the constructor: with a large vocabulary transformers asks the hub about a model of that name.
    tokenizer.name_or_path = str(folder)
    return tokenizer


def _add_specials(backend: Tokenizer, specials: Sequence[str]) -> None:
    """Special tokens after the pieces in the original's order, and the prefix that every input starts with."""
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    start = "<sop>" if "<sop>" in specials else "sop"
    end = "<|endoftext|>" if "<|endoftext|>" in specials else "</s>"
    backend.post_processor = processors.TemplateProcessing(
        single=["[gMASK]", start, "$A"],
        pair=["[gMASK]", start, "$A", "$B", end],
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[gMASK]", start, end)],
    )


def _hugging_face(folder: Path, kind: Any) -> Any:
    told = read_json(folder / "tokenizer_config.json")
    code = (told.get("auto_map") or {}).get("AutoTokenizer")
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise _no_tokenizer(folder, "tokenizer.json")
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises whatever its readers meet, in many types
        needs = f" It asks for code of its own ({code}), which is never run." if code else ""
        raise ModelLoadError(
            f"The tokenizer in {folder} cannot be loaded.{needs}\n{type(error).__name__}: {str(error).strip()[:300]}\n"
            "Take a folder with a tokenizer.json, or model.template=chatglm2|chatglm3|glm4 for an original ChatGLM folder."
        ) from error


def _no_tokenizer(folder: Path, file: str) -> ModelLoadError:
    return ModelLoadError(
        f"{folder} has no tokenizer: {file} is missing.\n"
        "Put the tokenizer files of the model's repository beside the weights, or give a model.path that has them."
    )
