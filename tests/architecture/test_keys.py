from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glmexp.architecture import ChatGLMSpec, detect, shapes
from glmexp.architecture.keys import INVERSE_FREQUENCIES, expected_shapes, inverse_frequencies, to_native, to_original

GOLDEN = Path(__file__).parents[1] / "golden" / "chatglm2"
SMALL = ChatGLMSpec(
    num_layers=2,
    padded_vocab_size=64,
    hidden_size=24,
    ffn_hidden_size=40,
    kv_channels=8,
    num_attention_heads=6,
    add_qkv_bias=True,
    multi_query_attention=True,
    multi_query_group_num=3,
)


def random_original(spec: ChatGLMSpec) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name, shape in expected_shapes(spec).items()}


def native_of(original: dict[str, torch.Tensor], spec: ChatGLMSpec) -> dict[str, torch.Tensor]:
    return {key: value for name, tensor in original.items() for key, value in to_native(name, tensor, spec)}


@pytest.mark.parametrize("multi_query", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_round_trip_is_bit_equal(multi_query, bias):
    spec = ChatGLMSpec(**{**vars(SMALL), "multi_query_attention": multi_query, "add_qkv_bias": bias})
    original = random_original(spec)
    native = native_of(original, spec)
    assert {name: tuple(tensor.shape) for name, tensor in native.items()} == shapes(spec)
    back = dict(to_original(reversed(native.items()), spec, torch.cat))
    assert back.keys() == original.keys()
    assert all(torch.equal(back[name], original[name]) for name in original)


def test_fused_rows_are_split_without_a_copy():
    fused = torch.randn(6 * 8 + 2 * 3 * 8, 24)
    parts = dict(to_native("transformer.encoder.layers.1.self_attention.query_key_value.weight", fused, SMALL))
    assert [tuple(part.shape) for part in parts.values()] == [(48, 24), (24, 24), (24, 24)]
    assert parts["model.layers.1.self_attn.k_proj.weight"].data_ptr() == fused[48:].data_ptr()
    assert all(part.is_contiguous() for part in parts.values())


def test_heads_are_interleaved_without_multi_query_attention():
    spec = ChatGLMSpec(**{**vars(SMALL), "multi_query_attention": False})
    rows = torch.arange(3 * 6 * 8)
    parts = dict(to_native("transformer.encoder.layers.0.self_attention.query_key_value.bias", rows, spec))
    keys = parts["model.layers.0.self_attn.k_proj.bias"]
    assert keys[:8].tolist() == list(range(8, 16))
    assert keys[8:16].tolist() == list(range(32, 40))


def test_golden_checkpoint_has_exactly_the_expected_tensors():
    spec = detect(GOLDEN)
    assert spec is not None
    stored = load_file(GOLDEN / "model.safetensors")
    frequencies = stored.pop(INVERSE_FREQUENCIES)
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == expected_shapes(spec)
    assert torch.allclose(frequencies.double(), torch.tensor(inverse_frequencies(spec), dtype=torch.float64), rtol=1e-6)
    assert to_native(INVERSE_FREQUENCIES, frequencies, spec) == []


@pytest.mark.parametrize("name", ["model.norm.weight", "transformer.encoder.layers.0.mlp.extra.weight", "transformer.layers.0"])
def test_unknown_original_name(name):
    with pytest.raises(KeyError):
        to_native(name, torch.zeros(1), SMALL)


def test_unknown_native_name_and_half_a_projection():
    with pytest.raises(KeyError):
        list(to_original([("transformer.output_layer.weight", torch.zeros(1))], SMALL, torch.cat))
    with pytest.raises(ValueError, match="query_key_value"):
        list(to_original([("model.layers.0.self_attn.q_proj.bias", torch.zeros(48))], SMALL, torch.cat))
