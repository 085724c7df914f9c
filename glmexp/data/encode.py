"""A conversation to token ids and the mask of what is learnt.

``Prompts`` is what ``glmexp.models.prompts.prompts_for`` gives; only its methods are used here, so that data and models do not
import each other. A ``closing`` segment ends an answer: it is not counted by ``max_target_length`` and survives it.

Lengths, in this order:

1. ``max_source_length`` and ``max_target_length``, as ChatGLM2's official P-tuning script applies them: the ids before the
   answer keep their head (a long prompt loses its closing words), the answer keeps its head, and the end token is always
   there. They hold for a conversation of which one answer is learnt (``data.turns=last``, or a single turn); where several are
   there is no one source and target, and only ``max_length`` counts.
2. ``max_length`` for the whole. Under ``over_length=cut`` the oldest turns are left out, each from its question to the next,
   until the rest fits; the system message stays, and the last turn does. The rest is written as if it were the whole
   conversation, so that ChatGLM2's rounds are numbered from 1 again, as in the prompt that one would ask with. If the last turn
   alone is too long, its end is cut. Under ``over_length=drop`` the sample is left out.

A sample that has no learnt token behind its first position is left out: the loss predicts each token from those before it,
so a label at position 0 is never seen.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from glmexp.config.choices import OverLength, Turns
from glmexp.config.data_schema import DataConfig

Message = dict[str, Any]


class SegmentLike(Protocol):
    """A stretch of token ids that is learnt, or not, as a whole."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def learn(self) -> bool: ...

    @property
    def closing(self) -> bool: ...


class Prompts(Protocol):
    """How a tokenizer writes a conversation."""

    def prompt(self, messages: list[Message]) -> list[int]: ...

    def conversation(self, messages: list[Message], turns: Turns) -> Sequence[SegmentLike]: ...


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens, None without a limit, and the answers that are learnt."""

    max_length: int
    max_source_length: int | None = None
    max_target_length: int | None = None
    over_length: OverLength = OverLength.cut
    turns: Turns = Turns.all

    @classmethod
    def of(cls, data: DataConfig) -> "Limits":
        """The limits of a data config."""
        return cls(data.max_length, data.max_source_length, data.max_target_length, data.over_length, data.turns)


@dataclass
class Encoded:
    """One sample: ids and, for each of them, whether it is learnt."""

    ids: list[int]
    learnt: list[bool]
    cut: bool = False
    turns_cut: int = 0
    """Oldest turns that were left out."""


class DroppedSampleError(Exception):
    """A sample that is left out; ``needed`` is the ``max_length`` that would have kept it, or None if none would."""

    def __init__(self, reason: str, needed: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.needed = needed


def encode_conversation(prompts: Prompts, messages: list[Message], limits: Limits) -> tuple[Encoded, list[Message]]:
    """One conversation within the limits, and the messages of it that were kept.

    Raises:
        DroppedSampleError: the sample is to be left out, with the reason.
        UserError: the prompt format does not take such a conversation.
    """
    segments = prompts.conversation(messages, limits.turns)
    questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if limits.over_length is OverLength.drop or len(questions) < 2 or _fits(segments, limits):
        return encode(segments, limits), messages

    def without(turns: int) -> list[Message]:
        return [*messages[: questions[0]], *messages[questions[turns] :]]

    candidates = range(1, len(questions) - 1)
    fits = lambda turns: _fits(prompts.conversation(without(turns), limits.turns), limits)  # noqa: E731
    left_out = 1 + bisect_left(candidates, True, key=fits)
    kept = without(left_out)
    encoded = encode(prompts.conversation(kept, limits.turns), limits)
    encoded.cut, encoded.turns_cut = True, left_out
    return encoded, kept


def _fits(segments: Sequence[SegmentLike], limits: Limits) -> bool:
    return len(_join(segments, limits)[0]) <= limits.max_length


def encode(segments: Sequence[SegmentLike], limits: Limits) -> Encoded:
    """Applies the limits to one conversation's segments.

    Raises:
        DroppedSampleError: the sample is to be left out, with the reason.
    """
    ids, learnt, cut = _join(segments, limits)
    if len(ids) > limits.max_length:
        if limits.over_length is OverLength.drop:
            raise DroppedSampleError("longer than data.max_length", len(ids))
        first_target = next((i for i, learn in enumerate(learnt) if learn and i > 0), None)
        ids, learnt, cut = ids[: limits.max_length], learnt[: limits.max_length], True
        if not any(learnt[1:]):
            raise DroppedSampleError("without a token of the answer within data.max_length", first_target and first_target + 1)
    if not any(learnt[1:]):
        raise DroppedSampleError("without a token to learn", None)
    return Encoded(ids, learnt, cut)


def _join(segments: Sequence[SegmentLike], limits: Limits) -> tuple[list[int], list[bool], bool]:
    """(ids, learnt, whether the source or target limit shortened them)."""
    answers = [index for index, segment in enumerate(segments) if segment.learn and not segment.closing]
    pieces = [(segment.ids, segment.learn) for segment in segments]
    if len(answers) == 1:
        answer = answers[0]
        source = [token for segment in segments[:answer] for token in segment.ids]
        target = segments[answer].ids
        pieces = [
            (source[: limits.max_source_length], False),
            (target[: limits.max_target_length], True),
            *pieces[answer + 1 :],
        ]
    ids = list(chain.from_iterable(piece for piece, _ in pieces))
    learnt = list(chain.from_iterable([learn] * len(piece) for piece, learn in pieces))
    return ids, learnt, len(ids) < sum(len(segment.ids) for segment in segments)
