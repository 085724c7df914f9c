"""The same samples in each format are the same conversations, and what is wrong with a file is told with its place."""

import csv
import gzip
import io
import json
import os

import pytest
from characters import data_config
from test_preview import show
from test_read import ANSWER, QUESTION, lines, messages, refused

from glmexp.config.choices import OnBad
from glmexp.config.errors import UserError
from glmexp.data.read import read

# J11: an empty cell, numbers that are text, quotes, the separators and newlines within a cell, past turns.
SAMPLES = [
    {"prompt": "007", "response": "1e5", "system": "", "history": []},
    {"prompt": "TRUE", "response": 'He said "a,b\tc"', "system": "NaN", "history": [["你好", "您好"]]},
    {"prompt": "两行\n问", "response": "答\r\n完 ", "system": "", "history": []},
]


def table(delimiter):
    text = io.StringIO()
    writer = csv.DictWriter(text, SAMPLES[0].keys(), delimiter=delimiter)
    writer.writeheader()
    writer.writerows({**sample, "history": json.dumps(sample["history"])} for sample in SAMPLES)
    return text.getvalue()


def parquet(path, samples=None):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(arrow.Table.from_pylist(samples or SAMPLES), path)
    return path


@pytest.fixture
def formats(write, tmp_path):
    json_lines = "".join(json.dumps(sample) + "\n" for sample in SAMPLES)
    return {
        ".jsonl": write(json_lines, "a.jsonl"),
        ".json": write(json.dumps(SAMPLES, indent=1), "a.json"),
        ".csv": write(table(","), "a.csv"),
        ".tsv": write(table("\t"), "a.tsv"),
        ".parquet": parquet(tmp_path / "a.parquet"),
        ".csv.gz": write(gzip.compress(table(",").encode()), "a.csv.gz"),
        "by content": write(json_lines, "a.txt"),
        "Parquet by content": parquet(tmp_path / "a.data"),
    }


def test_the_same_samples_in_each_format_are_the_same_conversations_and_previews(formats):
    read_as = {name: messages(path) for name, path in formats.items()}
    wanted = read_as[".jsonl"]
    assert [turns[-1]["content"] for turns in wanted] == ["1e5", 'He said "a,b\tc"', "答\r\n完 "]
    assert wanted[1][0] == {"role": "system", "content": "NaN"}
    assert len(wanted[1]) == 5
    assert all(found == wanted for found in read_as.values())
    previews = {name: [line for line in show(path)[1:] if not line.startswith("sample")] for name, path in formats.items()}
    assert all(found == previews[".jsonl"] for found in previews.values())


def test_the_lines_of_a_csv_file_are_those_where_rows_begin(formats):
    assert lines(formats[".csv"]) == [2, 3, 4]
    assert lines(formats[".parquet"]) == [1, 2, 3]


# J4 for tables: messages as JSON in a cell, as lists in Parquet.
def test_messages_in_a_table(write, tmp_path):
    turns = [QUESTION, {**ANSWER, "metadata": None}]
    cell = json.dumps(turns, ensure_ascii=False).replace('"', '""')
    assert messages(write(f'id,messages\n1,"{cell}"\n', "a.csv")) == [[QUESTION, ANSWER]]
    assert messages(parquet(tmp_path / "a.parquet", [{"id": 1, "messages": turns}])) == [[QUESTION, ANSWER]]
    path = write('messages\n"[{""role"": "\n', "b.csv")
    refused(path, f"{path}:2:", "list of messages", "a text")


def test_parquet_of_sharegpt_turns_where_other_fields_are_null(tmp_path):
    turns = [{"from": "human", "value": "问", "role": None}, {"from": "gpt", "value": "答", "role": None}]
    assert messages(parquet(tmp_path / "a.parquet", [{"conversations": turns}])) == [[QUESTION, ANSWER]]


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("prompt,response\na,b\nc\nd,e\n", 3, ["1 cell,", "names 2 columns", "data.on_bad=skip"]),
        ("prompt,response\na,b\nc,d,e\nd,e\n", 3, ["3 cells", '"a, b"']),
        ('prompt,response\na,b\n"c"x,d\nd,e\n', 3, ["not valid CSV", "expected after"]),
        ("prompt,response\na,b\nc,\0\nd,e\n", 3, ["NUL"]),
        ("prompt,response\na,b\nc,\n\nd,e\n", 3, ["'response' is empty"]),
        (b"prompt,response\na,b\nc,\xff\xff\nd,e\n", 3, ["not UTF-8 text: byte 3 of the line, 0xff"]),
    ],
)
def test_a_bad_row_is_named_or_skipped(write, content, line, words):
    path = write(content, "a.csv")
    refused(path, f"{path}:{line}:", *words)
    found = read(data_config(path, on_bad=OnBad.skip))
    assert [conversation.messages[-1]["content"] for conversation in found] == ["b", "e"]
    assert found.bad == 1


def test_a_quote_that_is_never_closed_cannot_be_skipped(write):
    path = write('prompt,response\na,b\nc,"d\ne,f\ng,h\n', "a.csv")
    assert "on_bad" not in refused(path, f"{path}:3:", "never closed", on_bad=OnBad.skip)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("你好,您好\n再见,好的\n", ["found: 你好, 您好", "first line must name the columns", "'data.columns.prompt=\"你好\"'"]),
        ("id,user_question,agent_answer\n1,a,b\n", ["data.columns.prompt=user_question data.columns.response=agent_answer"]),
        ("prompt;response\na;b\n", ["found: prompt;response", "separated by ','", "';'"]),
        ("prompt,response,prompt\na,b,c\n", ["two columns have the name 'prompt'"]),
        ('{"prompt": "a", "response": "b"}\n', ["content is JSON", ".jsonl"]),
    ],
)
def test_a_header_that_names_no_columns_is_told(write, content, words):
    path = write(content, "a.csv")
    assert "on_bad" not in refused(path, f"{path}:1:", *words, on_bad=OnBad.skip)


def test_columns_of_a_table_are_mapped_and_an_absent_one_is_told(write, tmp_path):
    path = write("id, q ,a\n1,问,答\n", "a.csv")
    assert messages(path, columns={"prompt": "q", "response": "a"}) == [[QUESTION, ANSWER]]
    refused(path, f"{path}:1:", "no column 'b'", "found: id, q, a", columns={"prompt": "q", "response": "b"})
    wrong = write("id,question,answer\n1,问,答\n", "b.csv")
    refused(wrong, "no column 'qestion'", "data.columns.prompt=question", columns={"prompt": "qestion", "response": "answer"})
    path = parquet(tmp_path / "a.parquet", [{"id": 1, "q": "问", "a": "答"}])
    assert messages(path, columns={"prompt": "q", "response": "a"}) == [[QUESTION, ANSWER]]
    refused(path, "none of the usual columns", "found: id, q, a")


def test_a_number_in_parquet_is_told_as_in_json(tmp_path):
    path = parquet(tmp_path / "a.parquet", [{"prompt": 7, "response": "b"}])
    refused(path, f"{path}:1:", "'prompt' must hold text, found a number")


def test_files_of_no_format(write):
    path = write("just words", "notes.txt")
    refused(path, str(path), ".jsonl, .json, .csv, .tsv", ".parquet")
    refused(write(b"PK\x03\x04\x14\0", "a.xlsx"), "tells a format", ".parquet")
    path = write(b"PAR1\x15\x04\xff\xfe", "a.parquet")
    assert "on_bad" not in refused(path, f"{path}:1:", "not a Parquet file, or a damaged one", on_bad=OnBad.skip)
    refused(path, "data.encoding=gbk has no effect", encoding="gbk")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(b"prompt,response\na,b\n"), "a gzip archive: let its name end with .gz"),
        (b"PK\x03\x04\x14\x00", "an Excel file"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "an Excel file"),
        (b"PAR1\x15\x04", "let its name end with .parquet"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    ],
    ids=["gzip", "zip", "xls", "parquet", "zstd"],
)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_what_is_no_text_is_told(write, content, told, name):
    path = write(content, name)
    refused(path, f"{path} holds no text", told)


@pytest.mark.parametrize(
    "content", [b"not packed", gzip.compress(b'{"prompt": "a", "response": "b"}\n' * 9)[:-9]], ids=["not packed", "cut short"]
)
def test_a_damaged_archive_is_told(write, content):
    path = write(content, "a.jsonl.gz")
    refused(path, str(path), "gzip archive is damaged")


# Several files.
def test_files_come_in_the_order_named_and_those_of_a_pattern_by_name(write, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "deep/er/c.jsonl", "[1].jsonl"):
        write([{"prompt": "问", "response": name}], name)
    write("prompt,response\n问,d.csv\n", "d.csv")

    def answers(path, **changes):
        return [turns[-1]["content"] for turns in messages(path, **changes)]

    assert answers([str(tmp_path / "d.csv"), str(tmp_path / "*.jsonl")]) == ["d.csv", "[1].jsonl", "a.jsonl", "b.jsonl"]
    assert answers(f"{tmp_path}/**/[ab].jsonl") == ["a.jsonl", "b.jsonl"]
    assert answers(f"{tmp_path}/**/*.jsonl")[-1] == "deep/er/c.jsonl"
    assert answers(f"{tmp_path}/[1].jsonl") == ["[1].jsonl"], "a file of that very name comes before a pattern"
    assert answers([f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"], limit=1) == ["a.jsonl"]
    refused([str(tmp_path / "a.jsonl"), str(tmp_path / "a*.jsonl")], f"{tmp_path}/a.jsonl twice")
    refused(f"{tmp_path}/x*.jsonl", f"data.path={tmp_path}/x*.jsonl matches no file")


def test_each_file_has_a_form_of_its_own_and_messages_name_the_right_one(write):
    paths = [
        write([{"content": "问", "summary": "答"}] * 2, "a.jsonl"),
        write("instruction,output\n问,答\n", "b.csv"),
        write([{"messages": [QUESTION, ANSWER]}, {"prompt": "问", "response": "答"}], "c.jsonl"),
    ]
    refused(paths, f"{paths[2]}:2:", "no column 'messages'")
    found = read(data_config(paths, on_bad=OnBad.skip))
    assert [(conversation.place, conversation.messages) for conversation in found] == [
        (f"{path}:{line}", [QUESTION, ANSWER]) for path, line in ((paths[0], 1), (paths[0], 2), (paths[1], 2), (paths[2], 1))
    ]
    assert [(tally.read, tally.bad) for tally in found.tallies] == [(2, 0), (1, 0), (2, 1)]
    assert (found.read, found.bad) == (5, 1)


def test_an_optional_column_may_be_in_one_file_alone(write):
    paths = [write([{"prompt": "a", "response": "b"}], "a.jsonl")]
    refused(paths, "data.columns.history=past", columns={"history": "past"})
    paths.append(write([{"prompt": "a", "response": "b", "past": [["c", "d"]]}], "b.jsonl"))
    assert [len(turns) for turns in messages(paths, columns={"history": "past"})] == [2, 4]


def test_what_is_read_is_reckoned_from_the_bytes(write):
    paths = [write([{"prompt": "a", "response": "b"}] * 30000, name) for name in ("a.jsonl", "b.jsonl")]
    reading = read(data_config(paths))
    reckoned = [reading.expected() for number, _ in enumerate(reading) if number % 10000 == 9999]
    assert all(55000 < expected < 65000 for expected in reckoned), reckoned
    assert read(data_config(paths, limit=7)).expected() is None


# Robustness: nothing hangs, and nothing that changes meanwhile is taken for whole.
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    refused(tmp_path / "pipe.jsonl", "is a pipe or a device")


def test_a_file_that_grows_while_it_is_read_is_told(write):
    path = write([{"prompt": "a", "response": "b"}] * 3)
    reading = iter(read(data_config(path)))
    next(reading)
    with path.open("a") as handle:
        handle.write('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(UserError, match="changed while it was read"):
        list(reading)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_line_of_fifty_megabytes_is_read(write, name):
    long = "天" * (50 * 2**20 // 3)
    sample = f'{{"prompt": "a", "response": "{long}"}}'
    content = {"a.jsonl": sample, "a.json": f"[{sample}, {sample}]", "a.csv": f"prompt,response\na,{long}\n"}[name]
    found = messages(write(content, name))
    assert {len(turns[-1]["content"]) for turns in found} == {len(long)}


def test_a_broken_first_line_of_a_table_cannot_be_skipped(write):
    path = write('"prompt"x,response\nprompt,response\na,b\n', "a.csv")
    assert "on_bad" not in refused(path, f"{path}:1: not valid CSV", on_bad=OnBad.skip)
