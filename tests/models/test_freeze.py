"""Freezing: the last layers and what patterns name are trained, nothing else; what names nothing is refused early."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from glmexp.config import UserError, compose
from glmexp.models import build_model
from glmexp.models.freeze import freeze
from glmexp.models.method import apply, check_targets, describe_trainable, trainable_parameters

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 64}


def config(*overrides):
    return compose(["model=tiny", "method=freeze", *overrides]).config


def trained(*overrides, model=None):
    asked = config(*overrides)
    model = model or build_model(asked.model, torch.float32, "eager", 0, torch.device("cpu"))
    return {name for name, p in apply(model, asked.method).named_parameters(remove_duplicate=False) if p.requires_grad}


def test_the_last_layers_are_trained():
    names = trained("method.last_layers=1")
    assert {name.split(".")[2] for name in names} == {"1"}
    kinds = ("self_attn.q_proj", "mlp.down_proj", "input_layernorm")
    assert {f"model.layers.1.{kind}.weight" for kind in kinds} <= names
    assert len({name.split(".")[2] for name in trained("method.last_layers=2")}) == 2


def test_patterns_name_what_is_trained_besides():
    patterns = "['*.embed_tokens.*','lm_head.*','model.layers.0.*norm.weight']"
    names = trained("method.last_layers=null", f"method.trainable={patterns}")
    assert names == {
        "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    }  # fmt: skip
    both = trained("method.last_layers=1", "method.trainable=['lm_head.*']")
    assert both == trained("method.last_layers=1") | {"lm_head.weight"}


@pytest.mark.parametrize("kind", [LlamaConfig(**SIZES), GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=64)])
def test_the_layers_of_other_architectures_are_found(kind):
    names = trained("method.last_layers=2", model=AutoModelForCausalLM.from_config(kind))
    assert {name.split(".")[2] for name in names} == {"1", "2"}


def test_a_tied_head_is_trained_under_either_name():
    def tied():
        return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, tie_word_embeddings=True))

    only = "method.last_layers=null"
    assert trained(only, "method.trainable=['lm_head.*']", model=tied()) == {"lm_head.weight", "model.embed_tokens.weight"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method.last_layers=3"], ["method.last_layers=3", "has 2 layers", "method.last_layers=2 or fewer"]),
        (["method.trainable=[lm_haed.weight]"], ["lm_haed.weight names no parameter", "did you mean lm_head.weight", "q_proj"]),
        (["method.trainable=['lm_head.*',zzz]"], ["zzz names no parameter", "model.embed_tokens.weight", "lm_head.weight"]),
    ],
)
def test_what_the_model_does_not_have_is_refused_before_any_weights(overrides, words):
    asked = config(*overrides)
    with pytest.raises(UserError) as error:
        check_targets(asked.model, asked.method)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert len(str(error.value).splitlines()) <= 6


def test_the_released_shapes_pass_without_weights():
    asked = compose(["model=chatglm2_6b", "model.init=random", "method=freeze"]).config
    check_targets(asked.model, asked.method)


def test_a_model_whose_layers_are_no_list_is_told_the_way_out():
    class Odd(torch.nn.Module):
        config = LlamaConfig(**SIZES)

    with pytest.raises(UserError, match=r"method\.trainable"):
        freeze(Odd(), config("method.last_layers=1").method)


def test_a_method_that_trains_nothing_is_an_error():
    with pytest.raises(UserError, match="no parameter would be trained"):
        describe_trainable(torch.nn.Linear(2, 2).requires_grad_(False))
    layer = torch.nn.Linear(9, 9)
    layer.bias.requires_grad_(False)
    assert trainable_parameters(layer) == (81, 90)
    assert describe_trainable(layer) == "trainable parameters: 81 of 90 (90.00 %)"
