import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GlmForCausalLM, LlamaConfig, LlamaForCausalLM

from glmexp.config.choices import Hub, Init
from glmexp.config.schema import ModelConfig
from glmexp.models import ModelLoadError, build_model, load_model
from glmexp.models.load import load
from glmexp.models.weights import check_weights

GOLDEN = Path(__file__).parents[1] / "golden" / "chatglm2"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
CPU = torch.device("cpu")


def model_config(path: object, init: Init = Init.pretrained, **changes: object) -> ModelConfig:
    values = {"hub": Hub.huggingface, "revision": None, "template": None, "rope_style": None, "recommended_precisions": []}
    return ModelConfig(path=str(path), init=init, **(values | changes))


def scenario(name: str) -> dict[str, torch.Tensor]:
    stored = load_file(GOLDEN / "io.safetensors")
    return {key.split(".", 1)[1]: value for key, value in stored.items() if key.startswith(f"{name}.")}


def inputs(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: part[key] for key in ("input_ids", "attention_mask", "position_ids") if key in part}


@pytest.fixture(scope="module")
def golden() -> GlmForCausalLM:
    return load_model(GOLDEN)


@pytest.mark.parametrize("name", EXPECTED["scenarios"])
def test_logits_loss_and_gradients_of_the_original_code(golden, name):
    part, expected = scenario(name), EXPECTED["scenarios"][name]
    golden.zero_grad()
    output = golden(**inputs(part), labels=part["labels"])
    real = part.get("attention_mask", torch.ones_like(part["input_ids"])).bool()
    assert (output.logits - part["logits"])[real].abs().max().item() < 5e-5
    assert output.loss.item() == pytest.approx(expected["loss"], abs=5e-5)
    output.loss.backward()
    norms = {key: parameter.grad.norm().item() for key, parameter in golden.named_parameters()}
    for key, norm in expected["grad_norms_native_names"].items():
        assert norms[key] == pytest.approx(norm, rel=1e-4), key
    total = torch.tensor(list(norms.values())).norm().item()
    assert total == pytest.approx(expected["grad_norm_total"], rel=1e-4)


def test_greedy_answer_of_the_original_code(golden):
    part = scenario("greedy")
    prompt, output = part["prompt_ids"], part["output_ids"]
    made = golden.generate(prompt, attention_mask=torch.ones_like(prompt), max_length=output.shape[1], do_sample=False)
    assert made.tolist() == output.tolist()


def test_positions_with_a_gap_are_not_taken_for_packing(golden):
    """Without a mask transformers reads a restart or gap of the positions as packed sequences."""
    part = scenario("plain")
    length = part["input_ids"].shape[1]
    positions = torch.arange(length) + (torch.arange(length) >= 7) * 5
    positions = positions.expand_as(part["input_ids"])
    ones = torch.ones_like(part["input_ids"])
    straight = golden(part["input_ids"], attention_mask=ones).logits
    gapped = golden(part["input_ids"], attention_mask=ones, position_ids=positions).logits
    assert torch.equal(straight[:, :7], gapped[:, :7])
    # The token after the gap still sees those before it: with a block-diagonal mask it would see itself alone.
    alone = golden(part["input_ids"][:, 7:8]).logits
    assert (gapped[:, 7:8] - alone).abs().max() > 1e-2


def copy_as(
    folder: Path, dtype: torch.dtype = torch.float32, pickled: bool = False, shards: int = 1
) -> dict[str, torch.Tensor]:
    """Writes the golden weights another way; a layer's tensors fall on both sides of a shard border."""
    shutil.copy(GOLDEN / "config.json", folder)
    state = {name: tensor.to(dtype) for name, tensor in load_file(GOLDEN / "model.safetensors").items()}
    stem, suffix = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    write = torch.save if pickled else save_file
    if shards == 1:
        write(state, folder / f"{stem}.{suffix}")
        return state
    names = list(state)
    index = {}
    for number in range(shards):
        part = {name: state[name] for name in names[number::shards]}
        file = f"{stem}-{number + 1:05d}-of-{shards:05d}.{suffix}"
        write(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return state


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_layout_loads_bit_equal(tmp_path, golden, dtype, shards, pickled):
    copy_as(tmp_path, dtype, pickled, shards)
    loaded = load_model(tmp_path).state_dict()
    reference = golden.state_dict()
    assert loaded.keys() == reference.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, reference[name].to(dtype).float()), name


def test_half_precision_keeps_the_rotary_frequencies(tmp_path):
    model = load_model(GOLDEN, dtype="bfloat16")
    assert model.lm_head.weight.dtype is torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype is torch.float32


def test_saved_native_folder_loads_equal(tmp_path, golden):
    golden.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "glm"
    again = load_model(tmp_path).state_dict()
    plain = GlmForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, tensor in golden.state_dict().items():
        assert torch.equal(again[name], tensor)
        assert torch.equal(plain[name], tensor)


def test_rope_style_changes_the_function(tmp_path):
    copy_as(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"rope_ratio": 16, "_name_or_path": ""}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"model\.rope_style=linear"):
        load_model(tmp_path)
    part = scenario("plain")
    linear, base = (load_model(tmp_path, rope_style=style)(part["input_ids"]).logits for style in ("linear", "base"))
    assert (linear - base).abs().max() > 0.1
    (tmp_path / "modeling_chatglm.py").write_text("seq_idx = torch.arange(seq_len) / self.rope_ratio\n")
    assert torch.equal(load_model(tmp_path)(part["input_ids"]).logits, linear)


def test_linear_rope_is_the_originals_division(tmp_path):
    """Twice the positions at ratio 2 are the positions at ratio 1."""
    copy_as(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"rope_ratio": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    part = scenario("plain")
    ones = torch.ones_like(part["input_ids"])
    doubled = 2 * torch.arange(ones.shape[1]).expand_as(ones)
    model = load_model(tmp_path, rope_style="linear")
    logits = model(part["input_ids"], attention_mask=ones, position_ids=doubled).logits
    assert (logits - part["logits"]).abs().max() < 5e-5


@pytest.mark.parametrize("original", [True, False])
def test_code_beside_the_weights_is_never_imported(tmp_path, original):
    folder = tmp_path / "model"
    folder.mkdir()
    canary = tmp_path / "canary"
    copy_as(folder)
    if not original:
        shutil.rmtree(folder)
        LlamaForCausalLM(tiny_llama()).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = json.loads((GOLDEN / "config.json").read_text())["auto_map"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("configuration_chatglm", "modeling_chatglm", "tokenization_chatglm"):
        (folder / f"{name}.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    load_model(folder)
    build_model(model_config(folder), torch.float32, "eager", 0, CPU)
    build_model(model_config(folder, Init.random), torch.float32, "sdpa", 0, CPU)
    assert not canary.exists()


def tiny_llama(**changes: object) -> LlamaConfig:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return LlamaConfig(**(sizes | {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False} | changes))


@pytest.mark.parametrize("tied", [True, False])
def test_any_causal_language_model_loads(tmp_path, tied):
    source = LlamaForCausalLM(tiny_llama(tie_word_embeddings=tied))
    source.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded, LlamaForCausalLM)
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_a_tensor_missing_from_any_model_is_an_error(tmp_path):
    """transformers fills it with random numbers and a warning."""
    LlamaForCausalLM(tiny_llama()).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks model\.norm\.weight"):
        load_model(tmp_path)


def test_a_model_of_another_shape_is_an_error(tmp_path):
    LlamaForCausalLM(tiny_llama()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"intermediate_size": 20}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model(tmp_path)


def test_build_model_is_ready_to_train():
    model = build_model(model_config(GOLDEN), torch.bfloat16, "eager", 0, CPU)
    assert model.training
    assert model.config.use_cache is False
    assert model.config._attn_implementation == "eager"
    assert model.lm_head.weight.dtype is torch.bfloat16


def test_fp32_residual_connection_needs_fp32(tmp_path):
    copy_as(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"fp32_residual_connection": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    load_model(tmp_path)
    with pytest.raises(ModelLoadError, match="precision=fp32"):
        load_model(tmp_path, dtype="bfloat16")
    with pytest.raises(ModelLoadError, match="precision=fp32"):
        build_model(model_config(tmp_path, Init.random), torch.float16, "sdpa", 0, CPU)


@pytest.mark.parametrize("dtype", ["int8", "float33", "nn"])
def test_a_dtype_that_is_none_is_refused(dtype):
    with pytest.raises(ModelLoadError, match=f"dtype={dtype}"):
        load_model(GOLDEN, dtype=dtype)


def test_sizes_without_a_folder_have_no_weights():
    from glmexp.models.description import describe

    description = describe(model_config("THUDM/chatglm3-6b", Init.random))
    assert (description.config.vocab_size, description.config.num_hidden_layers) == (65024, 28)
    with pytest.raises(ValueError, match="no folder"):
        check_weights(description)
    with pytest.raises(ValueError, match="no folder"):
        load(description, torch.float32, "sdpa", CPU)
