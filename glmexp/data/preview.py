"""Samples as the model would be trained on them: text, tokens and which of them are learnt."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from glmexp.config.choices import Source
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError
from glmexp.data.encode import DroppedSampleError, Encoded, Limits, Prompts, encode_conversation
from glmexp.data.errors import visible
from glmexp.data.read import Conversation, read
from glmexp.data.store import IGNORED


def render(data: DataConfig, tokenizer: Any, prompts: Prompts | None, samples: int = 3) -> list[str]:
    """Lines of plain text that show the first samples of the data.

    Args:
        tokenizer: a Hugging Face tokenizer; turns ids back to text.
        prompts: what ``glmexp.models.prompts.prompts_for(tokenizer)`` gave.
        samples: how many to show.

    Returns:
        Lines without control characters: the data is escaped as in a Python string. They are not meant as ``rich`` markup,
        so print them as they are (``print``, or ``markup=False``).

    Raises:
        UserError: the file cannot be read, a line of it is bad, or the template refuses a sample.
    """
    if data.source is Source.synthetic:
        return [f"data.source=synthetic: random token ids, {data.max_length} a sample, all learnt"]
    if prompts is None:
        raise ValueError("data.source=file needs the tokenizer's prompts")
    reading = read(data)
    lines: list[str] = []
    number = 0
    for number, conversation in enumerate(reading, start=1):
        if number <= samples:
            lines += ["", *_sample(number, conversation, len(reading.sources) > 1, tokenizer, prompts, Limits.of(data))]
        elif data.streaming:
            break  # the others have not been fetched
    more = f"; the first {samples} follow, data.limit=N shows N" if number > samples else ""
    bad = f", {reading.bad} bad" if reading.bad else ""
    count = f"at least {number}" if data.streaming and number > samples else number
    head = f"{visible(reading.name)}: {count} sample{'s' if number != 1 else ''}{bad}{more}"
    return [head, *(f"  {visible(line)}" for line in (*reading.notes, *reading.first_bad)), *lines]


def _sample(
    number: int, conversation: Conversation, several: bool, tokenizer: Any, prompts: Prompts, limits: Limits
) -> list[str]:
    place = visible(conversation.place) if several else f"line {conversation.line}"
    head = f"sample {number}, {place}"
    try:
        encoded, _ = encode_conversation(prompts, conversation.messages, limits)
    except DroppedSampleError as dropped:
        return [f"{head}: left out, {dropped.reason}"]
    except UserError as error:
        raise UserError(f"{conversation.place}: {error}") from error
    cut = ", cut to the length limits" if encoded.cut else ""
    if encoded.turns_cut:
        cut = f", the oldest {encoded.turns_cut} turn{'s' if encoded.turns_cut > 1 else ''} left out"
    lines = [f"{head}: {len(encoded.ids)} tokens, {sum(encoded.learnt)} learnt{cut}"]
    return [*lines, *_spans(encoded, tokenizer), *_tokens(encoded, tokenizer)]


def _spans(encoded: Encoded, tokenizer: Any) -> list[str]:
    """The text in stretches that are learnt, or not, as a whole."""
    lines, start = [], 0
    for learnt, run in groupby(encoded.learnt):
        stop = start + len(list(run))
        text = visible(text_of(tokenizer, encoded.ids[start:stop]))
        lines.append(f"  {'learnt' if learnt else 'masked'} | {text}")
        start = stop
    return lines


def _tokens(encoded: Encoded, tokenizer: Any) -> list[str]:
    lines = ["  position      id   label  token"]
    for position, (token_id, learnt) in enumerate(zip(encoded.ids, encoded.learnt, strict=True)):
        text = text_of(tokenizer, [token_id])
        # Part of a character, or a space that decoding drops: the vocabulary's own spelling says more.
        if not text or "\ufffd" in text:
            text = str(tokenizer.convert_ids_to_tokens(token_id))
        label = token_id if learnt else IGNORED
        lines.append(f"  {position:8d}  {token_id:6d}  {label:6d}  {visible(text)}")
    return lines


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of token ids, special tokens included."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
