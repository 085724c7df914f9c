"""From a data file to ids and labels, as ChatGLM2's P-tuning script and ChatGLM3's finetune_demo build them."""

import json
from pathlib import Path

import pytest
from characters import data_config

from glmexp.config.choices import Turns
from glmexp.data import Samples, collate, prepare
from glmexp.models import load_tokenizer
from glmexp.models.prompts import prompts_for

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))


def prompts(template):
    return prompts_for(load_tokenizer(GOLDEN, template=template))


@pytest.mark.parametrize("case", EXPECTED["ptuning_train"])
def test_chatglm2_ptuning(write, tmp_path, case):
    path = write([{"content": case["query"], "summary": case["answer"], "history": case["history"]}])
    limits = {key: case[key] for key in ("max_source_length", "max_target_length")}
    prepare(data_config(path, turns=Turns.last, **limits), prompts("chatglm2"), 705, 1, tmp_path)
    batch = collate([Samples.open(tmp_path).sample(0)], pad_id=0)
    padding = sum(limits.values()) + 1 - batch.tokens
    assert batch.input_ids[0].tolist() + [0] * padding == case["input_ids"]
    assert batch.labels[0].tolist() + [-100] * padding == case["labels"]


@pytest.mark.parametrize("case", EXPECTED["chatglm3_finetune_demo"])
def test_chatglm3_finetune_demo(write, tmp_path, case):
    # A second sample that always fits: the demo keeps a sample that was cut to nothing to learn, here it is left out.
    fits = {"conversations": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}
    path = write([{"conversations": case["conversations"]}, fits])
    max_length = case["max_input_length"] + case["max_output_length"] + 1
    prepare(data_config(path, max_length=max_length), prompts("chatglm3"), 709, 1, tmp_path)
    samples = Samples.open(tmp_path)
    if all(label == -100 for label in case["labels"]):
        assert (samples.counts.kept, sum(samples.counts.dropped.values())) == (1, 1)
        return
    ids, labels = samples.sample(0)
    assert ids.tolist() == case["input_ids"]
    assert labels.tolist() == case["labels"]


def test_prompt_begins_with_the_special_prefix_and_labels_with_the_answer(write, tmp_path):
    prepare(data_config(write([{"prompt": "你好", "response": "你好！"}])), prompts("chatglm2"), 705, 1, tmp_path)
    ids, labels = Samples.open(tmp_path).sample(0)
    special = EXPECTED["special_ids_chatglm2"]
    assert ids[:2].tolist() == [special["[gMASK]"], special["sop"]]
    learnt = [int(label) for label in labels if label != -100]
    assert learnt == [*load_tokenizer(GOLDEN, template="chatglm2").encode("你好！", add_special_tokens=False), special["eos"]]
