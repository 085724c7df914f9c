"""Labels and prompts fit the model's own shift: what was learnt comes back word for word (case J8)."""

import pytest
import torch

from glmexp.config.choices import Hub, Init
from glmexp.config.schema import ModelConfig
from glmexp.models import build_model, load_tokenizer
from glmexp.models.prompts import prompts_for

CONVERSATION = [
    {"role": "user", "content": "长城有多长？"},
    {"role": "assistant", "content": "明长城全长约八千八百五十公里。"},
]


@pytest.fixture
def one_thread():
    """So small a model is slower on several threads, far slower where other processes want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("template", ["chatglm2", "chatglm3"])
def test_one_sample_is_learnt_and_reproduced(template):
    config = ModelConfig("tiny", Hub.huggingface, None, Init.random, template, None)
    model = build_model(config, torch.float32, "sdpa", 0, torch.device("cpu"))
    tokenizer = load_tokenizer("tiny", template)
    prompts = prompts_for(tokenizer)
    segments = prompts.conversation(CONVERSATION)
    ids = torch.tensor([[token for segment in segments for token in segment.ids]])
    learnt = torch.tensor([[segment.learn for segment in segments for _ in segment.ids]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(40):
        loss = model(input_ids=ids, labels=ids.masked_fill(~learnt, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.1
    prompt = prompts.prompt(CONVERSATION[:1])
    model.eval()
    with torch.no_grad():
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, use_cache=True, eos_token_id=2)
    answer = answer[0, len(prompt) :].tolist()
    assert answer == ids[0, len(prompt) :].tolist()
    assert tokenizer.decode(answer, skip_special_tokens=True).strip() == CONVERSATION[1]["content"]
