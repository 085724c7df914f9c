import json
import subprocess
import sys
from pathlib import Path

import pytest

from glmexp.architecture import ChatGLMSpec, detect, from_glm_config, glm_config, parameter_count, preset, shapes
from glmexp.architecture.rope import rope_style
from glmexp.config.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "chatglm2"
RELEASED = json.loads((GOLDEN / "config.json").read_text())


def folder_with(tmp_path: Path, **changes: object) -> Path:
    """An original folder; a field set to ``...`` is left out."""
    content = {key: value for key, value in (RELEASED | changes).items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(content))
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        detect(folder)
    message = str(caught.value)
    assert message.count("\n") < 6
    return message


def test_golden_folder_is_detected():
    spec = detect(GOLDEN)
    assert spec is not None
    assert (spec.num_layers, spec.head_dim, spec.key_value_heads, spec.qkv_bias) == (2, 16, 2, True)


def test_glm_config_of_the_golden_folder():
    spec = detect(GOLDEN)
    assert spec is not None
    assert glm_config(spec, folder=GOLDEN) == {
        "vocab_size": 120,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 2,
        "attention_bias": True,
    }


def test_missing_fields_take_the_originals_defaults(tmp_path):
    minimal = {"model_type": "chatglm", "num_layers": 3, "padded_vocab_size": 128, "multi_query_attention": False}
    (tmp_path / "config.json").write_text(json.dumps(minimal))
    spec = detect(tmp_path)
    assert spec == ChatGLMSpec(num_layers=3, padded_vocab_size=128)
    assert spec.key_value_heads == 32
    assert not spec.qkv_bias


def test_first_chatglm2_release_has_no_model_type(tmp_path):
    assert detect(folder_with(tmp_path, model_type=...)) is not None


def test_kv_channels_null_divides_the_hidden_size(tmp_path):
    spec = detect(folder_with(tmp_path, kv_channels=None))
    assert spec is not None
    assert spec.head_dim == 12


@pytest.mark.parametrize(
    "content", [{"model_type": "llama", "hidden_size": 8}, {"model_type": "glm", "num_hidden_layers": 2}, {}]
)
def test_other_models_are_not_detected(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert detect(tmp_path) is None


def test_folder_without_config_is_not_detected(tmp_path):
    assert detect(tmp_path) is None


def test_broken_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "no JSON object" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_bit": 4}, "quantization_bit=4"),
        ({"add_bias_linear": True}, "add_bias_linear=True"),
        ({"rmsnorm": False}, "rmsnorm=False"),
        ({"post_layer_norm": False}, "post_layer_norm=False"),
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm=True"),
        ({"hidden_dropout": 0.1}, "hidden_dropout=0.1"),
        ({"position_encoding_2d": True}, "first release"),
        ({"vocab_size": 130528}, "first release"),
        ({"vision_config": {"hidden_size": 8}}, "GLM-4V"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"multi_query_group_num": 3}, "multi_query_group_num 3"),
        ({"layernorm_epsilon": "?", "num_layers": 0}, "num_layers"),
    ],
)
def test_unsupported_variants_are_refused(tmp_path, changes, words):
    message = refusal(folder_with(tmp_path, **changes))
    assert words in message
    assert str(tmp_path) in message


def test_quantised_release_names_its_full_sibling(tmp_path):
    message = refusal(folder_with(tmp_path, quantization_bit=4, _name_or_path="THUDM/chatglm2-6b-int4"))
    assert "THUDM/chatglm2-6b;" in message


def test_quantised_weights_of_any_architecture(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}))
    assert "gptq" in refusal(tmp_path)


@pytest.mark.parametrize("bits", [0, None])
def test_unquantised_spellings_are_fine(tmp_path, bits):
    assert detect(folder_with(tmp_path, quantization_bit=bits)) is not None


def test_attention_dropout_counts_for_glm4_only():
    assert glm_config(ChatGLMSpec(attention_dropout=0.1))["attention_dropout"] == 0.0
    assert glm_config(ChatGLMSpec(attention_dropout=0.1, padded_vocab_size=151552))["attention_dropout"] == 0.1


LINEAR = "seq_idx = torch.arange(seq_len, dtype=dtype, device=device) / self.rope_ratio\n"
BASE = "base = base * self.rope_ratio\n"


@pytest.mark.parametrize(
    ("spec", "code", "chosen", "style"),
    [
        (ChatGLMSpec(rope_ratio=1), BASE, "linear", None),
        (ChatGLMSpec(rope_ratio=None), None, None, None),
        (ChatGLMSpec(rope_ratio=16), LINEAR, None, "linear"),
        (ChatGLMSpec(rope_ratio=50), BASE, None, "base"),
        (ChatGLMSpec(rope_ratio=200), BASE.replace("rope_ratio", "ratio"), None, "base"),
        (ChatGLMSpec(rope_ratio=16), LINEAR, "base", "base"),
        (ChatGLMSpec(rope_ratio=16, name="THUDM/chatglm2-6b-32k"), None, None, "linear"),
        (ChatGLMSpec(rope_ratio=50, name="THUDM/chatglm3-6b-32k"), None, None, "base"),
        (ChatGLMSpec(rope_ratio=500, padded_vocab_size=151552), None, None, "base"),
        (ChatGLMSpec(rope_ratio=500, name="/models/glm-4-9b-chat/"), None, None, "base"),
    ],
)
def test_rope_style(tmp_path, spec, code, chosen, style):
    if code:
        (tmp_path / "modeling_chatglm.py").write_text(f"raise SystemExit('never run')\n{code}")
    assert rope_style(spec, chosen, tmp_path) == style


def test_undecidable_rope_style_asks(tmp_path):
    with pytest.raises(UserError, match=r"model\.rope_style=linear"):
        rope_style(ChatGLMSpec(rope_ratio=16), None, tmp_path)
    (tmp_path / "modeling_chatglm.py").write_text(LINEAR + BASE)
    with pytest.raises(UserError, match="rope_ratio=16"):
        rope_style(ChatGLMSpec(rope_ratio=16), None, tmp_path)


def test_unknown_rope_style_is_refused():
    with pytest.raises(UserError, match=r"model\.rope_style=yarn"):
        rope_style(ChatGLMSpec(), "yarn")


def test_rope_parameters_of_both_styles():
    linear = glm_config(ChatGLMSpec(rope_ratio=16), "linear")["rope_parameters"]
    assert (linear["rope_type"], linear["factor"], linear["rope_theta"]) == ("linear", 16.0, 10000.0)
    base = glm_config(ChatGLMSpec(rope_ratio=500), "base")["rope_parameters"]
    assert (base["rope_type"], base["rope_theta"]) == ("default", 5_000_000.0)


@pytest.mark.parametrize("owner", ["THUDM", "zai-org", "ZhipuAI"])
def test_released_chatglm2_has_its_parameter_count(owner):
    spec = preset(f"{owner}/chatglm2-6b")
    assert spec is not None
    assert parameter_count(spec) == 6_243_584_000
    assert len(shapes(spec)) == 28 * 11 + 3
    assert (spec.seq_length, spec.layernorm_epsilon) == (32768, 1e-5)


def test_other_released_models():
    long, third, fourth = (preset(f"THUDM/{name}") for name in ("chatglm2-6b-32k", "chatglm3-6b", "glm-4-9b-chat"))
    assert long is not None
    assert glm_config(long)["rope_parameters"]["factor"] == 16.0
    assert third is not None
    assert third.seq_length == 8192
    assert fourth is not None
    assert glm_config(fourth)["rms_norm_eps"] == 1.5625e-07
    assert glm_config(fourth)["eos_token_id"] == [151329, 151336, 151338]
    assert preset("somebody/chatglm2-6b") is None
    assert preset("THUDM/another") is None


def test_native_sizes_give_the_same_shapes():
    spec = preset("THUDM/glm-4-9b-chat")
    assert spec is not None
    assert shapes(from_glm_config(glm_config(spec))) == shapes(spec)


def test_native_defaults_are_those_of_glm_config():
    from transformers import GlmConfig

    assert from_glm_config({}) == from_glm_config(GlmConfig().to_dict())


def test_no_torch_is_imported():
    code = (
        "import glmexp.architecture, glmexp.architecture.checkpoint, sys; print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
    )
    assert done.stdout.strip() == "set()"
