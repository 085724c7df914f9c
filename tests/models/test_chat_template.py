"""Prompts by a tokenizer's own chat template: what is learnt, multi-turn masks, and templates that cannot be used."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from glmexp.config.choices import Turns
from glmexp.config.errors import UserError
from glmexp.models import load_tokenizer
from glmexp.models.conversation import TEMPLATE_KEY
from glmexp.models.prompts import prompts_for

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPEN_ENDED = (
    "<s>{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
REWRITES_HISTORY = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n"
    "{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONVERSATION = [
    {"role": "user", "content": "hi 你好"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "Because."},
]


def make(template, merges=()):
    """A byte-level tokenizer: a token a byte, the given merges, and the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, *("".join(pair) for pair in merges)])}
    backend = Tokenizer(BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", name_or_path="made")
    tokenizer.chat_template = template
    return tokenizer


def shown(tokenizer, segments):
    return [(tokenizer.decode(segment.ids), segment.learn, segment.closing) for segment in segments]


def test_every_answer_is_learnt_with_its_end_token():
    tokenizer = make(CHATML)
    segments = prompts_for(tokenizer).conversation(CONVERSATION)
    assert shown(tokenizer, segments) == [
        ("<|im_start|>user\nhi 你好<|im_end|>\n<|im_start|>assistant\n", False, False),
        ("Hello!", True, False),
        ("<|im_end|>", True, True),
        ("\n", False, False),
        ("<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n", False, False),
        ("Because.", True, False),
        ("<|im_end|>", True, True),
        ("\n", False, False),
    ]
    whole = tokenizer.apply_chat_template(CONVERSATION, tokenize=True, return_dict=False)
    assert [token for segment in segments for token in segment.ids] == whole


def test_the_prompt_is_the_chat_templates_own():
    tokenizer = make(CHATML)
    own = tokenizer.apply_chat_template(CONVERSATION[:3], tokenize=True, add_generation_prompt=True, return_dict=False)
    prompts = prompts_for(tokenizer)
    assert prompts.prompt(CONVERSATION[:3]) == own
    assert prompts.conversation(CONVERSATION[:2])[0].ids == prompts.prompt(CONVERSATION[:1])


def test_an_answer_that_the_template_leaves_open_is_ended():
    tokenizer = make(OPEN_ENDED)
    assert shown(tokenizer, prompts_for(tokenizer).conversation(CONVERSATION)) == [
        ("<s><|user|>\nhi 你好<|assistant|>", False, False),
        ("\nHello!", True, False),
        ("<|user|>\nwhy?<|assistant|>", False, False),
        ("\nBecause.", True, False),
        ("</s>", True, True),
    ]


def test_what_the_template_writes_at_the_head_of_the_answer_is_learnt():
    tokenizer = make(REWRITES_HISTORY)
    segments = prompts_for(tokenizer).conversation(CONVERSATION[:2])
    assert shown(tokenizer, segments)[1] == ("<think>\n\n</think>\n\nHello!", True, False)


def test_a_template_that_rewrites_earlier_turns_is_refused_for_several_answers():
    with pytest.raises(UserError, match=r"data\.turns=last"):
        prompts_for(make(REWRITES_HISTORY)).conversation(CONVERSATION)


def test_the_last_answer_alone_may_follow_turns_that_the_template_rewrites():
    tokenizer = make(REWRITES_HISTORY)
    prompts = prompts_for(tokenizer)
    prompt, *answer = prompts.conversation(CONVERSATION, Turns.last)
    assert prompt.ids == prompts.prompt(CONVERSATION[:-1])
    assert [text for text, learn, _ in shown(tokenizer, answer) if learn] == ["<think>\n\n</think>\n\nBecause.", "<|im_end|>"]


def test_of_several_answers_the_last_alone_is_learnt():
    tokenizer = make(CHATML)
    segments = prompts_for(tokenizer).conversation(CONVERSATION, Turns.last)
    assert [text for text, learn, _ in shown(tokenizer, segments) if learn] == ["Because.", "<|im_end|>"]
    every = prompts_for(tokenizer).conversation(CONVERSATION)
    assert [i for segment in segments for i in segment.ids] == [i for segment in every for i in segment.ids]


def test_a_token_across_the_border_is_split_there():
    """The generation prompt ends with a space and " B" is a token: joined ids would hide where the answer begins."""
    tokenizer = make(NO_SYSTEM, merges=[("Ġ", "B")])
    segments = prompts_for(tokenizer).conversation(CONVERSATION[2:])
    assert shown(tokenizer, segments) == [
        ("user: why?</s>assistant: ", False, False),
        ("Because.", True, False),
        ("</s>", True, True),
    ]
    assert segments[0].ids == prompts_for(tokenizer).prompt(CONVERSATION[2:3])


def test_a_role_that_the_template_refuses():
    with pytest.raises(UserError, match="System role not supported") as raised:
        prompts_for(make(NO_SYSTEM)).conversation([{"role": "system", "content": "x"}, *CONVERSATION])
    assert len(str(raised.value).splitlines()) <= 6


def test_observations_reach_the_template_as_tool():
    tokenizer = make(CHATML)
    messages = [*CONVERSATION[:2], {"role": "observation", "content": "7"}, CONVERSATION[3]]
    segments = prompts_for(tokenizer).conversation(messages)
    assert shown(tokenizer, segments)[4] == ("<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n", False, False)


def test_a_tokenizer_without_a_template_says_what_to_do():
    with pytest.raises(UserError, match=r"model\.template=plain"):
        prompts_for(make(None))


def test_plain_text_for_a_base_model(tmp_path):
    make(None).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path, template="plain")
    expected = [("hi 你好\n", False, False), ("Hello!", True, False), ("</s>", True, True)]
    expected += [("why?\n", False, False), ("Because.", True, False), ("</s>", True, True)]
    assert shown(tokenizer, prompts_for(tokenizer).conversation(CONVERSATION)) == expected
    assert tokenizer.decode(tokenizer.encode_prompt("x", [("a", "b")])) == "a\nb</s>x\n"
    special = tokenizer.encode_prompt("<|im_end|>")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in special
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").init_kwargs[TEMPLATE_KEY] == "plain"


def test_a_saved_chat_tokenizer_is_the_same(tmp_path):
    tokenizer = make(CHATML)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert prompts_for(loaded).conversation(CONVERSATION) == prompts_for(tokenizer).conversation(CONVERSATION)
    assert loaded.encode_prompt("hi 你好") == prompts_for(tokenizer).prompt(CONVERSATION[:1])


def test_a_conversation_ends_with_an_answer():
    for template in (CHATML, None):
        tokenizer = make(template)
        tokenizer.init_kwargs[TEMPLATE_KEY] = "chat" if template else "plain"
        with pytest.raises(UserError, match="ends with 'user'"):
            prompts_for(tokenizer).conversation(CONVERSATION[:3])
