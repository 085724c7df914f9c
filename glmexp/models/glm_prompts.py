"""The prompt formats of ChatGLM2, ChatGLM3 and GLM-4, built from ids as their original code does."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glmexp.config.choices import Turns
from glmexp.config.errors import UserError
from glmexp.models.conversation import Message, Prompts, Segment, end_id, masked, require_answer, suggest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RoundPrompts(Prompts):
    """ChatGLM2: numbered rounds, from 1. The format has no system role: its text stands before the first round.

    ``turns=last`` is the original's prompt with its history, and the last answer, as the official P-tuning script trains.
    ``turns=all`` learns every answer with an end token of its own. That token then stands between the rounds, where the
    original's prompt has none: without it the model would not learn to end any answer but the last.
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
            text += f"{self._question(turns, number)}{turns[number]}\n\n"
        return self.prefix + self.encode(text + self._question(turns, len(turns)))

    def conversation(self, messages: Sequence[Message], turns: Turns = Turns.all) -> list[Segment]:
        require_answer(messages)
        if turns is Turns.last:
            return [Segment(self.prompt(messages[:-1]), False), *self._answer(messages[-1]["content"])]
        system, texts = split_turns(messages, self.template)
        first = f"{system}\n\n" if system else ""
        segments = [Segment(self.prefix + self.encode(first + self._question(texts, 1)), False), *self._answer(texts[1])]
        for number in range(3, len(texts), 2):
            segments += [Segment(self._later(f"\n\n{self._question(texts, number)}"), False), *self._answer(texts[number])]
        return segments

    def _question(self, turns: Sequence[str], answer: int) -> str:
        """The round of the question before turn number ``answer``, up to where its answer begins."""
        return f"[Round {answer // 2 + 1}]\n\n问：{turns[answer - 1]}\n\n答："

    def _answer(self, text: str) -> list[Segment]:
        # Encoded apart: joined, the last piece of the prompt and the first of the answer may merge into another token.
        return [Segment(self.encode(text), True), Segment([self.end], True, closing=True)]

    def _later(self, text: str) -> list[int]:
        """Ids of what begins with a newline, as within a text: alone, SentencePiece would put a blank in front of it."""
        return self.encode(f"答{text}")[len(self.encode("答")) :]


class RolePrompts(Prompts):
    """ChatGLM3: a role token before each message; an assistant message is learnt with the token that follows it.

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

    def stop_ids(self) -> list[int]:
        return sorted({end_id(self.tokenizer), self.roles["user"], self.roles["observation"]})

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
                f"{suggest(str(message['role']), self.roles)}"
            )
        return self.roles[role], self.encode(f"{message.get('metadata') or ''}\n") + self.encode(self.text(message))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids = list(self.prefix)
        for message in messages:
            role, content = self.parts(message)
            ids += [role, *content]
        return [*ids, self.roles["assistant"]]

    def conversation(self, messages: Sequence[Message], turns: Turns = Turns.all) -> list[Segment]:
        require_answer(messages)
        if turns is Turns.last:
            _, answer = self.parts(messages[-1])
            closing = Segment([self.end], True, closing=True)
            return [Segment(self.prompt(messages[:-1]), False), Segment(answer, True), closing]
        segments: list[Segment] = []
        before = list(self.prefix)
        after_answer = False
        for message in messages:
            role, content = self.parts(message)
            if after_answer:
                segments.append(Segment([role], True, closing=True))
            else:
                before.append(role)
            after_answer = message["role"] == "assistant"
            if after_answer:
                segments += [*masked(before), Segment(content, True)]
                before = []
            else:
                before += content
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
