"""From ``data.*`` to the tokens folder of a trial."""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from glmexp.config.choices import OverLength, Source
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError
from glmexp.data.encode import DroppedSampleError, Limits, Message, Prompts, encode_conversation
from glmexp.data.read import Conversation, Reading, read, stamps
from glmexp.data.store import Counts, Part, Tokens, is_ready, publish
from glmexp.data.validation import Sample, Tokenised, hold_out, validation_data

SYNTHETIC_SAMPLES = 256
"""Samples of ``data.source=synthetic`` when ``data.limit`` is null."""

REPORTED = 100
"""Samples between two reports."""

Report = Callable[[int, int | None], None]
"""Called with (samples done, samples in all as far as they can be reckoned)."""


PROBE: list[Message] = [{"role": "user", "content": "1 + 1 = ? 你好"}, {"role": "assistant", "content": "2, 很好。"}]


def tokens_key(data: DataConfig, prompts: Prompts | None, vocab_size: int, seed: int, enough: int | None = None) -> str:
    """Names what the tokens are made from: the settings, the files' sizes and times, and how the tokenizer writes a probe.

    Raises:
        UserError: a file is absent.
    """
    probe = [(segment.ids, segment.learn) for segment in prompts.conversation(PROBE, data.turns)] if prompts else None
    content = json.dumps([asdict(data), probe, vocab_size, seed, stamps(data), enough], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def prepare(
    data: DataConfig,
    prompts: Prompts | None,
    vocab_size: int,
    seed: int,
    folder: Path,
    report: Report = lambda done, total: None,
    enough: int | None = None,
) -> None:
    """Reads and tokenises the data and writes ``FOLDER/tokens/``; tokens of the same settings that are there already stay.

    Args:
        prompts: what ``glmexp.models.prompts.prompts_for(tokenizer)`` gave; not used by ``data.source=synthetic``.
        vocab_size: rows of the model's embedding; every token id must be below it.
        seed: ``train.seed``, for synthetic data and for what is held out.
        folder: the trial folder.
        report: called with (samples done, samples in all) as the work goes on.
        enough: keep at most so many samples, the longest ones, the longest first; None keeps all, in the file's order.

    Raises:
        UserError: the file cannot be read, a line is bad, or no sample is left to train on or to validate with.
    """
    key = tokens_key(data, prompts, vocab_size, seed, enough)
    if is_ready(folder, key):
        return
    if data.source is Source.synthetic:
        samples = data.limit or SYNTHETIC_SAMPLES
        training, validation = _synthetic(data, min(samples, enough or samples), vocab_size, seed, report), None
    else:
        if prompts is None:
            raise ValueError("data that is read needs the tokenizer's prompts")
        training, validation = _parts(data, prompts, seed, report, enough)
        _check_vocabulary([training.tokens, *([validation.tokens] if validation else [])], vocab_size)
    publish(folder, key, training, validation)


def _synthetic(data: DataConfig, samples: int, vocab_size: int, seed: int, report: Report) -> Part:
    generator = np.random.default_rng(seed)
    tokens, counts, learnt = Tokens(), Counts(read=samples), [True] * data.max_length
    for done in range(1, samples + 1):
        tokens.add(generator.integers(0, vocab_size, data.max_length).tolist(), learnt)
        report(done, samples)
    tokens.count_into(counts)
    return Part(tokens, counts)


def _check_vocabulary(parts: Iterable[Tokens], vocab_size: int) -> None:
    largest = max(tokens.largest_id() for tokens in parts)
    if largest >= vocab_size:
        raise UserError(
            f"the tokenizer gives token id {largest}, but the model's vocabulary has {vocab_size} rows\n"
            "tokenizer and weights do not belong together: check the tokenizer files in model.path"
        )


def _parts(data: DataConfig, prompts: Prompts, seed: int, report: Report, enough: int | None) -> tuple[Part, Part | None]:
    """(what is trained on, what it is validated with)."""
    if data.eval_share is not None:
        whole = _tokenise(data, prompts, report, enough, with_messages=True)
        return hold_out(whole, data, prompts, seed)
    training = _tokenise(data, prompts, report, enough).training()
    of_its_own = validation_data(data)
    if of_its_own is None:
        return training, None
    own = _tokenise(of_its_own, prompts, report, None, with_messages=True, validating=True)
    return training, own.validation(range(len(own.tokens)), own.counts, of_its_own, prompts)


def _tokenise(
    data: DataConfig,
    prompts: Prompts,
    report: Report,
    enough: int | None,
    with_messages: bool = False,
    validating: bool = False,
) -> Tokenised:
    reading = read(data, validating)
    encoder = _Encoder(data, prompts, reading, report)
    if enough is None:
        chosen: Iterable[Sample] = encoder.encoded(reading)
    else:
        encoded = encoder.encoded(sorted(reading, key=_characters, reverse=True))
        chosen = heapq.nlargest(enough, _until_full(encoded, enough, data.max_length), key=lambda sample: len(sample[0].ids))
    tokenised = Tokenised(Counts())
    for sample, messages in chosen:
        tokenised.add(sample, messages if with_messages else None)
    tokenised.counts = counts = encoder.counts()
    tokenised.tokens.count_into(counts)
    if not counts.kept:
        raise _nothing_left(data, reading.name, counts, encoder.needed, validating)
    counts.unused = counts.read - counts.kept - counts.bad - sum(counts.dropped.values())
    return tokenised


class _Encoder:
    """Encodes conversations and counts those that are dropped or bad."""

    def __init__(self, data: DataConfig, prompts: Prompts, reading: Reading, report: Report) -> None:
        self.data = data
        self.prompts = prompts
        self.reading = reading
        self.report = report
        self.dropped: dict[str, int] = {}
        self.needed: list[int] = []
        """The ``data.max_length`` that would have kept each sample dropped for it."""

    def counts(self) -> Counts:
        """What became of the samples that were read, but for those that are kept."""
        reading = self.reading
        tallies = [asdict(tally) for tally in reading.tallies] if len(reading.sources) > 1 else []
        return Counts(
            read=reading.read,
            dropped=self.dropped,
            bad=reading.bad,
            first_bad=reading.first_bad,
            notes=reading.notes,
            sources=tallies,
        )

    def encoded(self, conversations: Iterable[Conversation]) -> Iterator[Sample]:
        limits, done = Limits.of(self.data), 0
        self.report(0, None)
        for done, conversation in enumerate(conversations, start=1):
            tally = self.reading.tally(conversation.source)
            try:
                sample = encode_conversation(self.prompts, conversation.messages, limits)
            except DroppedSampleError as dropped:
                self.dropped[dropped.reason] = self.dropped.get(dropped.reason, 0) + 1
                tally.dropped += 1
                if dropped.needed:
                    self.needed.append(dropped.needed)
            except UserError as error:
                # A template may refuse a role or an order that the file's format allows.
                self.reading.refuse(conversation, str(error))
            else:
                tally.cut += sample[0].cut
                yield sample
            if done % REPORTED == 0:
                self.report(done, self.reading.expected())
        self.report(done, done)


def _characters(conversation: Conversation) -> int:
    return sum(len(str(message.get("content") or "")) for message in conversation.messages)


def _until_full(samples: Iterable[Sample], enough: int, full: int) -> Iterator[Sample]:
    """Ends when ``enough`` samples of ``full`` tokens, ``data.max_length``, have come: none can be longer."""
    for sample in samples:
        yield sample
        enough -= len(sample[0].ids) >= full
        if enough <= 0:
            return


def _nothing_left(data: DataConfig, source: str, counts: Counts, needed: list[int], validating: bool) -> UserError:
    purpose = "validate with" if validating else "train on"
    lines = [f"no sample is left to {purpose}: {counts.describe()}", f"read from {source}"]
    if counts.first_bad:
        lines.append(f"the first bad one: {counts.first_bad[0]}"[:300])
    if needed:
        choice = " or set data.over_length=cut" if data.over_length is OverLength.drop else ""
        lines.append(f"raise data.max_length (now {data.max_length}; the shortest sample needs {min(needed)}){choice}")
    return UserError("\n".join(lines))
