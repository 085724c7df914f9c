import json

import pytest
from characters import data_config

from glmexp.config.choices import OnBad
from glmexp.config.errors import UserError
from glmexp.data.read import read

QUESTION = {"role": "user", "content": "问"}
ANSWER = {"role": "assistant", "content": "答"}


def messages(path, **changes):
    return [conversation.messages for conversation in read(data_config(path, **changes))]


def lines(path, **changes):
    return [conversation.line for conversation in read(data_config(path, **changes))]


def refused(path, *words, **changes):
    with pytest.raises(UserError) as caught:
        list(read(data_config(path, **changes)))
    message = str(caught.value)
    assert len(message.splitlines()) <= 6
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize(
    "sample",
    [
        {"content": "问", "summary": "答"},
        {"instruction": "问", "output": "答"},
        {"instruction": "问", "input": "", "output": "答"},
        {"instruction": "", "input": "问", "output": "答"},
        {"prompt": "问", "response": "答"},
        {"prompt": "问", "response": "答", "history": []},
        {"messages": [QUESTION, ANSWER]},
        {"conversations": [QUESTION, ANSWER]},
        {"conversations": [{"from": "human", "value": "问"}, {"from": "gpt", "value": "答"}]},
    ],
)
def test_the_usual_forms_give_the_same_messages(write, sample):
    assert messages(write([sample])) == [[QUESTION, ANSWER]]


def test_alpaca_input_follows_the_instruction_on_a_new_line(write):
    path = write([{"instruction": "翻译", "input": "你好", "output": "hello"}])
    assert messages(path)[0][0]["content"] == "翻译\n你好"


def test_a_system_text_comes_first_in_every_form(write):
    system = {"role": "system", "content": "短答"}
    for sample in ({"prompt": "问", "response": "答"}, {"conversations": [QUESTION, ANSWER]}):
        assert messages(write([{**sample, "system": "短答"}])) == [[system, QUESTION, ANSWER]]
        assert messages(write([{**sample, "system": None}])) == [[QUESTION, ANSWER]]


def test_sharegpt_roles_of_tool_calls(write):
    turns = [("system", "用工具"), ("human", "天气"), ("function_call", "get()"), ("observation", "晴"), ("gpt", "晴天")]
    path = write([{"conversations": [{"from": role, "value": text} for role, text in turns]}])
    assert [message["role"] for message in messages(path)[0]] == ["system", "user", "assistant", "observation", "assistant"]


def test_metadata_and_tools_go_through(write):
    system = {"role": "system", "content": "用工具", "tools": [{"name": "f"}]}
    call = {"role": "assistant", "content": "f()", "metadata": "f"}
    turns = [system, QUESTION, call, {"role": "observation", "content": "1"}, ANSWER]
    assert messages(write([{"conversations": turns}])) == [turns]


# J4: history null, [], missing, and a pair; the same file as lines and as an array.
HISTORIES = [
    {"prompt": "a", "response": "b", "history": None},
    {"prompt": "a", "response": "b", "history": []},
    {"prompt": "a", "response": "b"},
    {"prompt": "a", "response": "b", "history": ""},
    {"prompt": "a", "response": "b", "history": [["你好", "您好"]]},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_lines_and_an_array_read_alike_whatever_the_name(write, indent):
    as_lines = messages(write(HISTORIES, "train.json"))
    as_array = messages(write(json.dumps(HISTORIES, ensure_ascii=False, indent=indent), "train.jsonl"))
    assert as_lines == as_array
    assert [len(conversation) for conversation in as_lines] == [2, 2, 2, 2, 4]
    assert as_lines[4][0] == {"role": "user", "content": "你好"}


def test_history_may_be_messages(write):
    path = write([{"prompt": "a", "response": "b", "history": [QUESTION, ANSWER]}])
    assert messages(path)[0][:2] == [QUESTION, ANSWER]


@pytest.mark.parametrize("history", ["before", 3, {"q": "a"}, [["only one"]], [["q", 1]], ["q", "a"]])
def test_history_of_another_type_names_the_line(write, history):
    path = write([HISTORIES[0], {"prompt": "a", "response": "b", "history": history}])
    refused(path, f"{path}:2:", "'history'", '["question", "answer"]')


# J1
def test_a_bad_line_is_named_or_skipped(write):
    good = '{"prompt": "a", "response": "b"}\n'
    path = write(good * 2 + '{"prompt": "天为什么是蓝的", "response": }\n' + good * 2)
    refused(path, f"{path}:3:", '{"prompt": "天为什么是蓝的", "response": }', "data.on_bad=skip", "column 35")
    found = read(data_config(path, on_bad=OnBad.skip))
    assert [conversation.line for conversation in found] == [1, 2, 4, 5]
    assert (found.read, found.bad) == (5, 1)
    assert f"{path}:3:" in found.first_bad[0]


def test_blank_lines_a_missing_last_newline_and_a_byte_order_mark_are_fine(write):
    sample = '{"prompt": "a", "response": "b\u2028c"}'
    path = write(f"\ufeff\n{sample}\r\n  \n{sample}")
    assert lines(path) == [2, 4]
    assert messages(path)[0][1]["content"] == "b\u2028c"
    assert lines(write(f"\ufeff[{sample},\n\n{sample}]\n")) == [1, 3]


def test_an_array_tells_the_line_of_an_element(write):
    path = write('[\n {"prompt": "a", "response": "b"},\n\n {"prompt":\n  "c", "response": ""}\n]')
    refused(path, f"{path}:4:", "'response' is empty")
    assert lines(path, on_bad=OnBad.skip) == [2]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[\n{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": "b"}]', 3),
        ('[{"prompt": "a",\n"response": }]', 2),
        ('[{"prompt": "a", "response": "b"}', 1),
        ('[{"prompt": "a", "response": "b"}]\n\n{"prompt": "a", "response": "b"}', 3),
    ],
)
def test_a_broken_array_cannot_be_skipped(write, text, line):
    path = write(text)
    assert "on_bad" not in refused(path, f"{path}:{line}:", "array", on_bad=OnBad.skip)


# J3
def test_unknown_columns_are_listed_and_can_be_mapped(write):
    path = write([{"id": 1, "question": "问", "answer": "答"}])
    refused(path, f"{path}:1:", "question, answer", "data.columns.prompt=question data.columns.response=answer")
    assert messages(path, columns={"prompt": "question", "response": "answer"}) == [[QUESTION, ANSWER]]


def test_one_mapped_column_is_enough_if_the_other_is_usual(write):
    path = write([{"instruction": "问", "response": "答"}])
    refused(path, "found: instruction, response")
    assert messages(path, columns={"response": "response"}) == [[QUESTION, ANSWER]]
    path = write([{"messages": "not these", "q": "问", "response": "答"}])
    assert messages(path, columns={"prompt": "q"}) == [[QUESTION, ANSWER]]


def test_a_sample_in_the_middle_that_lacks_a_column_is_named(write):
    path = write([{"content": "问", "summary": "答"}] * 2 + [{"content": "问", "text": "答"}])
    refused(path, f"{path}:3:", "'summary'", "found: content, text", "data.columns.response=")


def test_a_mapped_column_that_is_not_there(write):
    path = write([{"prompt": "问", "response": "答"}])
    refused(path, f"{path}:1:", "'answr'", "found: prompt, response", columns={"response": "answr"})
    refused(path, "data.columns.history=hist", "found: prompt, response", columns={"history": "hist"})


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"prompt": "问", "response": 3}, ["'response'", "a number", "JSON string"]),
        ({"prompt": ["问"], "response": "答"}, ["'prompt'", "a list"]),
        ({"prompt": "问", "response": " \n"}, ["'response' is empty"]),
        ({"prompt": "问", "response": None}, ["'response' is empty"]),
        ({"prompt": "", "response": "答"}, ["'prompt' is empty"]),
        ({"prompt": "问", "response": "答", "system": 1}, ["'system'", "a number"]),
        ({"messages": []}, ["an empty list"]),
        ({"messages": "问"}, ["a list of messages", "a text"]),
        ({"messages": ["问"]}, ["message 1", "a text"]),
        ({"messages": [QUESTION, {"role": "assistant", "content": None}]}, ["message 2", "'content'", "null"]),
        ({"messages": [QUESTION, {"role": "assistant"}]}, ["message 2", "'content'", "only role"]),
        ({"messages": [{"role": "bot", "content": "x"}]}, ["unknown role 'bot'", "assistant"]),
        ({"messages": [QUESTION]}, ["no assistant message"]),
        ({"messages": [QUESTION, ANSWER, QUESTION]}, ["ends with a user message"]),
        ({"messages": [ANSWER]}, ["message 1 (assistant)", "at the beginning"]),
        ({"messages": [QUESTION, QUESTION, ANSWER]}, ["message 2 (user)", "after user"]),
        ({"messages": [QUESTION, ANSWER, {"role": "system", "content": "s"}]}, ["message 3 (system)"]),
        ({"messages": [QUESTION, {"role": "assistant", "content": ""}]}, ["message 2 (assistant) is empty"]),
        ("text", ["a JSON object", "a text"]),
        (None, ["a JSON object", "null"]),
    ],
)
def test_an_unusable_sample_is_named(write, sample, words):
    path = write([{"prompt": "a", "response": "b"}] * ("messages" not in (sample or {})) + [sample])
    line = 1 if "messages" in (sample or {}) else 2
    refused(path, f"{path}:{line}:", *words)


def test_half_a_character_is_named_and_can_be_printed(write):
    path = write('{"prompt": "\\ud83d", "response": "a"}\n')
    refused(path, ":1:", "half a character", r"\ud83d").encode("utf-8")
    refused(write('{"\\ud83d": "q"}'), ":1:", "none of the usual columns").encode("utf-8")


# J5
@pytest.mark.parametrize("content", ["", "\n \n\n", "[]", "\ufeff"])
def test_an_empty_file_says_so(write, content):
    path = write(content)
    refused(path, str(path), "0 samples read")


def test_nothing_but_bad_lines(write):
    path = write("x\ny\n")
    refused(path, "2 were bad", f"{path}:1:", on_bad=OnBad.skip)


def test_absent_file_and_folder(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("absent.jsonl", f"data.path={tmp_path}/absent.jsonl is not there")
    refused(tmp_path, f"data.path={tmp_path} is a folder", f"'data.path={tmp_path}/*.jsonl'")


def test_text_that_is_no_json_names_what_is_read(write):
    refused(write("prompt,response\na,b\n"), ":1:", "CSV", "JSON lines or a JSON array", "content+summary")
    refused(write('{\n "prompt": "a"\n}'), ":1:", "on one line")


def test_control_characters_of_a_bad_line_are_not_shown(write):
    message = refused(write(b'{"prompt": "\x1b[31m" oops}\n'), ":1:")
    assert "\x1b" not in message


def test_limit_reads_the_head_only(write):
    path = write('{"prompt": "a", "response": "b"}\n' * 3 + "bad\n")
    assert lines(path, limit=3) == [1, 2, 3]
    refused(path, ":4:", limit=4)


def test_the_form_of_ms_swift(write):
    path = write([{"query": "问", "response": "答", "history": [["你好", "您好"]], "system": "短答"}])
    assert [message["role"] for message in messages(path)[0]] == ["system", "user", "assistant", "user", "assistant"]
    assert messages(path)[0][-2:] == [QUESTION, ANSWER]


def test_fields_of_objects_are_named_with_a_dot(write):
    sample = {"in": {"q": "问"}, "out": {"best": {"a": "答"}}, "a.b": "短答"}
    columns = {"prompt": "in.q", "response": "out.best.a", "system": "a.b"}
    assert messages(write([sample]), columns=columns) == [[{"role": "system", "content": "短答"}, QUESTION, ANSWER]]
    path = write([sample, {"in": "问", "out": {}}])
    refused(path, f"{path}:2:", "no column 'in.q'; found: in, out", columns=columns)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"messages": [QUESTION, {**ANSWER, "content": None, "tool_calls": [{}]}]}, ["message 2 has tool calls", "as text"]),
        ({"messages": [QUESTION, {**ANSWER, "weight": 0}]}, ["message 2 has weight 0", "data.turns"]),
        ({"messages": [QUESTION, {**ANSWER, "weight": 0.5}]}, ["message 2 has weight 0.5"]),
        ({"messages": [QUESTION, {**ANSWER, "reasoning_content": "hm"}]}, ["message 2 has reasoning_content"]),
        ({"messages": [{"role": "system", "content": "A"}, QUESTION, ANSWER], "system": "B"}, ["two system texts"]),
        ({"messages": [QUESTION, ANSWER], "tools": [{"name": "f"}]}, ["tools beside its messages", "system message"]),
        ({"messages": [QUESTION, ANSWER], "history": [["你好", "您好"]]}, ["a history beside 'messages'", "leave it out"]),
    ],
)
def test_what_would_be_lost_is_told(write, sample, words):
    path = write([sample])
    refused(path, f"{path}:1:", *words)


def test_null_tools_and_weights_of_one_are_nothing_lost(write):
    turns = [{**QUESTION, "tool_calls": None}, {**ANSWER, "weight": 1}]
    samples = [{"messages": turns, "tools": []}, {"messages": turns, "tools": "[]", "history": []}]
    assert messages(write(samples)) == [[QUESTION, ANSWER]] * 2


def test_a_long_array_is_read_a_piece_at_a_time(write, monkeypatch):
    monkeypatch.setattr("glmexp.data.text.CHUNK", 7)  # shorter than any element, and than a character's bytes at places
    samples = [{"prompt": "问" * number, "response": "答\\u4e00\n" * number} for number in range(1, 9)]
    path = write(json.dumps(samples, ensure_ascii=False, indent=1))
    assert [turns[-1]["content"] for turns in messages(path)] == [sample["response"] for sample in samples]
    assert lines(path) == [2 + 4 * number for number in range(8)]
    refused(write('[{"prompt": "a", "response": "b"},\n 12345678901234567890]'), ":2:", "found a number")
    refused(write('[{"prompt": "a", "response": "b"},\n {"prompt": nul}]'), ":2:", "Expecting value")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": 1' + "0" * 5000 + ', "response": "b"}', "a number of too many digits"),
        ('{"prompt": ' + "[" * 100_000, "nested too deeply"),
        ('{"prompt": "a\tb", "response": "b"}', "Invalid control character at column 14"),
    ],
)
def test_why_a_line_is_no_json(write, text, words):
    refused(write(text), f"not valid JSON: {words}")
    if "column" not in words:
        refused(write(f"[{text}]"), f"not valid JSON: {words}")


def test_names_of_columns_that_no_terminal_can_show_are_escaped(write):
    message = refused(write('{"\\ud800": "x", "prompt": "a", "response": "b"}'), columns={"system": "sys"})
    assert r"found: \ud800, prompt" in message


def test_validation_data_is_told_by_its_own_setting(write, tmp_path):
    with pytest.raises(UserError, match=r"set data\.eval_path to a file with samples"):
        list(read(data_config(write("")), validating=True))
    with pytest.raises(UserError, match=r"^data\.eval_path=.* is not there"):
        read(data_config(tmp_path / "absent.jsonl"), validating=True)


def test_columns_whose_names_want_quotes_are_told_with_them(write):
    message = refused(write([{"问题": "a", "the answer": "b"}]))
    assert "example: 'data.columns.prompt=\"问题\"' 'data.columns.response=\"the answer\"'" in message


def test_a_mapped_column_of_pairs_is_not_lost_beside_messages(write):
    path = write([{"messages": [QUESTION, ANSWER], "past": []}])
    refused(path, "no column 'prompt'; found: messages, past", columns={"history": "past"})


def test_metadata_is_text_and_tools_may_be_json_in_text(write):
    system = {"role": "system", "content": "S", "tools": '[{"name": "f"}]'}
    turns = messages(write([{"messages": [system, QUESTION, {**ANSWER, "metadata": {"id": 1}}], "system": "S"}]))
    assert turns == [[{**system, "tools": [{"name": "f"}]}, QUESTION, ANSWER]]
