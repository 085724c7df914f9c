"""The programs in model cards ask as the model was asked in training, in every prompt format."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glmexp.config.choices import TEMPLATES
from glmexp.models import load_tokenizer
from glmexp.models.prompts import prompts_for
from glmexp.train.weights.usage import IDS
from tests.models.test_chat_template import CHATML, make

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
ASKED = "灯塔 at noon?"


def tokenizer_of(template: str) -> Any:
    if template in ("chat", "plain"):
        tokenizer = make(CHATML if template == "chat" else None)
        tokenizer.init_kwargs["glmexp_template"] = template
        return tokenizer
    return load_tokenizer(GOLDEN / "glm4" if template == "glm4" else GOLDEN, template=template)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_program_of_a_card_asks_as_in_training(template: str) -> None:
    tokenizer = tokenizer_of(template)
    names = {"tokenizer": tokenizer, "torch": torch}
    exec(IDS[template].format(question=ASKED), names)
    assert names["ids"].tolist() == [prompts_for(tokenizer).prompt([{"role": "user", "content": ASKED}])]
