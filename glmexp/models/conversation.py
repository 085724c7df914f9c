"""From a conversation to token ids: the prompt a model is asked with, and the sequence it is trained on.

A conversation is a list of messages, mappings with ``role`` (system, user, assistant, observation or tool) and ``content``
(a string), as chat APIs write them. Each format builds ids, not text, because the original ChatGLM code does so: message
parts are encoded apart, and special tokens come from the format only, never from what a user wrote.

``Prompts.conversation`` gives ``Segment``s whose concatenated ids are the input ids; the label of a token is its own id where
``learn`` is set and -100 elsewhere (the model shifts). Segments let the data side cut without knowing the format:

* a single-answer conversation is ``[prompt] [answer] [closing] ...``: the first segment is exactly
  ``prompt(messages[:-1])``, the second is the answer, and the one marked ``closing`` holds the end-of-turn token. ChatGLM2's
  official P-tuning script keeps ``max_source_length`` ids of the first, ``max_target_length`` of the second and always the
  closing one;
* with several answers every learnt turn has its own answer and closing segment, and a cut takes ids from the end.

Which answers are learnt is ``data.turns``: all of them, or the last, which gives a single-answer conversation in every format.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmexp.config.choices import TEMPLATES, Turns
from glmexp.config.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]

# The key in tokenizer_config.json that remembers the format; its own word, so that no other project's key is taken for it.
TEMPLATE_KEY = "glmexp_template"


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens that are all targets of the loss, or all not."""

    ids: list[int]
    learn: bool
    closing: bool = False
    """The end-of-turn token(s) after an answer: kept when the answer before it is shortened."""


def masked(ids: list[int]) -> list[Segment]:
    """A segment that is not learnt; none for no ids."""
    return [Segment(ids, False)] if ids else []


class Prompts(ABC):
    """One prompt format bound to one tokenizer."""

    template: str

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids up to where the answer begins; ``messages`` ends with the question. UserError if the format has no such form."""

    @abstractmethod
    def conversation(self, messages: Sequence[Message], turns: Turns = Turns.all) -> list[Segment]:
        """The training sequence; ``messages`` ends with an answer. UserError if the format has no such form."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: nothing added, and nothing in it read as a special token."""
        tokenizer = self.tokenizer
        if not tokenizer.is_fast:
            return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        # The Rust tokenizer itself, with what that call would set: transformers' own wrapping takes four times as long.
        backend = tokenizer.backend_tokenizer
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        return list(backend.encode(text, add_special_tokens=False).ids)

    def stop_ids(self) -> list[int]:
        """Ids that end a generated answer: the format's end-of-turn tokens, and the tokenizer's end of text if it has one."""
        turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        ids = {number for segment in self.conversation(turn) if segment.closing for number in segment.ids}
        end = self.tokenizer.eos_token_id
        return sorted(ids | ({end} if isinstance(end, int) else set()))

    def token_id(self, token: str) -> int:
        """The id of a special token of the format. UserError if the tokenizer does not have it."""
        found = self.tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or found == self.tokenizer.unk_token_id:
            raise UserError(
                f"model.template={self.template} needs the token {token}, which the tokenizer of"
                f" {self.tokenizer.name_or_path!r} does not have.\n"
                "Choose model=auto beside model.path, which reads the format from the folder, or set model.template to it."
            )
        return found


def end_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The tokenizer's end-of-text id. UserError if it has none, since an answer could not be ended."""
    if not isinstance(tokenizer.eos_token_id, int):
        raise UserError(f"The tokenizer of {tokenizer.name_or_path!r} has no end token (eos_token): no answer could be ended.")
    return tokenizer.eos_token_id


def require_answer(messages: Sequence[Message]) -> None:
    """UserError unless the last message is the assistant's."""
    if not messages or messages[-1]["role"] != "assistant":
        last = repr(messages[-1]["role"]) if messages else "nothing"
        raise UserError(f"A conversation to learn from ends with an assistant message; this one ends with {last}.")


def check_template(template: str) -> str:
    """``template`` itself. UserError with the nearest name if it is none of ``TEMPLATES``."""
    if template not in TEMPLATES:
        raise UserError(
            f"model.template={template} is not a prompt format; known: {', '.join(TEMPLATES)}.{suggest(template, TEMPLATES)}"
        )
    return template


def suggest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = nearest(word, known)
    return f" Did you mean {close}?" if close else ""
