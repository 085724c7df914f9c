"""Names and shapes: the original ChatGLM layout on one side, transformers' native Glm on the other.

Both compute the same function, so re-keying is all there is: the fused query, key and value rows are split, nothing is
permuted (both rotate interleaved pairs, both gate with the first half of ``dense_h_to_4h``). The functions work on any
tensor with ``reshape`` and slicing, so this module needs no torch.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from glmexp.architecture.chatglm import ChatGLMSpec

INVERSE_FREQUENCIES = "transformer.rotary_pos_emb.inv_freq"
"""A buffer of the original that neither side reads; written on export, so that the original does not warn."""

_ORIGINAL_LAYER = "transformer.encoder.layers.{}."
_NATIVE_LAYER = "model.layers.{}."
_OUTER = {
    "transformer.embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "transformer.encoder.final_layernorm.weight": "model.norm.weight",
    "transformer.output_layer.weight": "lm_head.weight",
}
_INNER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.dense.weight": "self_attn.o_proj.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.dense_h_to_4h.weight": "mlp.gate_up_proj.weight",
    "mlp.dense_4h_to_h.weight": "mlp.down_proj.weight",
}
_FUSED = re.compile(r"self_attention\.query_key_value\.(weight|bias)")
_PROJECTION = re.compile(r"self_attn\.([qkv])_proj\.(weight|bias)")
_LAYER = re.compile(r"(?:transformer\.encoder|model)\.layers\.(\d+)\.(.+)")


def qkv_rows(spec: ChatGLMSpec) -> tuple[int, int, int]:
    """Rows of the query, key and value projections."""
    keys = spec.key_value_heads * spec.head_dim
    return spec.num_attention_heads * spec.head_dim, keys, keys


def shapes(spec: ChatGLMSpec) -> dict[str, tuple[int, ...]]:
    """Native name to shape of every parameter, in the model's order. Tied embeddings count once."""
    queries, keys, _ = qkv_rows(spec)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.padded_vocab_size, spec.hidden_size)}
    for layer in range(spec.num_layers):
        prefix = _NATIVE_LAYER.format(layer)
        for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{prefix}self_attn.{letter}_proj.weight"] = (rows, spec.hidden_size)
            if spec.qkv_bias:
                found[f"{prefix}self_attn.{letter}_proj.bias"] = (rows,)
        found[f"{prefix}self_attn.o_proj.weight"] = (spec.hidden_size, queries)
        found[f"{prefix}mlp.gate_up_proj.weight"] = (2 * spec.ffn_hidden_size, spec.hidden_size)
        found[f"{prefix}mlp.down_proj.weight"] = (spec.hidden_size, spec.ffn_hidden_size)
        found[f"{prefix}input_layernorm.weight"] = (spec.hidden_size,)
        found[f"{prefix}post_attention_layernorm.weight"] = (spec.hidden_size,)
    found["model.norm.weight"] = (spec.hidden_size,)
    if not spec.tied_embeddings:
        found["lm_head.weight"] = (spec.padded_vocab_size, spec.hidden_size)
    return found


def parameter_count(spec: ChatGLMSpec) -> int:
    return sum(prod(shape) for shape in shapes(spec).values())


def expected_shapes(spec: ChatGLMSpec) -> dict[str, tuple[int, ...]]:
    """Original name to shape of every tensor that a checkpoint must hold (the unused rotary buffer may come on top)."""
    native = shapes(spec)
    rows = sum(qkv_rows(spec))
    found = {original: native[name] for original, name in _OUTER.items()}
    for layer in range(spec.num_layers):
        prefix = _ORIGINAL_LAYER.format(layer)
        found |= {prefix + inner: native[_NATIVE_LAYER.format(layer) + name] for inner, name in _INNER.items()}
        found[f"{prefix}self_attention.query_key_value.weight"] = (rows, spec.hidden_size)
        if spec.qkv_bias:
            found[f"{prefix}self_attention.query_key_value.bias"] = (rows,)
    return found


def to_native(name: str, tensor: Any, spec: ChatGLMSpec) -> list[tuple[str, Any]]:
    """The native parameters that the original tensor ``name`` holds: none for the rotary buffer, three for a fused
    projection (views of its rows; a copy only without multi-query attention, where heads are interleaved), else one.

    KeyError for a name that the original does not have.
    """
    if name == INVERSE_FREQUENCIES:
        return []
    if name in _OUTER:
        return [(_OUTER[name], tensor)]
    match = _LAYER.fullmatch(name)
    if match is None or not name.startswith("transformer."):
        raise KeyError(name)
    prefix, inner = _NATIVE_LAYER.format(match[1]), match[2]
    if inner in _INNER:
        return [(prefix + _INNER[inner], tensor)]
    fused = _FUSED.fullmatch(inner)
    if fused is None:
        raise KeyError(name)
    names = [f"{prefix}self_attn.{letter}_proj.{fused[1]}" for letter in "qkv"]
    return list(zip(names, _split(tensor, spec), strict=True))


def _split(tensor: Any, spec: ChatGLMSpec) -> list[Any]:
    if spec.multi_query_attention:
        parts, start = [], 0
        for rows in qkv_rows(spec):
            parts.append(tensor[start : start + rows])
            start += rows
        return parts
    heads, width, rest = spec.num_attention_heads, spec.head_dim, tuple(tensor.shape[1:])
    by_head = tensor.reshape(heads, 3 * width, *rest)
    return [by_head[:, part * width : (part + 1) * width].reshape(heads * width, *rest) for part in range(3)]


def to_original(
    state: Iterable[tuple[str, Any]], spec: ChatGLMSpec, concatenate: Callable[[Sequence[Any], int], Any]
) -> Iterator[tuple[str, Any]]:
    """The reverse of ``to_native``: original names and tensors, each as soon as its parts have come.

    ``state`` gives native names and tensors in any order; ``concatenate`` is ``torch.cat`` or its like. KeyError for a
    name that the native model does not have, ValueError if a projection's part is missing at the end.
    """
    outer = {native: original for original, native in _OUTER.items()}
    inner = {native: original for original, native in _INNER.items()}
    waiting: dict[str, dict[str, Any]] = {}
    for name, tensor in state:
        if name in outer:
            yield outer[name], tensor
            continue
        match = _LAYER.fullmatch(name)
        if match is None or not name.startswith("model."):
            raise KeyError(name)
        prefix, rest = _ORIGINAL_LAYER.format(match[1]), match[2]
        projection = _PROJECTION.fullmatch(rest)
        if projection is None:
            yield prefix + inner[rest], tensor
            continue
        fused = f"{prefix}self_attention.query_key_value.{projection[2]}"
        parts = waiting.setdefault(fused, {})
        parts[projection[1]] = tensor
        if len(parts) == 3:
            del waiting[fused]
            yield fused, _join([parts[letter] for letter in "qkv"], spec, concatenate)
    if waiting:
        raise ValueError(f"projections without all of their parts: {sorted(waiting)}")


def _join(parts: list[Any], spec: ChatGLMSpec, concatenate: Callable[[Sequence[Any], int], Any]) -> Any:
    if spec.multi_query_attention:
        return concatenate(parts, 0)
    heads, width, rest = spec.num_attention_heads, spec.head_dim, tuple(parts[0].shape[1:])
    joined = concatenate([part.reshape(heads, width, *rest) for part in parts], 1)
    return joined.reshape(3 * heads * width, *rest)


def inverse_frequencies(spec: ChatGLMSpec) -> list[float]:
    """Values of ``INVERSE_FREQUENCIES``: 10000^(-2i/d) for the d = head_dim / 2 rotated channels."""
    rotated = spec.head_dim // 2
    return [1.0 / 10000 ** (channel / rotated) for channel in range(0, rotated, 2)]
