"""Samples as the model would be trained on them: text, tokens and which of them are learnt."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from glmexp.config.choices import Source
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError
from glmexp.data.encode import DroppedSampleError, Encoded, Limits, Prompts, encode_conversation
from glmexp.data.read import Found, read, visible
from glmexp.data.store import IGNORED


def render(data: DataConfig, tokenizer: Any, prompts: Prompts | None, samples: int = 3) -> list[str]:
    """Lines of plain text that show the first samples of the data file.

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
    found = read(data)
    limits = Limits.of(data)
    lines = [f"{visible(str(found.path))}: {len(found.conversations)} samples" + (f", {found.bad} bad" if found.bad else "")]
    lines += [f"  {visible(message)}" for message in found.first_bad]
    if len(found.conversations) > samples:
        lines[0] += f"; the first {samples} follow, data.limit=N shows N"
    for number in range(min(samples, len(found.conversations))):
        lines += ["", *_sample(found, number, tokenizer, prompts, limits)]
    return lines


def _sample(found: Found, number: int, tokenizer: Any, prompts: Prompts, limits: Limits) -> list[str]:
    conversation = found.conversations[number]
    head = f"sample {number + 1}, line {conversation.line}"
    try:
        encoded, _ = encode_conversation(prompts, conversation.messages, limits)
    except DroppedSampleError as dropped:
        return [f"{head}: left out, {dropped.reason}"]
    except UserError as error:
        raise UserError(f"{found.path}:{conversation.line}: {error}") from error
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
