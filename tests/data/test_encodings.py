"""Text in the encodings that data comes in: told by the content, or named with data.encoding."""

import json

import pytest
from characters import data_config
from test_read import ANSWER, QUESTION, messages, refused

from glmexp.config.choices import OnBad
from glmexp.data.read import read

SAMPLE = {"prompt": "问", "response": "答"}
LONG = {"prompt": "天为什么是蓝的?", "response": "因为空气散射蓝光比红光多。"}


def text(*samples):
    return "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030", "gbk"])
@pytest.mark.parametrize("kind", ["lines", "array", "csv"])
def test_encodings_are_told_by_the_content(write, encoding, kind):
    content = {
        "lines": text(SAMPLE, LONG),
        "array": json.dumps([SAMPLE, LONG], ensure_ascii=False),
        "csv": f"prompt,response\n问,答\n{LONG['prompt']},{LONG['response']}\n",
    }[kind]
    reading = read(data_config(write(content.encode(encoding), f"a.{'csv' if kind == 'csv' else 'json'}")))
    found = [conversation.messages for conversation in reading]
    assert found[0] == [QUESTION, ANSWER]
    assert [turn["content"] for turn in found[1]] == [LONG["prompt"], LONG["response"]]
    told = {"utf-8": [], "utf-8-sig": [], "utf-16": ["UTF-16"], "utf-32": ["UTF-32"]}.get(encoding, ["GB18030"])
    assert [note.rpartition(" ")[2] for note in reading.notes] == told


def test_an_encoding_can_be_forced(write):
    for encoding in ("big5", "utf-16-le", "utf-16", "GBK", "utf8"):
        content = text({"prompt": "天", "response": "地"}).encode(encoding)
        reading = read(data_config(write(content), encoding=encoding))
        assert [conversation.messages[-1]["content"] for conversation in reading] == ["地"]
        assert not reading.notes
    path = write(text(SAMPLE, SAMPLE).encode("gbk"))
    refused(path, f"{path}:1:", "not UTF-8 text: byte 13 of the line, 0xce", "data.encoding", encoding="utf-8")


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_big5_that_passes_for_gb18030_is_doubted(write, name):
    content = (
        "prompt,response\n你好嗎,我很好\n"
        if name.endswith("csv")
        else json.dumps([{"prompt": "你好嗎", "response": "我很好"}], ensure_ascii=False)
    )
    path = write(content.encode("big5"), name)
    reading = read(data_config(path))
    list(reading)
    assert [note.rpartition(": ")[2] for note in reading.notes] == ["if it is Big5, set data.encoding=big5"]


def test_utf_16_without_a_mark_is_told(write):
    path = write('{"prompt": "a", "response": "b"}\n'.encode("utf-16-le"))
    refused(path, f"{path}:1:", "NUL", "data.encoding=utf-16-le")


def test_utf_16_that_ends_in_the_middle_of_a_character(write):
    path = write(text(SAMPLE, SAMPLE).encode("utf-16")[:-3])
    assert "on_bad" not in refused(path, f"{path}:2:", "not UTF-16 text", on_bad=OnBad.skip)
    path = write(json.dumps([SAMPLE, SAMPLE], ensure_ascii=False, indent=1).encode("utf-16")[:-3])
    assert "on_bad" not in refused(path, f"{path}:9:", "not UTF-16 text", on_bad=OnBad.skip)


@pytest.mark.parametrize(
    ("encodings", "line", "words"),
    [
        (["utf-8", "utf-8", "gb18030"], 3, ["not UTF-8 text: byte 13 of the line, 0xcc", "data.encoding=gb18030"]),
        (["gb18030", "gb18030", "utf-8"], 3, ["not GB18030 text", "but UTF-8: byte 13 of the line, 0xe5"]),
        (["gb18030", "utf-8", "gb18030", "gb18030"], 2, ["but UTF-8"]),
    ],
)
def test_a_mixture_is_told_with_line_and_byte(write, encodings, line, words):
    path = write(b"".join(text(LONG).encode(encoding) for encoding in encodings))
    refused(path, f"{path}:{line}:", *words)
    found = read(data_config(path, on_bad=OnBad.skip))
    assert {conversation.messages[-1]["content"] for conversation in found} == {LONG["response"]}
    assert found.bad == 1


def test_one_broken_byte_in_utf_8_does_not_make_it_gb18030(write):
    path = write(text(LONG, LONG).encode() + b'{"prompt": "a", "response": "\xe4\xbd"}\n')
    refused(path, f"{path}:3:", "not UTF-8 text: byte 30 of the line, 0xe4")


def test_a_few_characters_that_are_utf_8_by_chance_do_not_make_a_mixture(write):
    by_chance = {"prompt": "小小", "response": "小"}
    "小小小".encode("gb18030").decode("utf-8")
    found = messages(write(text(LONG, by_chance, LONG).encode("gb18030")))
    assert [turn["content"] for turn in found[1]] == ["小小", "小"]


def test_ascii_alone_tells_nothing(write):
    reading = read(data_config(write('{"prompt": "a", "response": "b"}\n')))
    assert len(list(reading)) == 1, "and is UTF-8 as much as GB18030"
    assert reading.notes == []
