"""The original tokenizers' ids, kept through saving; which format a folder has; what is refused.

The golden values are the original code's output.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from glmexp.config.errors import UserError
from glmexp.models import ModelLoadError, load_tokenizer
from glmexp.models.conversation import TEMPLATE_KEY

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
STRINGS = EXPECTED["strings"]


@pytest.fixture(scope="module", params=["chatglm2", "chatglm3"])
def original(request):
    return request.param, load_tokenizer(GOLDEN, template=request.param)


@pytest.fixture
def folder(tmp_path):
    """An original folder that says nothing of its version."""
    shutil.copy(GOLDEN / "tokenizer.model", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "chatglm", "padded_vocab_size": 768}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ChatGLMTokenizer"}))
    return tmp_path


def test_special_ids(original):
    template, tokenizer = original
    expected = dict(EXPECTED[f"special_ids_{template}"])
    assert len(tokenizer) == expected.pop("vocab_size")
    named = {"unk_and_pad": tokenizer.unk_token_id, "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
    assert named == {name: EXPECTED["special_ids_chatglm2"][name] for name in named}
    assert tokenizer.pad_token_id == tokenizer.unk_token_id
    tokens = [token for token in expected if token not in named]
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in tokens} == {token: expected[token] for token in tokens}


def test_strings_both_ways(original):
    tokenizer = original[1]
    for case in STRINGS:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
        assert tokenizer.encode(case["text"]) == case["ids_with_special"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["decoded"], case["text"]
        assert tokenizer.convert_ids_to_tokens(case["ids"]) == case["pieces"], case["text"]


def test_a_batch_is_padded_on_the_left_and_cut_on_the_right(original):
    tokenizer = original[1]
    padded, cut = EXPECTED["batch_left_pad"], EXPECTED["batch_truncated"]
    found = tokenizer(padded["texts"], padding=True)
    assert found["input_ids"] == padded["input_ids"]
    assert found["attention_mask"] == padded["attention_mask"]
    found = tokenizer(cut["texts"], padding=True, truncation=True, max_length=cut["max_length"])
    assert found["input_ids"] == cut["input_ids"]


def test_special_tokens_are_not_read_from_text(original):
    tokenizer = original[1]
    specials = [tokenizer.convert_tokens_to_ids(token) for token in ("[gMASK]", "sop", "</s>", "<unk>")]
    ids = tokenizer.encode("[gMASK]sop</s><unk> people philosophy", add_special_tokens=False)
    assert not set(ids) & set(specials)
    assert tokenizer.decode(ids) == "[gMASK]sop</s><unk> people philosophy"


def test_save_and_reload(original, tmp_path):
    template, tokenizer = original
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm"}))
    plain, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for case in STRINGS:
        for reloaded in (plain, ours):
            assert reloaded.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
            assert reloaded.encode(case["text"]) == case["ids_with_special"], case["text"]
            assert reloaded.decode(case["ids"]) == case["decoded"], case["text"]
    assert (plain.padding_side, plain.pad_token_id, plain.eos_token_id) == ("left", 0, 2)
    assert ours.init_kwargs[TEMPLATE_KEY] == template
    assert ours.encode_prompt("你好", [("a", "b")]) == tokenizer.encode_prompt("你好", [("a", "b")])
    again = tmp_path / "again"
    ours.save_pretrained(again)
    assert load_tokenizer(again).encode_prompt("你好") == tokenizer.encode_prompt("你好")


@pytest.mark.parametrize(
    ("file", "text", "template"),
    [
        (
            "tokenization_chatglm.py",
            'special_tokens = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]\n"[Round {}]"',
            "chatglm2",
        ),
        ("tokenization_chatglm.py", 'role_special_tokens = ["<|system|>", "<|user|>"]', "chatglm3"),
        ("modeling_chatglm.py", 'eos_token_id = [tokenizer.get_command("<|user|>")]', "chatglm3"),
        ("config.json", json.dumps({"model_type": "chatglm", "_name_or_path": "THUDM/chatglm2-6b"}), "chatglm2"),
        ("config.json", json.dumps({"model_type": "chatglm", "_name_or_path": "/models/ChatGLM3-6b-base"}), "chatglm3"),
        ("tokenizer_config.json", json.dumps({"name_or_path": "THUDM/chatglm2-6b"}), "chatglm2"),
        ("tokenizer_config.json", json.dumps({"chat_template": "[gMASK]sop<|user|>"}), "chatglm3"),
    ],
)
def test_the_format_is_read_from_the_folder(folder, file, text, template):
    (folder / file).write_text(text, encoding="utf-8")
    assert load_tokenizer(folder).init_kwargs[TEMPLATE_KEY] == template


def test_the_format_is_read_from_the_folders_name(folder, tmp_path):
    named = tmp_path / "models--zai-org--chatglm3-6b" / "snapshots" / "1"
    shutil.copytree(folder, named, ignore=shutil.ignore_patterns("models--*"))
    assert load_tokenizer(named).init_kwargs[TEMPLATE_KEY] == "chatglm3"


def test_a_folder_that_does_not_say_its_format_is_asked_for(folder):
    with pytest.raises(ModelLoadError, match=r"model\.template=chatglm2 or model\.template=chatglm3"):
        load_tokenizer(folder)
    assert load_tokenizer(folder, template="chatglm3").init_kwargs[TEMPLATE_KEY] == "chatglm3"


def test_code_beside_the_tokenizer_is_never_run(folder):
    """Cases K2 and C14: an auto_map folder with the original's Python loads, and no line of it runs."""
    canary = folder / "canary"
    code = f"open({str(canary)!r}, 'w')\n'[Round 1]'\n"
    for name in ("tokenization_chatglm.py", "configuration_chatglm.py", "modeling_chatglm.py"):
        (folder / name).write_text(code)
    auto_map = {"AutoTokenizer": ["tokenization_chatglm.ChatGLMTokenizer", None]}
    told = {"tokenizer_class": "ChatGLMTokenizer", "auto_map": auto_map}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    assert load_tokenizer(folder).init_kwargs[TEMPLATE_KEY] == "chatglm2"
    (folder / "tokenizer.model").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model is missing"):
        load_tokenizer(folder)
    assert not canary.exists()


def test_a_tokenizer_that_needs_its_own_code_is_refused(tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "tokenization_own.py").write_text(f"open({str(canary)!r}, 'w')\n")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}))
    told = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    with pytest.raises(ModelLoadError, match="tokenization_own") as raised:
        load_tokenizer(tmp_path)
    assert len(str(raised.value).splitlines()) <= 6
    assert not canary.exists()


def test_folders_that_cannot_be_loaded(folder, tmp_path):
    with pytest.raises(ModelLoadError, match="absent"):
        load_tokenizer(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelLoadError, match="has no tokenizer"):
        load_tokenizer(empty)
    model = (folder / "tokenizer.model").read_bytes()
    (folder / "tokenizer.model").write_bytes(model[:3000])
    with pytest.raises(ModelLoadError, match="not a readable SentencePiece model"):
        load_tokenizer(folder, "chatglm2")
    (folder / "tokenizer.model").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:e7dc\nsize 1018370\n")
    with pytest.raises(ModelLoadError, match="git lfs pull"):
        load_tokenizer(folder, "chatglm2")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json is not readable JSON"):
        load_tokenizer(folder, "chatglm2")


def test_an_unknown_template_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean chatglm2"):
        load_tokenizer(GOLDEN, template="chatgml2")
    with pytest.raises(UserError, match="SentencePiece"):
        load_tokenizer(GOLDEN, template="glm4")


def test_the_package_imports_without_torch():
    code = "import sys, glmexp.models; print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
