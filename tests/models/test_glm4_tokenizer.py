"""GLM-4's tokenizer from a tiktoken rank file; the golden ids are tiktoken's own on a small file with GLM-4's pattern."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from glmexp.config.errors import UserError
from glmexp.models import ModelLoadError, load_tokenizer
from glmexp.models.conversation import TEMPLATE_KEY
from glmexp.models.prompts import prompts_for

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer" / "glm4"
STRINGS = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))["strings"]
RANKS = len((GOLDEN / "tokenizer.model").read_text().splitlines())


CONFIG = {"model_type": "chatglm", "padded_vocab_size": 151552}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(GOLDEN, template="glm4")


def test_the_format_is_read_from_the_folder(tmp_path):
    shutil.copy(GOLDEN / "tokenizer.model", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert load_tokenizer(tmp_path).init_kwargs[TEMPLATE_KEY] == "glm4"


def test_ids_are_tiktokens(tokenizer):
    for case in STRINGS:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["text"]


def test_special_tokens_in_the_originals_order(tokenizer):
    # GLM-4: 151329 ranks, <|endoftext|> 151329, [gMASK] 151331, <sop> 151333, <|user|> 151336, 151343 in all.
    offsets = {"<|endoftext|>": 0, "[MASK]": 1, "[gMASK]": 2, "[sMASK]": 3, "<sop>": 4, "<eop>": 5, "<|system|>": 6}
    offsets |= {"<|user|>": 7, "<|assistant|>": 8, "<|observation|>": 9}
    assert {token: tokenizer.convert_tokens_to_ids(token) - RANKS for token in offsets} == offsets
    assert len(tokenizer) == RANKS + 14
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == RANKS
    assert tokenizer.encode("a")[:2] == [RANKS + 2, RANKS + 4]
    assert tokenizer.padding_side == "left"


def test_save_and_reload(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm"}))
    plain, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert ours.init_kwargs[TEMPLATE_KEY] == "glm4"
    for case in STRINGS:
        assert plain.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
    assert plain.encode("a") == ours.encode("a") == tokenizer.encode("a")
    assert ours.encode_prompt("你好") == tokenizer.encode_prompt("你好")


def test_prompt(tokenizer):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    found = tokenizer.encode_prompt("\n你好", [{"role": "system", "content": "<|user|>"}, {"role": "user", "content": "a"}])
    role = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("system", "user", "assistant")}
    assert found == [
        *(RANKS + 2, RANKS + 4, role["system"], *ids("\n"), *ids("<|user|>"), role["user"], *ids("\n"), *ids("a")),
        *(role["user"], *ids("\n"), *ids("\n你好"), role["assistant"]),
    ]


def test_labels_as_the_finetune_demo(tokenizer):
    """Every assistant message and the token after it; the last one is ended by <|user|>, not by <|endoftext|>."""
    prompts = prompts_for(tokenizer)
    messages = [{"role": role, "content": "hi"} for role in ("user", "assistant", "user", "assistant")]
    segments = prompts.conversation(messages)
    turn = tokenizer.encode("\n", add_special_tokens=False) + tokenizer.encode("hi", add_special_tokens=False)
    user, assistant = prompts.roles["user"], prompts.roles["assistant"]
    assert [(segment.ids, segment.learn) for segment in segments] == [
        ([RANKS + 2, RANKS + 4, user, *turn, assistant], False),
        (turn, True),
        ([user], True),
        ([*turn, assistant], False),
        (turn, True),
        ([user], True),
    ]


def test_tools_are_refused(tokenizer):
    with pytest.raises(UserError, match="tools"):
        tokenizer.encode_prompt("x", [{"role": "system", "content": "", "tools": [{"name": "f"}]}])


def test_a_damaged_rank_file_is_refused(tmp_path):
    shutil.copy(GOLDEN / "tokenizer.model", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    file = tmp_path / "tokenizer.model"
    lines = file.read_bytes().splitlines(keepends=True)
    for kept, said in ((lines[:200], "has no token for byte"), (lines[:300] + lines[301:], "leaves out ranks")):
        file.write_bytes(b"".join(kept))
        with pytest.raises(ModelLoadError, match=said):
            load_tokenizer(tmp_path)
    file.write_bytes(b"".join(lines[:300]) + b"IHRoZ")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model:301"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelLoadError, match="does not go with"):
        load_tokenizer(GOLDEN, template="chatglm2")
