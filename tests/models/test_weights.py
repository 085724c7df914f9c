import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GlmConfig, GlmForCausalLM

from glmexp.config.choices import Hub, Init
from glmexp.config.errors import UserError
from glmexp.config.schema import ModelConfig
from glmexp.models import ModelLoadError, load_model, preflight

GOLDEN = Path(__file__).parents[1] / "golden" / "chatglm2"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
LAYER = "transformer.encoder.layers.1."


def model_config(folder: Path, init: Init = Init.pretrained) -> ModelConfig:
    return ModelConfig(
        path=str(folder),
        hub=Hub.huggingface,
        revision=None,
        init=init,
        template=None,
        rope_style=None,
        recommended_precisions=[],
    )


def refusal(folder: Path) -> str:
    """The message of preflight, which load_model repeats; at most six lines, naming the folder."""
    with pytest.raises(ModelLoadError) as caught:
        preflight(model_config(folder))
    message = str(caught.value)
    with pytest.raises(ModelLoadError) as again:
        load_model(folder)
    assert str(again.value) == message
    assert isinstance(caught.value, UserError)
    assert message.count("\n") < 6
    assert str(folder) in message
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, tmp_path)
    return tmp_path


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "model.safetensors")


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder: Path, state: dict[str, torch.Tensor]) -> None:
    save_file(state, folder / "model.safetensors")


def shard(folder: Path, state: dict[str, torch.Tensor], pickled: bool = False) -> tuple[Path, Path]:
    """Replaces the file by two shards and an index."""
    (folder / "model.safetensors").unlink()
    stem, suffix = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    files = [folder / f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    index = {}
    for number, file in enumerate(files):
        part = {name: state[name] for name in list(state)[number::2]}
        (torch.save if pickled else save_file)(part, file)
        index |= dict.fromkeys(part, file.name)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": index}))
    return files[0], files[1]


def test_a_whole_folder_passes(folder):
    preflight(model_config(folder))


def test_no_tensor_is_read(folder, monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("glmexp.models.load.safe_open", refuse)
    preflight(model_config(folder))


def test_missing_tensor(folder, state):
    del state[f"{LAYER}mlp.dense_4h_to_h.weight"]
    rewrite(folder, state)
    assert f"lacks {LAYER}mlp.dense_4h_to_h.weight" in refusal(folder)


def test_unknown_tensor(folder, state):
    rewrite(folder, state | {"transformer.encoder.layers.0.mlp.extra.weight": torch.zeros(2)})
    assert "holds transformer.encoder.layers.0.mlp.extra.weight" in refusal(folder)


@pytest.mark.parametrize("layers", [1, 3])
def test_wrong_number_of_layers_points_at_the_config(folder, layers):
    change_config(folder, num_layers=layers)
    assert f"config.json says {layers} layers" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"padded_vocab_size": 128}, "padded_vocab_size"),
        ({"ffn_hidden_size": 96}, "ffn_hidden_size"),
        ({"kv_channels": 8}, "kv_channels"),
    ],
)
def test_wrong_shape_names_the_config_field(folder, changes, field):
    change_config(folder, **changes)
    message = refusal(folder)
    assert "has shape" in message
    assert field in message


def test_quantised_checkpoint_by_config(folder):
    change_config(folder, quantization_bit=4)
    assert "quantization_bit=4" in refusal(folder)
    with pytest.raises(ModelLoadError, match="quantization_bit=4"):
        preflight(model_config(folder, Init.random))


def test_quantised_checkpoint_by_its_tensors(folder, state):
    state[f"{LAYER}mlp.dense_4h_to_h.weight"] = torch.zeros(48, 40, dtype=torch.int8)
    rewrite(folder, state)
    assert "quantised" in refusal(folder)


def test_quantised_checkpoint_of_another_kind(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}))
    assert "gptq" in refusal(folder)


def test_truncated_file(folder):
    file = folder / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 100)
    assert f"{size - 100} of {size} bytes" in refusal(folder)
    os.truncate(file, 40)
    assert "cut short" in refusal(folder)
    os.truncate(file, 4)
    assert "not a safetensors file" in refusal(folder)


def test_file_of_another_kind(folder):
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{{" + bytes(8))
    assert "broken safetensors header" in refusal(folder)
    (folder / "model.safetensors").write_bytes(b"<html>not found, sorry</html>")
    assert "not a safetensors file" in refusal(folder)


@pytest.mark.parametrize("pickled", [True, False])
def test_git_lfs_pointer(folder, pickled):
    if pickled:
        (folder / "model.safetensors").unlink()
    (folder / ("pytorch_model.bin" if pickled else "model.safetensors")).write_text(POINTER)
    assert "git lfs pull" in refusal(folder)


@pytest.mark.parametrize("pickled", [True, False])
def test_truncated_shard_is_named(folder, state, pickled):
    _, second = shard(folder, state, pickled)
    os.truncate(second, second.stat().st_size - 64)
    message = refusal(folder)
    assert second.name in message
    assert "cut short" in message


def test_missing_shard_is_named(folder, state):
    _, second = shard(folder, state)
    second.unlink()
    assert f"lacks {second.name}" in refusal(folder)


@pytest.mark.parametrize("pickled", [True, False])
def test_tensor_missing_from_its_shard(folder, state, pickled):
    first, _ = shard(folder, state, pickled)
    kept = torch.load(first, weights_only=True) if pickled else load_file(first)
    gone = next(iter(kept))
    del kept[gone]
    (torch.save if pickled else save_file)(kept, first)
    message = refusal(folder)
    assert first.name in message
    assert gone in message


def test_index_that_leaves_the_folder(folder, state):
    shard(folder, state)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"transformer.output_layer.weight": "../secret.safetensors"}}))
    assert "outside the folder" in refusal(folder)
    index.write_text("[]")
    assert "not an index" in refusal(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "model.init=random" in refusal(folder)
    preflight(model_config(folder, Init.random))
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert "model.gguf" in refusal(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(folder)


def test_no_config(folder):
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "base model" in refusal(folder)


def test_prefix_of_p_tuning_is_not_a_model(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"transformer.prefix_encoder.embedding.weight": torch.zeros(4, 8)}, folder / "pytorch_model.bin")
    assert "P-tuning prefix only" in refusal(folder)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_pickle_that_would_run_code(folder):
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, (f"touch {folder / 'canary'}",))

    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as handle:
        pickle.dump({"transformer.output_layer.weight": Evil()}, handle)
    assert "holds more than tensors" in refusal(folder)
    torch.save({"transformer.output_layer.weight": Evil()}, folder / "pytorch_model.bin")
    assert "holds more than tensors" in refusal(folder)
    assert not (folder / "canary").exists()


def test_pickle_of_something_else(folder):
    (folder / "model.safetensors").unlink()
    torch.save([torch.zeros(1)], folder / "pytorch_model.bin")
    assert "no dictionary of tensors" in refusal(folder)


def test_old_pickle_format_loads(folder, state):
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    loaded = load_model(folder)
    assert torch.equal(loaded.lm_head.weight, state["transformer.output_layer.weight"])


def test_unknown_architecture_with_code_names_the_file(folder):
    change_config(folder, model_type="baichuan", architectures=["BaichuanForCausalLM"], num_layers=None)
    message = refusal(folder)
    assert "modeling_chatglm.py" in message
    assert "never runs code" in message


def test_unknown_architecture_without_code(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "glm99"}))
    assert "model_type=glm99" in refusal(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    assert "not a causal language model" in refusal(folder)


def test_unusable_configuration(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": "wide"}))
    assert "config.json" in refusal(folder)


def native(folder: Path, **changes: object) -> dict[str, torch.Tensor]:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    config = GlmConfig(**(sizes | {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": None} | changes))
    GlmForCausalLM(config).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def test_native_folder_is_checked_alike(tmp_path):
    state = native(tmp_path)
    preflight(model_config(tmp_path))
    save_file(state | {"model.layers.0.extra": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert "holds model.layers.0.extra" in refusal(tmp_path)
    del state["model.layers.1.self_attn.q_proj.bias"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    assert "lacks model.layers.1.self_attn.q_proj.bias" in refusal(tmp_path)


def test_native_folder_with_tied_embeddings(tmp_path):
    state = native(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in state
    preflight(model_config(tmp_path))
    loaded = load_model(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded.lm_head.weight, state["model.embed_tokens.weight"])
