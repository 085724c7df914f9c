"""One JSON object to messages: which forms of samples are understood.

* ``content`` / ``summary`` (AdvertiseGen, ChatGLM2's P-tuning script),
* ``instruction`` / ``input`` / ``output`` (alpaca; a non-empty input follows the instruction on a new line),
* ``prompt`` / ``response`` / ``history`` (the past turns as pairs, or as messages),
* ``messages`` or ``conversations``: a list of ``role``/``content`` or ShareGPT's ``from``/``value``; ``metadata`` and
  ``tools`` of a message go through to formats that know them (ChatGLM3).

Each may have ``history`` (but for message lists) and ``system``. Other names are given with ``data.columns.*``. The form is
found at the first sample that has one, and all others must have the same.
"""

from dataclasses import dataclass
from typing import Any

from glmexp.config.data_schema import ColumnsConfig
from glmexp.data.encode import Message

PAIRS = (("content", "summary"), ("instruction", "output"), ("prompt", "response"))
MESSAGES = ("messages", "conversations")
FORMS_READ = (
    "read are JSON lines or a JSON array of content+summary, instruction(+input)+output, prompt+response(+history), "
    "messages or conversations"
)
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "observation",
    "tool": "tool",
}


class SampleError(Exception):
    """A sample that cannot be used.

    Args:
        what: what is wrong with it.
        move: what to do about it.
        text: the sample as it stands in the file, if it is no JSON value.
        fatal: nothing after it can be read, so it cannot be skipped.
    """

    def __init__(self, what: str, move: str, text: str | None = None, fatal: bool = False) -> None:
        super().__init__(what)
        self.move = move
        self.text = text
        self.fatal = fatal


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
        self._form: Form | None = None
        self._seen: dict[str, None] = {}

    def messages(self, sample: Any) -> list[Message]:
        """The messages of one sample, ending with the assistant's.

        Raises:
            SampleError: it is not usable; the message says what was wanted and what was found.
        """
        if not isinstance(sample, dict):
            raise SampleError(f"a sample must be a JSON object, found {_type(sample)}", FORMS_READ)
        if self._form is None:
            self._form = self._detect(sample)
        self._seen.update(dict.fromkeys(sample))
        form = self._form
        messages = _message_list(sample, form) if form.messages else _pair(sample, form, self.columns)
        system = _optional_text(sample, form.system, "data.columns.system")
        if system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        check_order(messages)
        return messages

    def columns_never_seen(self) -> str:
        """The optional columns that were set by name and are in no sample, as overrides; empty if there are none."""
        names = {name: getattr(self.columns, name) for name in ("input", "history", "system")}
        return ", ".join(f"data.columns.{name}={value}" for name, value in names.items() if value and value not in self._seen)

    def seen(self) -> str:
        """The columns of all samples so far."""
        return ", ".join(self._seen)

    def _detect(self, sample: dict[str, Any]) -> Form:
        columns = self.columns
        paired = columns.prompt or columns.response
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


def _first_known(sample: dict[str, Any], side: int) -> tuple[str, str]:
    """The usual pair of which one side is in the sample; prompt and response if there is none."""
    return next((pair for pair in PAIRS if pair[side] in sample), PAIRS[-1])


def _require(sample: dict[str, Any], name: str, key: str) -> Any:
    if name not in sample:
        found = ", ".join(map(str, sample)) or "no column"
        raise SampleError(
            f"no column {name!r}; found: {found}", f"name the column that holds the {key}: data.columns.{key}=<column>"
        )
    return sample[name]


def _unknown_form(sample: dict[str, Any]) -> SampleError:
    found = ", ".join(map(str, sample)) or "no column"
    texts = [name for name, value in sample.items() if isinstance(value, str)]
    prompt, response = texts[:2] if len(texts) > 1 else ("<column>", "<column>")
    return SampleError(
        "none of the usual columns (content+summary, instruction+output, prompt+response, messages, conversations); "
        f"found: {found}",
        f"name them, for example: data.columns.prompt={prompt} data.columns.response={response}",
    )


def _pair(sample: dict[str, Any], form: Form, columns: ColumnsConfig) -> list[Message]:
    prompt = _text(_require(sample, form.prompt, "prompt"), form.prompt, "prompt")
    extra = _optional_text(sample, form.input, "data.columns.input")
    if extra:
        prompt = f"{prompt}\n{extra}" if prompt else extra
    response = _text(_require(sample, form.response, "response"), form.response, "response")
    for name, value in ((form.prompt, prompt), (form.response, response)):
        if not value.strip():
            raise SampleError(f"column {name!r} is empty", "write a text there")
    messages = _history(sample.get(form.history), form.history)
    return [*messages, {"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def _text(value: Any, column: str, key: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SampleError(
            f"column {column!r} must hold text, found {_type(value)}",
            f"write it as a JSON string, or name another column: data.columns.{key}=<column>",
        )
    return value


def _optional_text(sample: dict[str, Any], column: str | None, key: str) -> str:
    value = sample.get(column) if column else None
    if value is None or isinstance(value, str):
        return value or ""
    raise SampleError(
        f"column {column!r} must hold text, found {_type(value)}", f"write it as a JSON string, or set {key}=<column>"
    )


def _history(value: Any, column: str) -> list[Message]:
    if value is None or value == "" or value == []:
        return []
    move = 'write it as [["question", "answer"], …], as messages, or as null'
    if not isinstance(value, list):
        raise SampleError(f"column {column!r} must be a list of past turns, found {_type(value)}", move)
    if all(isinstance(turn, dict) for turn in value):
        return [_message(turn, number) for number, turn in enumerate(value, start=1)]
    messages: list[Message] = []
    for number, turn in enumerate(value, start=1):
        if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(part, str) for part in turn)):
            raise SampleError(f"turn {number} of column {column!r} must be two texts, found {_type(turn)}", move)
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    return messages


def _message_list(sample: dict[str, Any], form: Form) -> list[Message]:
    name = form.messages or ""
    value = _require(sample, name, "messages")
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else _type(value)
        raise SampleError(f"column {name!r} must be a list of messages, found {found}", "write the messages there")
    return [_message(message, number) for number, message in enumerate(value, start=1)]


def _message(message: Any, number: int) -> Message:
    if not isinstance(message, dict):
        raise SampleError(f"message {number} must be an object, found {_type(message)}", 'write {"role": …, "content": …}')
    role_key, content_key = ("from", "value") if "from" in message and "role" not in message else ("role", "content")
    for key in (role_key, content_key):
        if not isinstance(message.get(key), str):
            found = _type(message[key]) if key in message else f"only {', '.join(map(str, message)) or 'nothing'}"
            raise SampleError(
                f"message {number} needs a text {key!r}, found {found}",
                'a message is {"role": …, "content": …} or {"from": …, "value": …}',
            )
    role = message[role_key]
    if role not in ROLES:
        raise SampleError(f"message {number} has the unknown role {role!r}", f"known are {', '.join(ROLES)}")
    extras = {key: message[key] for key in ("metadata", "tools") if message.get(key)}
    return {"role": ROLES[role], "content": message[content_key], **extras}


def check_order(messages: list[Message]) -> None:
    """Checks that the turns are in an order that a chat template can write.

    Raises:
        SampleError: a system message that is not first, no assistant turn, an end that is not the assistant's, an empty turn,
            or a turn that does not fit the one before it.
    """
    after = {
        "": ("system", "user"),
        "system": ("user",),
        "user": ("assistant",),
        "assistant": ("user", "observation", "tool"),
        "observation": ("assistant", "observation"),
        "tool": ("assistant", "tool"),
    }
    before = ""
    for number, message in enumerate(messages, start=1):
        role = message["role"]
        if role not in after[before]:
            place = f"after {before}" if before else "at the beginning"
            raise SampleError(
                f"message {number} ({role}) cannot stand {place}; wanted {' or '.join(after[before])}",
                "put the turns in order: an optional system message, then user and assistant in turn",
            )
        if role in ("user", "assistant") and not message["content"].strip():
            raise SampleError(f"message {number} ({role}) is empty", "write a text there, or leave the turn out")
        _check_characters(message["content"], number)
        before = role
    if before != "assistant":
        raise SampleError(
            f"the conversation ends with a {before} message, so there is no answer to learn"
            if any(message["role"] == "assistant" for message in messages)
            else "the conversation has no assistant message, so there is no answer to learn",
            "end it with an assistant message",
        )


def _check_characters(text: str, number: int) -> None:
    """JSON can escape one half of a surrogate pair, which no tokenizer can read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise SampleError(
            f"message {number} holds half a character, {half}", "write the whole character, or remove it"
        ) from error


def _type(value: Any) -> str:
    names: dict[type, str] = {
        dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"
    }  # fmt: skip
    return "null" if value is None else names[type(value)]
