"""Validation samples: a file or split of their own, or some of the training samples that are held out.

A validation sample is encoded as one to train on, for its loss; for the answers that the model is to give itself, the prompt
and the wanted answer are kept as well.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from glmexp.config.choices import Turns
from glmexp.config.data_schema import DataConfig
from glmexp.config.errors import UserError
from glmexp.data.encode import Encoded, Message, Prompts
from glmexp.data.order import HELD_OUT, generator
from glmexp.data.store import Counts, Part, Question, Tokens

Sample = tuple[Encoded, list[Message]]
"""What ``encode_conversation`` gives."""


def validation_data(data: DataConfig) -> DataConfig | None:
    """How the validation samples are read, if they are a file or a split of their own."""
    if data.eval_path is None and data.eval_split is None:
        return None
    return replace(
        data,
        path=data.path if data.eval_path is None else data.eval_path,
        split=data.split if data.eval_split is None else data.eval_split,
        limit=data.eval_limit,
        eval_path=None,
        eval_split=None,
    )


@dataclass
class Tokenised:
    """The encoded samples of one source."""

    counts: Counts
    tokens: Tokens = field(default_factory=Tokens)
    messages: list[bytes] = field(default_factory=list)
    """The messages of each sample as JSON, where they are wanted."""

    def add(self, sample: Encoded, messages: list[Message] | None) -> None:
        """Adds one sample, with its messages if they are wanted."""
        self.tokens.add(sample.ids, sample.learnt, sample.cut, sample.turns_cut)
        if messages is not None:
            self.messages.append(json.dumps(messages, ensure_ascii=False).encode())

    def training(self) -> Part:
        """All of them, to train on."""
        return Part(self.tokens, self.counts)

    def validation(self, numbers: Sequence[int], counts: Counts, data: DataConfig, prompts: Prompts) -> Part:
        """The samples of these numbers, with what each of them asks."""
        tokens = self.tokens.chosen(numbers)
        tokens.count_into(counts)
        return Part(tokens, counts, self._questions(numbers, data, prompts))

    def _questions(self, numbers: Sequence[int], data: DataConfig, prompts: Prompts) -> Iterator[Question]:
        for number in numbers:
            *before, answer = json.loads(self.messages[number])
            one_answer = data.turns is Turns.last or all(message["role"] != "assistant" for message in before)
            prompt = prompts.prompt(before)[: data.max_source_length if one_answer else None]
            yield Question(prompt, before[-1]["content"], answer["content"])


def hold_out(whole: Tokenised, data: DataConfig, prompts: Prompts, seed: int) -> tuple[Part, Part]:
    """(what is trained on, what is held out): ``data.eval_share`` of the samples that were kept, drawn with ``train.seed``.

    Of those that are held out, the first ``data.eval_limit`` drawn are used; the others are not trained on either, so that the
    training does not depend on how many are.

    Raises:
        UserError: one of the two would be empty.
    """
    assert data.eval_share is not None
    count = len(whole.tokens)
    held = round(count * data.eval_share)
    if not 0 < held < count:
        raise UserError(
            f"data.eval_share={data.eval_share:g} of {count} samples holds out {held} and leaves {count - held} to train on: "
            f"each needs at least 1\n{whole.counts.describe()}\n"
            "set another share, take more samples, or name a file of validation samples: data.eval_path=FILE"
        )
    drawn = generator(seed, HELD_OUT).permutation(count)
    used = sorted(drawn[:held][: data.eval_limit].tolist())
    tokens = whole.tokens.chosen(sorted(drawn[held:].tolist()))
    counts = replace(whole.counts, held_out=held)
    tokens.count_into(counts)
    return Part(tokens, counts), whole.validation(used, Counts(read=held, unused=held - len(used)), data, prompts)
