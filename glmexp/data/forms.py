"""One sample to messages: which forms of samples are understood.

* ``content`` / ``summary`` (AdvertiseGen, ChatGLM2's P-tuning script),
* ``instruction`` / ``input`` / ``output`` (alpaca; a non-empty input follows the instruction on a new line),
* ``prompt`` / ``response`` / ``history`` (the past turns as pairs, or as messages), and ms-swift's ``query`` / ``response``,
* ``messages`` or ``conversations``: a list of ``role``/``content`` or ShareGPT's ``from``/``value``; ``metadata`` and
  ``tools`` of a message go through to formats that know them (ChatGLM3).

Each may have ``history`` (but for message lists) and ``system``. Other names are given with ``data.columns.*``, where ``a.b``
is the field ``b`` of the object in column ``a``. The form is found at the first sample of a file that has one, and all others
of the file must have the same.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glmexp.config.data_schema import ColumnsConfig
from glmexp.config.errors import nearest
from glmexp.data.encode import Message
from glmexp.data.errors import SHOWN, SampleError
from glmexp.data.turns import check_order, message_list, past_turns, type_of

PAIRS = (("content", "summary"), ("instruction", "output"), ("prompt", "response"), ("query", "response"))
ASKS = re.compile(r"question|query|prompt|instruct|input|ask|问|题", re.IGNORECASE)
ANSWERS = re.compile(r"answer|response|output|reply|completion|target|答|回复", re.IGNORECASE)
"""What the names of columns of questions and of answers hold, for a guess."""
MESSAGES = ("messages", "conversations")
FORMS_READ = (
    "read are JSON lines or a JSON array, CSV, TSV and Parquet, of content+summary, instruction(+input)+output, prompt or "
    "query+response(+history), messages or conversations"
)


@dataclass(frozen=True)
class Form:
    """The columns of a file: either ``messages``, or ``prompt`` and ``response``; the rest may be absent from a sample."""

    messages: str | None
    prompt: str
    response: str
    input: str | None
    history: str
    system: str


class Reader:
    """Turns the samples of one file into messages.

    Args:
        columns: ``data.columns``; a name that is set goes before the usual ones.
    """

    def __init__(self, columns: ColumnsConfig) -> None:
        self.columns = columns
        self.seen: dict[str, None] = {}
        """The columns of all samples so far, in order of appearance."""
        self._form: Form | None = None
        self._nested = [name for name in vars(columns).values() if name and "." in name]

    def know(self, names: Sequence[str]) -> list[str]:
        """Takes the columns of a table, before its rows come, and gives those to read.

        Raises:
            SampleError: they are not those of samples.
        """
        nested = [name for name in self._nested if name not in names and name.partition(".")[0] in names]
        self._form = form = self._detect(dict.fromkeys([*names, *nested], ""))
        self.seen.update(dict.fromkeys([*names, *nested]))
        wanted = (form.messages,) if form.messages else (form.prompt, form.response, form.input)
        wanted = (*wanted, form.system, form.history, "tools")
        roots = [name.partition(".")[0] if name in nested else name for name in wanted if name]
        return [name for name in dict.fromkeys(roots) if name in names]

    def messages(self, sample: Any) -> list[Message]:
        """The messages of one sample, ending with the assistant's.

        Raises:
            SampleError: it is not usable; the message says what was wanted and what was found.
        """
        if not isinstance(sample, dict):
            raise SampleError(f"a sample must be a JSON object, found {type_of(sample)}", FORMS_READ)
        if self._nested:
            sample = {**sample, **dict(_fields(sample, self._nested))}
        if self._form is None:
            self._form = self._detect(sample)
        if not sample.keys() <= self.seen.keys():
            self.seen.update(dict.fromkeys(sample))
        form = self._form
        messages = _listed(sample, form.messages) if form.messages else _pair(sample, form, self.columns)
        system = _optional_text(sample, form.system, "data.columns.system")
        if system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        elif system and messages[0]["content"] != system:
            raise SampleError(f"column {form.system!r} and the first message are two system texts", "leave one of them out")
        check_order(messages)
        return messages

    def _detect(self, sample: dict[str, Any]) -> Form:
        columns = self.columns
        paired = columns.prompt or columns.response or columns.input or columns.history  # a list of messages has none of them
        listed = columns.messages or (None if paired else next((name for name in MESSAGES if name in sample), None))
        usual = next((pair for pair in PAIRS if pair[0] in sample and pair[1] in sample), None)
        prompt = columns.prompt or (usual or _first_known(sample, 0))[0]
        response = columns.response or (usual or _first_known(sample, 1))[1]
        form = Form(
            listed, prompt, response, columns.input or ("input" if prompt == "instruction" else None),
            columns.history or "history", columns.system or "system",
        )  # fmt: skip
        wanted = [(listed, "messages")] if listed else [(prompt, "prompt"), (response, "response")]
        if not (listed or paired or usual):
            raise _unknown_form(sample)
        for name, key in wanted:
            _require(sample, name, key)
        return form


def columns_never_seen(columns: ColumnsConfig, seen: dict[str, None]) -> str:
    """The optional columns that were set by name and are in no sample, as overrides; empty if there are none."""
    names = {name: getattr(columns, name) for name in ("input", "history", "system")}
    return ", ".join(f"data.columns.{name}={value}" for name, value in names.items() if value and value not in seen)


def _fields(sample: dict[str, Any], names: Sequence[str]) -> list[tuple[str, Any]]:
    """Each of the dotted names that the sample has only as a field of an object, with its value."""
    found = []
    for name in names:
        if name in sample:
            continue
        value: Any = sample
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
        else:
            found.append((name, value))
    return found


def _first_known(sample: dict[str, Any], side: int) -> tuple[str, str]:
    """The usual pair of which one side is in the sample; prompt and response if there is none."""
    return next((pair for pair in PAIRS if pair[side] in sample), PAIRS[2])


def _found(sample: dict[str, Any]) -> str:
    return ", ".join(str(name)[:SHOWN] for name in sample)[: 5 * SHOWN] or "no column"


def _require(sample: dict[str, Any], name: str, key: str) -> Any:
    if name not in sample:
        close = nearest(name, map(str, sample), cutoff=0.75)
        raise SampleError(
            f"no column {name!r}; found: {_found(sample)}",
            f"name the column that holds the {key}: {_override(key, close or '<column>')}",
        )
    return sample[name]


def _unknown_form(sample: dict[str, Any]) -> SampleError:
    texts = [name for name, value in sample.items() if isinstance(value, str) and len(name) < SHOWN]
    guess = [next((name for name in texts if sign.search(name)), "<column>") for sign in (ASKS, ANSWERS)]
    prompt, response = texts if len(texts) == 2 else guess
    return SampleError(
        "none of the usual columns (content+summary, instruction+output, prompt+response, query+response, messages, "
        f"conversations); found: {_found(sample)}",
        f"name them, for example: {_override('prompt', prompt)} {_override('response', response)}",
    )


def _override(key: str, column: str) -> str:
    """``data.columns.KEY=COLUMN`` as a shell takes it, and Hydra, which wants quotes around what is not ASCII."""
    plain = column == "<column>" or re.fullmatch(r"[A-Za-z_][\w.-]*", column, re.ASCII)
    return f"data.columns.{key}={column}" if plain else shlex.quote(f'data.columns.{key}="{column}"')


def _listed(sample: dict[str, Any], name: str) -> list[Message]:
    messages = message_list(_require(sample, name, "messages"), name)
    tools = sample.get("tools")
    if tools and tools != "[]" and not any(message.get("tools") for message in messages):
        raise SampleError(
            "the sample has tools beside its messages, which are not read",
            'write them into its system message, {"role": "system", "content": …, "tools": […]}, or leave them out',
        )
    if sample.get("history"):
        raise SampleError(
            f"the sample has a history beside {name!r}, which is not read", f"put its turns into {name!r}, or leave it out"
        )
    return messages


def _pair(sample: dict[str, Any], form: Form, columns: ColumnsConfig) -> list[Message]:
    prompt = _text(_require(sample, form.prompt, "prompt"), form.prompt, "prompt")
    extra = _optional_text(sample, form.input, "data.columns.input")
    if extra:
        prompt = f"{prompt}\n{extra}" if prompt else extra
    response = _text(_require(sample, form.response, "response"), form.response, "response")
    for name, value in ((form.prompt, prompt), (form.response, response)):
        if not value.strip():
            raise SampleError(f"column {name!r} is empty", "write a text there")
    messages = past_turns(sample.get(form.history), form.history)
    return [*messages, {"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def _text(value: Any, column: str, key: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SampleError(
            f"column {column!r} must hold text, found {type_of(value)}",
            f"write it as a JSON string, or name another column: data.columns.{key}=<column>",
        )
    return value


def _optional_text(sample: dict[str, Any], column: str | None, key: str) -> str:
    value = sample.get(column) if column else None
    if value is None or isinstance(value, str):
        return value or ""
    raise SampleError(
        f"column {column!r} must hold text, found {type_of(value)}", f"write it as a JSON string, or set {key}=<column>"
    )
