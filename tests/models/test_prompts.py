"""Prompts and label masks against the official code: ChatGLM2's ptuning, ChatGLM3's and GLM-4's finetune_demo."""

import json
from pathlib import Path

import pytest

from glmexp.config.choices import Turns
from glmexp.config.errors import UserError
from glmexp.models import load_tokenizer
from glmexp.models.prompts import prompts_for

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def chatglm2():
    return load_tokenizer(GOLDEN, template="chatglm2")


@pytest.fixture(scope="module")
def chatglm3():
    return load_tokenizer(GOLDEN, template="chatglm3")


def joined(segments):
    """(input ids, labels) as the data side joins them."""
    ids = [token for segment in segments for token in segment.ids]
    return ids, [token if segment.learn else -100 for segment in segments for token in segment.ids]


def turns(history, query, answer=None):
    messages = [
        {"role": role, "content": text}
        for pair in history or []
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    messages.append({"role": "user", "content": query})
    return messages if answer is None else [*messages, {"role": "assistant", "content": answer}]


def test_chatglm2_prompt(chatglm2):
    for case in EXPECTED["build_prompt"]:
        assert chatglm2.encode_prompt(case["query"], case["history"]) == case["ids"]
        assert prompts_for(chatglm2).prompt(turns(case["history"], case["query"])) == case["ids"]
        assert chatglm2.decode(case["ids"][2:]) == case["prompt"]


def test_chatglm2_labels_as_the_official_ptuning(chatglm2):
    prompts = prompts_for(chatglm2)
    for case in EXPECTED["ptuning_train"]:
        prompt, answer, closing = prompts.conversation(turns(case["history"], case["query"], case["answer"]), Turns.last)
        assert (prompt.learn, answer.learn, closing.learn, closing.closing) == (False, True, True, True)
        source, target = prompt.ids[: case["max_source_length"]], answer.ids[: case["max_target_length"]]
        ids = source + target + closing.ids
        labels = [-100] * len(source) + target + closing.ids
        padding = case["max_source_length"] + case["max_target_length"] + 1 - len(ids)
        assert ids + [0] * padding == case["input_ids"]
        assert labels + [-100] * padding == case["labels"]


def test_chatglm2_system_text_comes_before_the_first_round(chatglm2):
    ids = prompts_for(chatglm2).prompt([{"role": "system", "content": "简短。"}, {"role": "user", "content": "你好"}])
    assert chatglm2.decode(ids[2:]) == "简短。\n\n[Round 1]\n\n问：你好\n\n答："


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (["user", "user", "assistant"], "message 2 after the system text is 'user'"),
        (["assistant", "assistant"], "'assistant' where 'user' is due"),
        (["user", "assistant", "observation", "assistant"], "'observation'"),
        (["user", "assistant", "user"], "ends with an assistant message"),
        ([], "ends with nothing"),
    ],
)
def test_chatglm2_refuses_other_orders(chatglm2, roles, said):
    with pytest.raises(UserError, match=said):
        prompts_for(chatglm2).conversation([{"role": role, "content": "x"} for role in roles])


def test_chatglm2_prompt_ends_with_a_question(chatglm2):
    with pytest.raises(UserError, match="ends with a user message"):
        prompts_for(chatglm2).prompt([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])


def test_chatglm3_messages(chatglm3):
    prompts = prompts_for(chatglm3)
    for case in EXPECTED["chatglm3_build_single_message"]:
        assert prompts.prompt([case]) == [*prompts.prefix, *case["ids"], prompts.roles["assistant"]]


def test_chatglm3_prompt_with_history_and_tools(chatglm3):
    for case in [*EXPECTED["chatglm3_build_chat_input"], EXPECTED["chatglm3_tools"]]:
        assert chatglm3.encode_prompt(case["query"], case["history"]) == case["ids"]


def test_chatglm3_labels_as_the_finetune_demo(chatglm3):
    prompts = prompts_for(chatglm3)
    for case in EXPECTED["chatglm3_finetune_demo"]:
        length = case["max_input_length"] + case["max_output_length"] + 1
        ids, labels = joined(prompts.conversation(case["conversations"]))
        assert ids[:length] == case["input_ids"]
        assert labels[:length] == case["labels"]


def test_chatglm3_observations_are_not_learnt(chatglm3):
    prompts = prompts_for(chatglm3)
    messages = [{"role": role, "content": role} for role in ("user", "assistant", "tool", "assistant")]
    segments = prompts.conversation(messages)
    masked = [token for segment in segments if not segment.learn for token in segment.ids]
    observed = chatglm3.encode("tool", add_special_tokens=False)
    assert masked[-1] == prompts.roles["assistant"]
    assert masked[-1 - len(observed) : -1] == observed
    # The assistant's turn is ended by the role that comes next: that token is what it has to write.
    assert [segment.ids for segment in segments if segment.closing] == [[prompts.roles["observation"]], [2]]


def test_a_single_answer_begins_with_its_prompt(chatglm2, chatglm3):
    for tokenizer in (chatglm2, chatglm3):
        prompts = prompts_for(tokenizer)
        messages = turns([], "你好", "你好！")
        assert prompts.conversation(messages)[0].ids == prompts.prompt(messages[:-1])


def test_an_unknown_role_names_the_nearest(chatglm3):
    with pytest.raises(UserError, match="Did you mean user"):
        prompts_for(chatglm3).prompt([{"role": "users", "content": "x"}])


def test_a_format_whose_tokens_are_missing_is_refused(chatglm2):
    tokenizer = load_tokenizer(GOLDEN, template="chatglm2")
    tokenizer.init_kwargs["glmexp_template"] = "chatglm3"
    with pytest.raises(UserError, match=r"<\|system\|>"):
        prompts_for(tokenizer)


ROUNDS = [{"role": "system", "content": "你是助手"}, *turns([("一", "好的"), ("二", "不好")], "三", "可以")]


@pytest.mark.parametrize("template", ["chatglm2", "chatglm3"])
def test_the_last_answer_alone_follows_the_prompt_that_it_is_asked_with(template):
    prompts = prompts_for(load_tokenizer(GOLDEN, template=template))
    prompt, answer, closing = prompts.conversation(ROUNDS, Turns.last)
    assert prompt.ids == prompts.prompt(ROUNDS[:-1])
    assert [segment.learn for segment in (prompt, answer, closing)] == [False, True, True]
    assert prompts.conversation(ROUNDS, Turns.all)[-2:] == [answer, closing]


def test_every_round_of_chatglm2_is_learnt_with_its_end_token(chatglm2):
    prompts = prompts_for(chatglm2)
    segments = prompts.conversation(ROUNDS)
    answers = [segment.ids for segment in segments if segment.learn and not segment.closing]
    assert answers == [prompts.encode(text) for text in ("好的", "不好", "可以")]
    assert [segment.ids for segment in segments if segment.closing] == [[chatglm2.eos_token_id]] * 3
    asked = [segment.ids for segment in segments if not segment.learn]
    assert asked[0] == prompts.prompt(ROUNDS[:2])
    # A later round is written as within the original's prompt, where no blank stands before it.
    whole = prompts.prompt(ROUNDS[:-1])
    for ids, number in zip(asked[1:], "23", strict=True):
        assert any(whole[start : start + len(ids)] == ids for start in range(len(whole)))
        assert chatglm2.decode(ids).startswith(f"\n\n[Round {number}]\n\n问：")


def test_text_is_encoded_as_transformers_does_whatever_was_set_on_the_tokenizer_before(chatglm2):
    prompts, text = prompts_for(chatglm2), "people </s> [gMASK] 你好\n\n"
    wanted = chatglm2.encode(text, add_special_tokens=False, split_special_tokens=True)
    chatglm2(["一", "二三四五"], padding=True, truncation=True, max_length=3, split_special_tokens=False)
    assert prompts.encode(text) == wanted
