"""Answers: left padding, cache and batches change nothing; what ends one; drawing by seed and number; the folder's settings."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, PreTrainedModel

from glmexp.config import compose
from glmexp.config.schema import MethodConfig
from glmexp.models import build_model, load_tokenizer
from glmexp.models.prefix import add_prefix
from glmexp.models.prompts import prompts_for
from glmexp.train.evaluation.generate import Draw, generate, stop_ids

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
QUESTIONS = ("你好", "北京是中国的首都吗？请回答。", "1 + 1 = ?")


def tiny(seed: int = 1, attention: str = "sdpa") -> PreTrainedModel:
    return build_model(compose(["model=tiny"]).config.model, torch.float32, attention, seed, torch.device("cpu"))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[list[int]]:
    return [tokenizer.encode_prompt(question) for question in QUESTIONS]


def one_by_one(model: PreTrainedModel, tokenizer, prompt: list[int], tokens: int) -> str:
    """The likeliest continuation without a cache or padding."""
    ids = list(prompt)
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True).strip()


def with_prefix(attention: str) -> PreTrainedModel:
    model = tiny(attention=attention)
    method = compose(["method=ptuning_v2", "method.prefix_length=5"]).config.method
    assert isinstance(method, MethodConfig)
    torch.manual_seed(0)
    return add_prefix(model, method).eval()


@pytest.mark.parametrize(
    "make", [tiny, lambda: with_prefix("sdpa"), lambda: with_prefix("eager")], ids=["full", "sdpa", "eager"]
)
def test_a_padded_batch_with_its_cache_answers_as_each_prompt_alone(make, tokenizer, prompts):
    model = make().eval()
    answers = generate(model, tokenizer, prompts, max_new_tokens=6)
    assert answers == [one_by_one(model, tokenizer, prompt, 6) for prompt in prompts]
    assert len(set(answers)) > 1


def test_what_is_drawn_depends_on_seed_and_number_alone(model, tokenizer, prompts):
    def drawn(chosen, **more):
        taken = [prompts[number] for number in chosen]
        return generate(model, tokenizer, taken, max_new_tokens=6, temperature=1.2, top_p=0.95, numbers=chosen, **more)

    before = torch.get_rng_state()
    together = drawn([0, 1, 2], seed=7)
    assert torch.equal(torch.get_rng_state(), before), "training draws from this generator"
    assert together == [*drawn([0], seed=7), *drawn([1], seed=7), *drawn([2], seed=7)]
    assert together[::-1] == drawn([2, 1, 0], seed=7)
    assert together != drawn([0, 1, 2], seed=8)
    same_prompt = generate(model, tokenizer, [prompts[0]] * 2, max_new_tokens=6, temperature=1.2, numbers=[0, 1])
    assert same_prompt[0] != same_prompt[1]


def test_top_p_draws_from_the_likeliest_and_in_their_shares():
    probabilities = torch.tensor([0.1, 0.5, 0.25, 0.15])
    draw = Draw(temperature=1.0, top_p=0.7, seed=0, numbers=range(4000))
    left = draw(torch.zeros(4000, 1, dtype=torch.long), probabilities.log().repeat(4000, 1))
    assert (left.max(dim=-1).values == 0).all()
    shares = torch.bincount(left.argmax(dim=-1), minlength=4) / 4000
    # 0.5 alone is not 0.7; with 0.25 it is more.
    assert shares[[0, 3]].tolist() == [0.0, 0.0]
    assert shares[1] == pytest.approx(2 / 3, abs=0.03)
    cold = Draw(temperature=0.01, top_p=1.0, seed=0, numbers=range(100))
    assert (cold(torch.zeros(100, 1, dtype=torch.long), probabilities.log().repeat(100, 1)).argmax(dim=-1) == 1).all()


@pytest.mark.parametrize(("template", "names"), [("chatglm2", ["</s>"]), ("chatglm3", ["</s>", "<|user|>", "<|observation|>"])])
def test_an_answer_ends_where_the_format_ends_a_turn(model, template, names):
    tokenizer = load_tokenizer(GOLDEN, template=template)
    assert prompts_for(tokenizer).stop_ids() == sorted(tokenizer.convert_tokens_to_ids(name) for name in names)


def test_the_end_tokens_of_the_folder_count_too_and_end_an_answer(tokenizer, prompts):
    model = tiny()
    assert generate(model, tokenizer, prompts[:1], max_new_tokens=6) != [""]
    first = int(model(input_ids=torch.tensor(prompts[:1])).logits[0, -1].argmax())
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, first]
    assert first in stop_ids(model, tokenizer)
    assert generate(model, tokenizer, prompts[:1], max_new_tokens=6) == [""]


def test_settings_of_the_folder_do_not_decide_and_stay_as_they_were(tokenizer, prompts):
    model = tiny()
    plain = generate(model, tokenizer, prompts, max_new_tokens=8)
    given = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0, min_new_tokens=3, no_repeat_ngram_size=1)
    model.generation_config = given
    model.train()
    assert generate(model, tokenizer, prompts, max_new_tokens=8) == plain
    assert model.generation_config is given
    assert model.training
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    assert generate(adapted, tokenizer, prompts, max_new_tokens=8) == plain
    assert adapted.get_base_model().generation_config is given
