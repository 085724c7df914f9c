"""The prompt formats of ChatGLM2, ChatGLM3 and GLM-4, built from ids as their original code does."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glmexp.config.errors import UserError
from glmexp.models.conversation import Message, Prompts, Segment, end_id, require_answer, suggest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
