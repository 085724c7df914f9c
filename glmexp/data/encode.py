"""A conversation to token ids and the mask of what is learnt.

``Prompts`` is what ``glmexp.models.prompts.prompts_for`` gives; only its two methods are used here, so that data and models do
not import each other. A ``closing`` segment ends an answer: it is not counted by ``max_target_length`` and survives it.

Lengths, in this order:

1. ``max_source_length`` and ``max_target_length``, as ChatGLM2's official P-tuning script applies them: the ids before the
   answer keep their head (a long prompt loses its closing words), the answer keeps its head, and the end token is always
   there. They hold for a conversation of which one answer is learnt; where several are (ChatGLM3, GLM-4, chat templates)
   there is no one source and target, and only ``max_length`` counts.
2. ``max_length`` for the whole: the end is cut (``over_length=cut``) or the sample is left out (``over_length=drop``).

A sample that has no learnt token behind its first position is left out: the loss predicts each token from those before it,
so a label at position 0 is never seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from glmexp.config.choices import OverLength
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

    def conversation(self, messages: list[Message]) -> Sequence[SegmentLike]: ...


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens; None has no limit."""

    max_length: int
    max_source_length: int | None = None
    max_target_length: int | None = None
    over_length: OverLength = OverLength.cut

    @classmethod
    def of(cls, data: DataConfig) -> "Limits":
        """The limits of a data config."""
        return cls(data.max_length, data.max_source_length, data.max_target_length, data.over_length)


@dataclass
class Encoded:
    """One sample: ids and, for each of them, whether it is learnt."""

    ids: list[int]
    learnt: list[bool]
    cut: bool = False


class DroppedSampleError(Exception):
    """A sample that is left out; ``needed`` is the ``max_length`` that would have kept it, or None if none would."""

    def __init__(self, reason: str, needed: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.needed = needed


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
    ids = [token for piece, _ in pieces for token in piece]
    learnt = [learn for piece, learn in pieces for _ in piece]
    return ids, learnt, len(ids) < sum(len(segment.ids) for segment in segments)
