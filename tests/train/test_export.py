"""Forms of an export, without a run: the original layout to the bit, and what is refused or warned of."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from trained_runs import write_export
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from glmexp.architecture.keys import INVERSE_FREQUENCIES
from glmexp.config import Config, UserError, compose, load, save
from glmexp.config.schema import ModelConfig
from glmexp.models import build_model, load_model, load_tokenizer, locate
from glmexp.models.description import describe_folder
from glmexp.models.method import apply
from glmexp.train.weights.card import card
from glmexp.train.weights.exported import clear, publish, refuse_foreign, write_standard
from glmexp.train.weights.layout import verify, write_model, write_original
from glmexp.train.weights.trained import _base_model, find_source
from glmexp.trial.export import main as export_verb
from glmexp.trial.predict import main as predict_verb
from glmexp.trial.record import CONFIG

GOLDEN = Path(__file__).parents[1] / "golden" / "chatglm2"


def untrained_run(folder: Path, *overrides: str) -> Path:
    """A run's folder with an export of what has not been trained."""
    config = compose(["model=tiny", "precision=fp32", *overrides]).config
    folder.mkdir()
    save(config, folder / CONFIG)
    model = apply(build_model(config.model, torch.float32, "eager", config.train.seed, torch.device("cpu")), config.method)
    whole = config.method.name.value in ("full", "freeze")
    state = {name: p.detach() for name, p in model.named_parameters() if whole or p.requires_grad}
    tokenizer = load_tokenizer(locate(config.model), config.model.template)
    publish(folder / "export", lambda building: write_standard(model, state, tokenizer, config, folder, None, building))
    return folder


def test_an_original_model_comes_back_to_the_bit(tmp_path: Path) -> None:
    state = dict(load_model(GOLDEN).named_parameters())
    write_original(state, describe_folder(GOLDEN), tmp_path / "back")
    before, after = load_file(GOLDEN / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert after.keys() == before.keys()
    assert INVERSE_FREQUENCIES in after
    assert all(tensor.equal(before[name]) and tensor.dtype == before[name].dtype for name, tensor in after.items())
    assert json.loads((tmp_path / "back/config.json").read_text()) == json.loads((GOLDEN / "config.json").read_text())


def test_a_prefix_in_the_original_layout_has_a_card_that_puts_it_onto_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    base = write_export(untrained_run(tmp_path / "full"), tmp_path / "chatglm2-tiny", original=True)
    run = untrained_run(tmp_path / "run", "model=auto", f"model.path={base}", "method=ptuning_v2", "method.prefix_length=4")
    capfd.readouterr()
    written = write_export(run, tmp_path / "to", original=True)
    assert "modeling_chatglm" not in capfd.readouterr().err  # a prefix needs no code beside it
    text = (written / "README.md").read_text(encoding="utf-8")
    assert "--ptuning_checkpoint" in text
    program = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)  # the card names the base's folder, and not where it lies
    names: dict[str, object] = {}
    exec(program.replace('folder = "."', f"folder = {str(written)!r}").replace("max_new_tokens=128", "max_new_tokens=2"), names)
    assert any("prefix" in name for name, _ in names["model"].named_parameters())  # type: ignore[attr-defined]


def test_an_adapter_of_zeros_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = untrained_run(tmp_path / "run", "method=lora")
    merged = write_export(run, run / "merged", merge=True, dtype="bf16")
    assert "training has changed nothing" in capsys.readouterr().err
    assert {tensor.dtype for tensor in load_file(merged / "model.safetensors").values()} == {torch.bfloat16}
    base = build_model(compose(["model=tiny"]).config.model, torch.bfloat16, "eager", 42, torch.device("cpu"))
    found = load_file(merged / "model.safetensors")
    assert all(parameter.equal(found[name]) for name, parameter in base.named_parameters())


def test_a_full_model_that_is_its_base_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = untrained_run(tmp_path / "base") / "export"
    run = untrained_run(tmp_path / "run", f"model.path={base}", "model.init=pretrained")
    write_export(run, tmp_path / "half", dtype="bf16")
    assert "training has changed nothing" in capsys.readouterr().err
    weights = load_file(run / "export/model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + 0.5
    save_file(weights, run / "export/model.safetensors", metadata={"format": "pt"})
    write_export(run, tmp_path / "other", dtype="bf16")
    assert "nothing" not in capsys.readouterr().err


def test_frozen_weights_drawn_on_a_gpu_are_not_drawn_on_a_cpu(tmp_path: Path) -> None:
    run = untrained_run(tmp_path / "run", "method=lora")
    (run / "result.json").write_text(json.dumps({"device": {"kind": "gpu"}}))
    with pytest.raises(UserError, match="drawn on a GPU"):
        write_export(run, run / "merged", merge=True)


def test_frozen_weights_drawn_on_a_gpu_are_drawn_there_for_an_export_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports are made on the host, also beside the GPU that the run was trained on."""
    run = untrained_run(tmp_path / "run", "method=lora")
    (run / "result.json").write_text(json.dumps({"device": {"kind": "gpu"}}))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    drawn_on = []

    def build(model: ModelConfig, device: torch.device) -> torch.nn.Module:
        drawn_on.append(device.type)
        return torch.nn.Linear(1, 1)

    _base_model(run, load(run / CONFIG), torch.device("cpu"), find_source(run), build)
    assert drawn_on == ["cuda"]


def test_an_export_takes_the_place_of_an_export_alone(tmp_path: Path) -> None:
    run = untrained_run(tmp_path / "run")
    write_export(run, tmp_path / "to", dtype="fp16")
    write_export(run, tmp_path / "to", dtype="bf16")
    assert {tensor.dtype for tensor in load_file(tmp_path / "to/model.safetensors").values()} == {torch.bfloat16}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="no export of glmexp"):
        write_export(run, tmp_path / "mine", dtype="bf16")
    refuse_foreign(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "run", "to"]


def test_a_tied_model_with_settings_that_cannot_be_saved(tmp_path: Path) -> None:
    """As Llama 2's generation_config.json: a temperature, and no sampling; transformers reads it and refuses to write it."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    model.generation_config = GenerationConfig(temperature=0.9, top_p=0.6, eos_token_id=2)
    write_model(model, {name: p.detach() for name, p in model.named_parameters()}, None, tmp_path / "export")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "export")
    assert again.lm_head.weight.equal(model.model.embed_tokens.weight)
    assert again.generation_config.temperature == 0.9


def test_files_that_are_not_the_model_are_found_out(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(0)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="empty"):
        verify(tmp_path, 6)
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds 6 numbers, and the model 8"):
        verify(tmp_path, 8)
    with pytest.raises(ValueError, match="such as b"):
        verify(tmp_path, 6, {"a", "b"})


@pytest.mark.parametrize(
    ("overrides", "asked", "told"),
    [
        (["method=full"], {"merge": True}, "merge=true has no effect with method=full"),
        (["method=ptuning_v2"], {"merge": True}, "a prefix is no part of any weight"),
        (["method=lora"], {"original": True}, "add merge=true"),
    ],
)
def test_forms_that_a_method_does_not_have(tmp_path: Path, overrides: list[str], asked: dict[str, bool], told: str) -> None:
    (tmp_path / "run").mkdir()
    save(compose(["model=tiny", *overrides]).config, tmp_path / "run" / CONFIG)
    with pytest.raises(UserError, match=told):
        write_export(tmp_path / "run", tmp_path / "to", **asked)


def test_the_original_layout_of_another_architecture_is_refused(tmp_path: Path) -> None:
    base = untrained_run(tmp_path / "base") / "export"
    run = untrained_run(tmp_path / "run", f"model.path={base}", "model.init=pretrained")
    with pytest.raises(UserError, match="not in the original layout"):
        write_export(run, tmp_path / "to", original=True)


def test_where_no_trained_weights_are(tmp_path: Path) -> None:
    for chosen, told in ((None, "no trained weights"), ("best", "no whole checkpoint"), ("export", "has no export/")):
        with pytest.raises(UserError, match=told):
            find_source(tmp_path, chosen)
    (tmp_path / "result.json").write_text('{"state": "diverged"}')
    with pytest.raises(UserError, match="no trained weights: it ended as diverged\\ntrain with"):
        find_source(tmp_path)
    broken = tmp_path / "checkpoints/step-000004"
    broken.mkdir(parents=True)
    with pytest.raises(UserError, match=r"step-000004 is damaged: state\.json is not there"):
        find_source(tmp_path, "newest")


def test_a_card_holds_no_folder_of_this_machine(tmp_path: Path) -> None:
    config: Config = compose(["model=tiny", "data.path=[/home/some one/a.jsonl,/home/some one/b.jsonl]"]).config
    (tmp_path / "result.json").write_text(
        json.dumps(
            {"overrides": ["data.path=[/home/some one/a.jsonl,~/b.jsonl]", "hydra.run.dir=/x/y", "model.path=THUDM/glm"]}
        )
    )
    text = card(config, tmp_path, "model", "chatglm2", None)
    assert "python -m glmexp 'data.path=[a.jsonl,b.jsonl]' model.path=THUDM/glm\n" in text
    assert "some one" not in text
    assert "a.jsonl, b.jsonl" in text


def test_a_card_names_settings_by_their_values(tmp_path: Path) -> None:
    text = card(compose(["model=tiny", "method=qlora", "launch.device=gpu"]).config, tmp_path, "adapter", None, None)
    assert "quant_type nf4, double_quant True" in text


@pytest.mark.parametrize(
    ("verb", "words", "told"),
    [
        (predict_verb, [], 'predict RUN "QUESTION"'),
        (predict_verb, ["what", "is", "this"], "takes one question, got 3"),
        (predict_verb, ["?", "tempreature=1"], "did you mean temperature?"),
        (predict_verb, ["?", "temperature=-1"], "must be at least 0"),
        (predict_verb, ["?", "file=none.txt"], "leave one out"),
        (predict_verb, ["file=none.txt"], "No such file"),
        (predict_verb, ["--json"], "no such option"),
        (export_verb, ["layout=hf"], "standard or original"),
        (export_verb, ["merge=maybe"], "true or false"),
        (export_verb, ["dtype=int8"], "bf16 or fp16 or fp32"),
        (export_verb, ["extra"], "takes one run"),
    ],
)
def test_command_lines_that_are_refused(tmp_path: Path, verb: object, words: list[str], told: str) -> None:
    save(compose(["model=tiny"]).config, tmp_path / CONFIG)
    places = [str(tmp_path)] if words else ["file=q.txt"]
    with pytest.raises(UserError) as caught:
        verb([*places, *words])  # type: ignore[operator]
    assert told in str(caught.value)
    assert load(tmp_path / CONFIG).task.value == "train"


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not there"):
        predict_verb([str(tmp_path / "none"), "?"])
    with pytest.raises(UserError, match="not a run"):
        export_verb([str(tmp_path)])
    (tmp_path / "outputs/one").mkdir(parents=True)
    save(compose(["model=tiny"]).config, tmp_path / "outputs/one" / CONFIG)
    with pytest.raises(UserError, match=r"such as .*outputs"):
        export_verb([str(tmp_path)])


def test_what_a_killed_export_left_goes_and_a_link_stays(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        folder.mkdir()
        (folder / "new").touch()

    disk, gone = tmp_path / "disk", 2**22 + 1  # a process id above the kernel's largest
    for name in (f".out.{gone}", f".out.{gone}.old", f".out.{os.getppid()}", f".out[1].{gone}", "out"):
        (disk / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(disk / "out")
    publish(tmp_path / "link", fill)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in disk.iterdir()) == [f".out.{os.getppid()}", f".out[1].{gone}", "out"]
    assert (tmp_path / "link/new").exists()
    shutil.rmtree(disk / "out")
    (disk / f".out.{gone}.old").mkdir()  # the one export that is left
    clear(disk / "out")
    assert (disk / f".out.{gone}.old").exists()
