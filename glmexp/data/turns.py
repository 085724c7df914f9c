"""The turns of one conversation: past turns and message lists in their usual spellings, and the order that turns must have."""

import json
from typing import Any

from glmexp.data.encode import Message
from glmexp.data.errors import SampleError

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


def past_turns(value: Any, column: str) -> list[Message]:
    """The messages of a column ``history``: pairs of texts, or messages; null, "" and [] are no turns.

    Raises:
        SampleError: it is something else.
    """
    value = from_json(value)
    if value is None or value == "" or value == []:
        return []
    move = 'write it as [["question", "answer"], …], as messages, or as null'
    if not isinstance(value, list):
        raise SampleError(f"column {column!r} must be a list of past turns, found {type_of(value)}", move)
    if all(isinstance(turn, dict) for turn in value):
        return [_message(turn, number) for number, turn in enumerate(value, start=1)]
    messages: list[Message] = []
    for number, turn in enumerate(value, start=1):
        if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(part, str) for part in turn)):
            raise SampleError(f"turn {number} of column {column!r} must be two texts, found {type_of(turn)}", move)
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    return messages


def message_list(value: Any, name: str) -> list[Message]:
    """The messages of column ``name``.

    Raises:
        SampleError: it is no list of messages.
    """
    value = from_json(value)
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else type_of(value)
        raise SampleError(f"column {name!r} must be a list of messages, found {found}", "write the messages there")
    return [_message(message, number) for number, message in enumerate(value, start=1)]


def _message(message: Any, number: int) -> Message:
    if not isinstance(message, dict):
        raise SampleError(f"message {number} must be an object, found {type_of(message)}", 'write {"role": …, "content": …}')
    sharegpt = message.get("from") is not None and message.get("role") is None  # a column of a table may hold both as null
    role_key, content_key = ("from", "value") if sharegpt else ("role", "content")
    _refuse_lost(message, number)
    for key in (role_key, content_key):
        if not isinstance(message.get(key), str):
            found = type_of(message[key]) if key in message else f"only {', '.join(map(str, message)) or 'nothing'}"
            raise SampleError(
                f"message {number} needs a text {key!r}, found {found}",
                'a message is {"role": …, "content": …} or {"from": …, "value": …}',
            )
    role = message[role_key]
    if role not in ROLES:
        raise SampleError(f"message {number} has the unknown role {role!r}", f"known are {', '.join(ROLES)}")
    extras = {"metadata": message.get("metadata"), "tools": from_json(message.get("tools"))}
    if not isinstance(extras["metadata"], str):  # ChatGLM3's is the text after the role; another's describes the sample
        del extras["metadata"]
    return {"role": ROLES[role], "content": message[content_key], **{key: value for key, value in extras.items() if value}}


def _refuse_lost(message: dict[str, Any], number: int) -> None:
    """Raises SampleError for what OpenAI's form has and no prompt format here can write."""
    if message.get("tool_calls") or message.get("function_call"):
        raise SampleError(
            f"message {number} has tool calls beside its text, which are not read",
            "write a call as text: an assistant message whose content is the call, then one of the role observation or tool",
        )
    if message.get("weight") not in (None, 1):
        raise SampleError(
            f"message {number} has weight {message['weight']}, which is not read",
            "choose the answers that are learnt with data.turns, or leave the weight out",
        )
    if message.get("reasoning_content"):
        raise SampleError(
            f"message {number} has reasoning_content beside its text, which is not read",
            "write it into the content as the model's prompt format has it, or leave it out",
        )


def from_json(value: Any) -> Any:
    """What a text that holds a JSON list stands for, as in a cell of a CSV file; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


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


def type_of(value: Any) -> str:
    """What a JSON value is, in words."""
    names: dict[type, str] = {
        dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"
    }  # fmt: skip
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
