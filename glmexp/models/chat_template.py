"""Prompts of any Hugging Face tokenizer: its own chat template, or plain text for a model without one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glmexp.config.choices import Turns
from glmexp.config.errors import UserError
from glmexp.models.conversation import Message, Prompts, Segment, end_id, masked, require_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatPrompts(Prompts):
    """The tokenizer's chat template; an answer is learnt with the end-of-turn token that the template writes.

    Where an answer lies is found by rendering growing parts of the conversation: the rendering of what comes before an answer,
    with the generation prompt, must begin the rendering that holds the answer. What the template writes before the answer is
    thereby masked. Text in the template's own special tokens is read as such by the tokenizer, in messages too: that is how
    Hugging Face chat templates work.
    """

    template = "chat"

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(tokenizer)
        if not tokenizer.chat_template:
            raise UserError(
                f"The tokenizer of {tokenizer.name_or_path!r} has no chat template: how a prompt is written is not known.\n"
                "For a base model set model.template=plain (prompt, newline, answer, end token);\n"
                "for a chat model take a folder whose tokenizer_config.json or chat_template.jinja holds its template."
            )
        added = tokenizer.added_tokens_decoder.items()
        self.special_ids = {number for number, token in added if token.special} | set(tokenizer.all_special_ids)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._ids(self._render(messages, True))

    def conversation(self, messages: Sequence[Message], turns: Turns = Turns.all) -> list[Segment]:
        require_answer(messages)
        pieces: list[str] = []  # What is masked and what is an answer, in turn.
        seen = ""
        for place, message in enumerate(messages):
            if message["role"] != "assistant" or (turns is Turns.last and place < len(messages) - 1):
                continue
            before = self._render(messages[:place], True)
            after = self._render(messages[: place + 1], False)
            if not before.startswith(seen) or not after.startswith(before):
                raise UserError(self._does_not_nest(place, len(messages)))
            pieces += [before[len(seen) :], after[len(before) :]]
            seen = after
        segments: list[Segment] = []
        for place, ids in enumerate(self._split(pieces)):
            last = place == len(pieces) - 1
            segments += self._answer(ids, last) if place % 2 else [Segment(ids, False)]
        return [segment for segment in segments if segment.ids]

    def _answer(self, ids: list[int], last: bool) -> list[Segment]:
        """An answer's ids as text, end-of-turn token, and what the template writes after it (masked: nobody generates it)."""
        end = next((place for place in reversed(range(len(ids))) if ids[place] in self.special_ids), None)
        if end is not None and not self.tokenizer.decode(ids[end + 1 :]).strip():
            return [Segment(ids[:end], True), Segment([ids[end]], True, closing=True), Segment(ids[end + 1 :], False)]
        if last:
            # A template that leaves an answer open would teach the model never to stop.
            return [Segment(ids, True), Segment([end_id(self.tokenizer)], True, closing=True)]
        return [Segment(ids, True)]

    def _split(self, pieces: Sequence[str]) -> list[list[int]]:
        """Ids of each piece: as in the whole text where tokens end at every border, else of each piece alone."""
        whole = self._ids("".join(pieces))
        borders = [0]
        for count in range(1, len(pieces)):
            head = self._ids("".join(pieces[:count]))
            if whole[: len(head)] != head:
                return [self._ids(piece) for piece in pieces]
            borders.append(len(head))
        return [whole[start:stop] for start, stop in zip(borders, [*borders[1:], len(whole)], strict=True)]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _render(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        from jinja2.exceptions import TemplateError

        named = {"observation": "tool"}
        conversation = [{**message, "role": named.get(message["role"], message["role"])} for message in messages]
        try:
            rendered = self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=generation_prompt)
        except (TemplateError, ValueError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"The chat template of {self.tokenizer.name_or_path!r} refuses a conversation of {roles}: {str(error)[:200]}\n"
                "Leave out the role that the model does not know, or set model.template=plain."
            ) from error
        return str(rendered)

    def _does_not_nest(self, place: int, count: int) -> str:
        several = count > place + 1 or place > 2
        return (
            f"The chat template of {self.tokenizer.name_or_path!r} writes the beginning of a conversation differently once the"
            f" answer (message {place + 1}) is there, so the answer's tokens cannot be told apart.\n"
            + (
                "Set data.turns=last (earlier turns are rewritten by such templates), or model.template=plain."
                if several
                else "Set model.template=plain, or give the folder a template whose generation prompt begins the answer."
            )
        )


class PlainPrompts(Prompts):
    """For a base model: each question and a newline, each answer and the end token; an answer is learnt with its end token.

    What the tokenizer puts before every text (a begin token, ChatGLM's ``[gMASK]sop``) begins it once.
    """

    template = "plain"

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(tokenizer)
        self.end = end_id(tokenizer)
        self.prefix = tokenizer.encode("")
        if self.prefix[-1:] == [self.end] and self.end != tokenizer.bos_token_id:
            self.prefix.pop()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids = list(self.prefix)
        for message in messages:
            answered = message["role"] == "assistant"
            ids += [*self.encode(message["content"]), self.end] if answered else self.encode(f"{message['content']}\n")
        return ids

    def conversation(self, messages: Sequence[Message], turns: Turns = Turns.all) -> list[Segment]:
        require_answer(messages)
        if turns is Turns.last:
            return [*masked(self.prompt(messages[:-1])), *self._answer(messages[-1])]
        segments: list[Segment] = []
        before = list(self.prefix)
        for message in messages:
            if message["role"] == "assistant":
                segments += [*masked(before), *self._answer(message)]
                before = []
            else:
                before += self.encode(f"{message['content']}\n")
        return segments

    def _answer(self, message: Message) -> list[Segment]:
        return [Segment(self.encode(message["content"]), True), Segment([self.end], True, closing=True)]
