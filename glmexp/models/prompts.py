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
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmexp.config.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]

TEMPLATES = ("chatglm2", "chatglm3", "glm4", "chat", "plain")
# The key in tokenizer_config.json that remembers the format; its own word, so that no other project's key is taken for it.
TEMPLATE_KEY = "glmexp_template"


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens that are all targets of the loss, or all not."""

    ids: list[int]
    learn: bool
    closing: bool = False
    """The end-of-turn token(s) after an answer: kept when the answer before it is shortened."""


class Prompts(ABC):
    """One prompt format bound to one tokenizer."""

    template: str

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids up to where the answer begins; ``messages`` ends with the question. UserError if the format has no such form."""

    @abstractmethod
    def conversation(self, messages: Sequence[Message]) -> list[Segment]:
        """The training sequence; ``messages`` ends with an answer. UserError if the format has no such form."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: nothing added, and nothing in it read as a special token."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def token_id(self, token: str) -> int:
        """The id of a special token of the format. UserError if the tokenizer does not have it."""
        found = self.tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or found == self.tokenizer.unk_token_id:
            raise UserError(
                f"model.template={self.template} needs the token {token}, which the tokenizer of"
                f" {self.tokenizer.name_or_path!r} does not have.\n"
                "Set model.template to the model's own format, or to null to read it from the folder."
            )
        return found


class RoundPrompts(Prompts):
    """ChatGLM2: numbered rounds; the last answer is learnt, as its official P-tuning script does.

    The format has no system role: a system message is written before the first round, on a paragraph of its own.
    """

    template = "chatglm2"

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(tokenizer)
        self.prefix = [self.token_id("[gMASK]"), self.token_id("sop")]
        self.end = end_id(tokenizer)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        system, turns = split_turns(messages, self.template)
        if len(turns) % 2 == 0:
            raise UserError(f"A {self.template} prompt ends with a user message.")
        text = f"{system}\n\n" if system else ""
        for number in range(1, len(turns), 2):
            text += f"[Round {number // 2 + 1}]\n\n问：{turns[number - 1]}\n\n答：{turns[number]}\n\n"
        text += f"[Round {len(turns) // 2 + 1}]\n\n问：{turns[-1]}\n\n答："
        return self.prefix + self.encode(text)

    def conversation(self, messages: Sequence[Message]) -> list[Segment]:
        require_answer(messages)
        # Encoded apart: joined, the last piece of the prompt and the first of the answer may merge into another token.
        answer = self.encode(messages[-1]["content"])
        return [Segment(self.prompt(messages[:-1]), False), Segment(answer, True), Segment([self.end], True, closing=True)]


class RolePrompts(Prompts):
    """ChatGLM3: a role token before each message; every assistant message is learnt with the token that follows it.

    The token that follows is the next role token, or the end-of-text token after the last message: what the model has to
    write for its turn to end (ChatGLM3's finetune_demo shifts its mask so). Messages of an observation are not learnt.
    """

    template = "chatglm3"
    prefix_tokens: tuple[str, ...] = ("[gMASK]", "sop")

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(tokenizer)
        self.prefix = [self.token_id(token) for token in self.prefix_tokens]
        self.roles = {role: self.token_id(f"<|{role}|>") for role in ("system", "user", "assistant", "observation")}
        self.end = self.closing_id()

    def closing_id(self) -> int:
        """The token learnt after the last answer."""
        return end_id(self.tokenizer)

    def text(self, message: Message) -> str:
        """What is encoded after the role: the content, and for a system message the tools as indented JSON."""
        if message["role"] != "system" or not message.get("tools"):
            return str(message["content"])
        return f"{message['content']}\n{json.dumps(message['tools'], indent=4, ensure_ascii=False)}"

    def parts(self, message: Message) -> tuple[int, list[int]]:
        """The role token, and the ids of metadata line and content, each encoded apart as the original does."""
        role = {"tool": "observation"}.get(message["role"], message["role"])
        if role not in self.roles:
            raise UserError(
                f"The {self.template} format has no role {message['role']!r}; it knows {', '.join(self.roles)}."
                f"{_suggest(str(message['role']), self.roles)}"
            )
        return self.roles[role], self.encode(f"{message.get('metadata') or ''}\n") + self.encode(self.text(message))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids = list(self.prefix)
        for message in messages:
            role, content = self.parts(message)
            ids += [role, *content]
        return [*ids, self.roles["assistant"]]

    def conversation(self, messages: Sequence[Message]) -> list[Segment]:
        require_answer(messages)
        segments: list[Segment] = []
        masked = list(self.prefix)
        after_answer = False
        for message in messages:
            role, content = self.parts(message)
            if after_answer:
                segments.append(Segment([role], True, closing=True))
            else:
                masked.append(role)
            after_answer = message["role"] == "assistant"
            if after_answer:
                if masked:
                    segments.append(Segment(masked, False))
                segments.append(Segment(content, True))
                masked = []
            else:
                masked += content
        return [*segments, Segment([self.end], True, closing=True)]


class Glm4Prompts(RolePrompts):
    """GLM-4: as ChatGLM3 with its own prefix, and ``<|user|>`` is what ends the last answer (GLM-4's finetune_demo)."""

    template = "glm4"
    prefix_tokens = ("[gMASK]", "<sop>")

    def closing_id(self) -> int:
        return self.roles["user"]

    def text(self, message: Message) -> str:
        if message.get("tools"):
            raise UserError("The glm4 format is built without tools here: leave `tools` out, or set model.template=chat.")
        return str(message["content"])


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


def split_turns(messages: Sequence[Message], template: str) -> tuple[str, list[str]]:
    """The system text ("" without) and the contents of strictly alternating user and assistant messages."""
    turns = list(messages)
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else ""
    for place, message in enumerate(turns):
        wanted = ("user", "assistant")[place % 2]
        if message["role"] != wanted:
            raise UserError(
                f"The {template} format alternates user and assistant; message {place + 1} after the system text is"
                f" {message['role']!r} where {wanted!r} is due."
            )
    return system, [message["content"] for message in turns]


def prompts_for(tokenizer: "PreTrainedTokenizerBase") -> Prompts:
    """The prompt format of ``tokenizer``: what ``load_tokenizer`` set or a saved folder remembers, else its chat template.

    UserError when there is neither, or when the tokenizer lacks a token of the format.
    """
    from glmexp.models.chat_template import ChatPrompts, PlainPrompts

    formats: dict[str, type[Prompts]] = {
        kind.template: kind for kind in (RoundPrompts, RolePrompts, Glm4Prompts, ChatPrompts, PlainPrompts)
    }
    template = tokenizer.init_kwargs.get(TEMPLATE_KEY)
    if template is None:
        template = "chat"
    return formats[check_template(template)](tokenizer)


def check_template(template: str) -> str:
    """``template`` itself. UserError with the nearest name if it is none of ``TEMPLATES``."""
    if template not in TEMPLATES:
        raise UserError(
            f"model.template={template} is not a prompt format; known: {', '.join(TEMPLATES)}.{_suggest(template, TEMPLATES)}"
        )
    return template


def _suggest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = nearest(word, known)
    return f" Did you mean {close}?" if close else ""
