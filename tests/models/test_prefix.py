"""P-tuning v2: the logits of the same prefix in a plain key-value cache, for every attention, and what cannot carry one."""

import warnings
from copy import deepcopy
from functools import cache

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    DynamicCache,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    OPTConfig,
    Qwen3Config,
)
from transformers.initialization import no_init_weights

from glmexp.config import UserError, compose
from glmexp.config.rules import warnings as rule_warnings
from glmexp.config.schema import MethodConfig
from glmexp.models import ModelLoadError, build_model, describe, load_prefix
from glmexp.models.initialisation import from_config
from glmexp.models.method import apply, check_targets, trainable_parameters
from glmexp.models.prefix import OFFICIAL, add_prefix, check_prefix

CPU = torch.device("cpu")
LENGTH = 5
IDS = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[1, 6:] = 0
MASK[2, 2:] = 0
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 48}
OTHERS = [
    LlamaConfig(**SIZES, num_key_value_heads=2),
    Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8),
    GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64),
]


def method(projection=False, dropout=0.0, length=LENGTH):
    return MethodConfig(prefix_length=length, prefix_projection=projection, dropout=dropout)


@cache
def built():
    return build_model(compose(["model=tiny"]).config.model, torch.float32, "eager", 0, CPU).eval()


def tiny(attention="eager"):
    model = deepcopy(built())
    model.set_attn_implementation(attention)
    return model


def with_prefix(projection=False, attention="eager", dropout=0.0):
    torch.manual_seed(1)
    return add_prefix(tiny(attention), method(projection, dropout))


def logits(model, mask):
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=mask, use_cache=False).logits


def logits_by_cache(plain, states, mask):
    """The plain model with the states as its past, the text's positions from 0."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(states):
        cache.update(keys, values, layer)
    mask = torch.cat([torch.ones(len(IDS), states[0][0].shape[-2], dtype=torch.long), mask], dim=1)
    positions = torch.arange(IDS.shape[1]).expand(len(IDS), -1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the argument has another name in newer releases
        return plain(input_ids=IDS, attention_mask=mask, position_ids=positions, past_key_values=cache).logits


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("mask", [MASK, torch.ones_like(MASK)], ids=["padded", "whole"])
def test_the_logits_are_those_of_a_cache_filled_with_the_prefix(projection, attention, mask):
    model = with_prefix(projection, attention)
    expected = logits_by_cache(tiny(), model.prefix_encoder(len(IDS), CPU), mask)
    found = logits(model, mask)
    assert (found - expected)[mask.bool()].abs().max() < 2e-5
    assert (found - logits(tiny(), mask))[mask.bool()].abs().max() > 0.1


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("config", OTHERS, ids=lambda config: config.model_type)
def test_other_architectures_too(config, attention):
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model = deepcopy(plain)
    model.set_attn_implementation(attention)
    add_prefix(model, method())
    expected = logits_by_cache(plain, model.prefix_encoder(len(IDS), CPU), MASK)
    assert (logits(model, MASK) - expected)[MASK.bool()].abs().max() < 2e-5


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_activation_checkpointing_changes_no_gradient(projection, attention):
    model = with_prefix(projection, attention, dropout=0.3).train()

    def gradients(checkpoint):
        model.zero_grad()
        if checkpoint:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(2)  # the same dropout
        output = model(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
        output[MASK.bool()].square().mean().backward()
        return [parameter.grad.clone() for parameter in model.prefix_encoder.parameters()]

    plain, again = gradients(False), gradients(True)
    assert all(gradient.abs().max() > 0 for gradient in plain)
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_generation_with_and_without_a_cache_agrees():
    model = with_prefix()
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": MASK[:1]}
    cached = model.generate(IDS[:1], use_cache=True, **options)
    assert cached.tolist() == model.generate(IDS[:1], use_cache=False, **options).tolist()
    assert cached.tolist() != tiny().generate(IDS[:1], **options).tolist()


def test_only_the_prefix_is_trained():
    asked = compose(["model=tiny", "method=ptuning_v2"]).config
    model = apply(tiny().bfloat16(), asked.method)
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == {
        "prefix_encoder.embedding.weight"
    }
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_dropout_differs_between_samples_and_ends_with_training():
    encoder = with_prefix(dropout=0.5).prefix_encoder
    keys, _ = encoder.train()(2, CPU)[0]
    assert not torch.equal(keys[0], keys[1])
    keys, _ = encoder.eval()(2, CPU)[0]
    assert torch.equal(keys[0], keys[1])
    assert (keys != 0).all()


def test_the_table_is_read_as_officially():
    """A position's row holds layer by layer the keys, then the values, each head after head."""
    model = with_prefix()
    encoder = model.prefix_encoder
    table = encoder.embedding.weight.view(LENGTH, model.config.num_hidden_layers, 2, encoder.kv_heads, encoder.head_dim)
    for layer, (keys, values) in enumerate(encoder(1, CPU)):
        assert torch.equal(keys[0].transpose(0, 1), table[:, layer, 0])
        assert torch.equal(values[0].transpose(0, 1), table[:, layer, 1])


@pytest.mark.parametrize(("projection", "count"), [(False, 1_835_008), (True, 1_835_008 + 2 * 14_336 * 4_096 + 4_096 + 14_336)])
def test_the_size_for_chatglm2_6b(projection, count):
    asked = compose(["model=chatglm2_6b", "model.init=random", "method=ptuning_v2"]).config
    asked.method.prefix_projection = projection
    with torch.device("meta"), no_init_weights():
        model = from_config(describe(asked.model).config, torch.bfloat16, "sdpa")
        assert trainable_parameters(apply(model, asked.method))[0] == count


@pytest.mark.parametrize("name", ["chatglm2_6b", "glm4_9b"])
def test_the_presets_pass_the_check_before_weights(name):
    asked = compose([f"model={name}", "model.init=random", "method=ptuning_v2"]).config
    check_targets(asked.model, asked.method)


MULTI_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
EXPERTS = {"moe_intermediate_size": 16, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=64), "attention interface"),
        (DeepseekV3Config(**SIZES, num_key_value_heads=4, **MULTI_LATENT, **EXPERTS), "in shape"),
        (MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64), "no attention heads"),
    ],
    ids=["bloom", "deepseek_v3", "mamba"],
)
def test_an_architecture_that_takes_no_prefix_is_refused(config, reason):
    with torch.device("meta"), pytest.raises(UserError, match=reason) as error:
        check_prefix(AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16), method())
    assert "method=lora" in str(error.value)


def test_layers_that_hand_no_prefix_on_are_refused_at_the_latest_by_the_first_forward_pass():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    model = AutoModelForCausalLM.from_config(OPTConfig(**sizes, ffn_dim=48, word_embed_proj_dim=32))
    with pytest.raises(UserError, match="OPTAttention hand no prefix"):
        add_prefix(model, method())(input_ids=IDS)


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("place", ["folder", "file"])
def test_an_official_checkpoint_is_read(tmp_path, projection, place):
    """Its pytorch_model.bin holds what was trained, under the original names."""
    trained = with_prefix(projection)
    state = {f"{OFFICIAL}{name}": tensor for name, tensor in trained.prefix_encoder.state_dict().items()}
    assert f"transformer.prefix_encoder.{'trans.2.bias' if projection else 'embedding.weight'}" in state
    torch.save(state, tmp_path / "pytorch_model.bin")
    model = load_prefix(tiny(), tmp_path if place == "folder" else tmp_path / "pytorch_model.bin")
    assert torch.equal(logits(model, MASK), logits(trained, MASK))


def refused(path, model=None):
    with pytest.raises(ModelLoadError) as error:
        load_prefix(model or tiny(), path)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


def test_what_is_no_prefix_of_this_model_is_refused(tmp_path):
    assert "prefix_encoder.safetensors" in refused(tmp_path)
    file = tmp_path / "prefix_encoder.safetensors"
    save_file({"model.norm.weight": torch.ones(4)}, file)
    assert "holds no P-tuning prefix" in refused(tmp_path)
    save_file({f"{OFFICIAL}embedding.weight": torch.ones(LENGTH, 6)}, file)
    assert "embedding.weight has shape (5, 6)" in refused(tmp_path)
    file.write_bytes(file.read_bytes()[:60])
    assert "cannot be read" in refused(tmp_path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("code of a checkpoint was run",))


def test_no_code_of_a_checkpoint_is_run(tmp_path):
    torch.save({f"{OFFICIAL}embedding.weight": Bomb()}, tmp_path / "pytorch_model.bin")
    assert "cannot be read as weights" in refused(tmp_path)


def test_a_prefix_on_random_weights_is_warned_of():
    assert any("method=ptuning_v2 on random weights" in line for line in rule_warnings(compose(["method=ptuning_v2"]).config))
