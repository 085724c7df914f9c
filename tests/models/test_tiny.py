"""The packaged tiny model's folder: a small ChatGLM2 whose tokenizer goes through the same conversion."""

import json
from pathlib import Path

import glmexp.models
from glmexp.models import load_tokenizer
from glmexp.models.conversation import TEMPLATE_KEY
from glmexp.models.prompts import prompts_for

FOLDER = Path(glmexp.models.__file__).parent / "tiny"


def test_the_folder_is_small_and_holds_no_code():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 300_000
    assert {file.name for file in FOLDER.iterdir()} == {"README.md", "config.json", "tokenizer.model"}
    assert "auto_map" not in json.loads((FOLDER / "config.json").read_text())


def test_every_id_has_a_row_in_the_embedding():
    rows = json.loads((FOLDER / "config.json").read_text())["padded_vocab_size"]
    for template in ("chatglm2", "chatglm3"):  # ChatGLM3 has four role tokens more
        size = len(load_tokenizer("tiny", template))
        assert rows - 64 < size <= rows
        assert rows % 64 == 0


def test_its_format_is_chatglm2():
    tokenizer = load_tokenizer("tiny")
    assert tokenizer.init_kwargs[TEMPLATE_KEY] == "chatglm2"
    ids = tokenizer.encode_prompt("你好")
    assert tokenizer.convert_ids_to_tokens(ids[:2]) == ["[gMASK]", "sop"]
    assert tokenizer.decode(ids[2:]) == "[Round 1]\n\n问：你好\n\n答："


def test_text_goes_round():
    tokenizer = load_tokenizer("tiny")
    for text in ("你好，世界！", "Hello,  world!\n", " a\tb", "def f(x):\n    return x**2  # 注释", "😀 龘 123"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_shipped_instructions_have_prompts():
    file = FOLDER.parents[1] / "data" / "instruct.jsonl"
    prompts = prompts_for(load_tokenizer("tiny"))
    lengths = []
    for line in file.read_text(encoding="utf-8").splitlines():
        segments = prompts.conversation(json.loads(line)["messages"])
        assert segments[-1].ids == [2]
        lengths.append(sum(len(segment.ids) for segment in segments))
    # 66 on average with the tokenizer trained on this text; in bytes alone a sample would be 250.
    assert sum(lengths) / len(lengths) < 90
