"""``deepspeed_json=PATH`` and retired raw keys as the overrides that they stand for."""

import json
from pathlib import Path

import pytest

from glmexp.config import UserError, compose
from glmexp.dsconfig import Machine, build
from glmexp.dsconfig.convert import expand
from glmexp.dsconfig.convert.known import hidden_size

OFFICIAL = Path(__file__).parent.parent / "golden" / "official"
STAGE2 = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.5,
    "fp16": {"enabled": True, "loss_scale_window": 100},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "weight_decay": 0.01}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1e6, "round_robin_gradients": True},
    "steps_per_print": 50,
}


@pytest.fixture
def file(tmp_path):
    def write(config, name="ds.json"):
        (tmp_path / name).write_text(json.dumps(config))
        return str(tmp_path / name)

    return write


def emitted(expanded):
    return build(compose(expanded.overrides).config, Machine(1, "cpu"))


def test_nothing_to_expand_is_left_as_it_is():
    overrides = ["zero=stage3", "+deepspeed.steps_per_print=5", "data.path='a=b c'"]
    assert expand(overrides).overrides == overrides
    assert not expand(overrides).notes


def test_the_file_comes_first_and_says_where_a_value_is_from(file):
    path = file(STAGE2)
    expanded = expand([f"deepspeed_json={path}", "optimizer.lr=1e-3", "model=chatglm2_6b"])
    assert expanded.overrides[-2:] == ["optimizer.lr=1e-3", "model=chatglm2_6b"]
    composed = compose(expanded.overrides)
    sources = expanded.relabel(composed.sources)
    assert sources["zero.stage"] == f"deepspeed_json={path}: zero=stage2"
    assert sources["zero.reduce_bucket_size"] == f"deepspeed_json={path}: zero.reduce_bucket_size=1000000"
    assert sources["deepspeed.steps_per_print"] == f"deepspeed_json={path}: ++deepspeed.steps_per_print=50"
    assert sources["optimizer.lr"] == "command line: optimizer.lr=1e-3"
    assert sources["model.path"] == "command line: model=chatglm2_6b"
    ds = build(composed.config, Machine(1, "cpu"))
    assert ds["optimizer"]["params"]["lr"] == 1e-3
    assert ds["fp16"]["loss_scale_window"] == 100
    assert ds["gradient_clipping"] == 0.5


def test_an_option_of_the_users_own_stands_for_its_whole_group(file):
    expanded = expand([f"deepspeed_json={file(STAGE2)}", "zero=stage3"])
    assert emitted(expanded)["zero_optimization"] == emitted(expand(["zero=stage3"]))["zero_optimization"]
    assert any(
        line.startswith("zero=stage3, your own choice, replaces the file's zero=stage2") and "round_robin" in line
        for line in expanded.notes
    )
    assert emitted(expanded)["fp16"]["loss_scale_window"] == 100, "other groups stay"


@pytest.mark.parametrize(
    ("own", "kept"), [("precision=bf16", False), ("precision.dtype=fp32", False), ("precision=fp16", True)]
)
def test_the_scaler_goes_with_fp16(file, own, kept):
    expanded = expand([f"deepspeed_json={file(STAGE2)}", own])
    assert any(text.startswith("scaler") for text in expanded.overrides) is kept
    assert ("fp16" in emitted(expanded)) is kept


def test_raw_keys_of_a_group_go_with_it_and_an_own_raw_key_wins(file):
    config = {**STAGE2, "zero_optimization": {"stage": 2, "ignore_unused_parameters": True, "parameter_alignment": True}}
    overrides = ["+deepspeed.zero_optimization.parameter_alignment=false"]
    ds = emitted(expand([f"deepspeed_json={file(config)}", *overrides]))
    assert ds["zero_optimization"]["parameter_alignment"] is False
    ds = emitted(expand([f"deepspeed_json={file(config)}", "zero=stage1"]))
    assert "parameter_alignment" not in ds["zero_optimization"]


def test_an_error_names_the_overrides_that_the_file_gave(file):
    config = {
        **STAGE2,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    }
    path = file(config)
    expanded = expand([f"deepspeed_json={path}", "zero=stage2"])
    with pytest.raises(UserError) as error:
        compose(expanded.overrides)
    assert f"deepspeed_json={path} says offload=cpu_all" in str(expanded.attribute(error.value))
    other = UserError("data.path=x is not there")
    assert expanded.attribute(other) is other


def test_an_experiment_that_sets_the_same_group_is_refused_by_name(file):
    path = file(STAGE2)
    expanded = expand(["experiment=seed_zero2_offload", f"deepspeed_json={path}"])
    with pytest.raises(UserError) as error:
        compose(expanded.overrides)
    assert "experiment=seed_zero2_offload" in str(error.value)
    assert f"deepspeed_json={path} says zero=stage2" in str(expanded.attribute(error.value))


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        (["model=chatglm2_6b"], (16_777_216, 15_099_494, 40_960)),
        (["model=tiny"], (65_536, 58_982, 2_560)),
        (["model=auto", "model.path=org/unknown"], (50_000_000, 50_000_000, 100_000)),
        (["model=chatglm2_6b", "zero=stage3"], (50_000_000, 50_000_000, 100_000)),
        (["model=chatglm2_6b", "zero.reduce_bucket_size=7"], (7, 15_099_494, 40_960)),
    ],
)
def test_auto_is_what_the_trainer_computes_from_the_composed_model(beside, expected):
    expanded = expand([f"deepspeed_json={OFFICIAL / 'chatglm3_ds_zero_3.json'}", *beside])
    zero = emitted(expanded)["zero_optimization"]
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    assert tuple(zero[name] for name in names) == expected
    assert any("hidden size of model.path is not known" in line for line in expanded.notes) is ("model=auto" in beside)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"hidden_size": 8}, 8),
        ({"hidden_sizes": [8, 16]}, 16),
        ({"text_config": {"hidden_size": 32}}, 32),
        ({"hidden_size": "wide"}, None),
        ({}, None),
    ],
)
def test_hidden_size_is_found_where_the_trainer_finds_it(tmp_path, config, size):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert hidden_size(str(tmp_path)) == size
    assert hidden_size(str(tmp_path / "absent")) is None


def test_an_fp16_section_that_is_auto_has_its_scaler_when_the_precision_is_fp16(file):
    config = {**STAGE2, "fp16": {"enabled": "auto", "loss_scale_window": 100}}
    assert "scaler.loss_scale_window=100" in expand([f"deepspeed_json={file(config)}", "precision=fp16"]).overrides
    assert not [text for text in expand([f"deepspeed_json={file(config)}"]).overrides if text.startswith("scaler")]


def test_a_file_without_a_batch_takes_the_composed_one(file):
    config = {key: value for key, value in STAGE2.items() if key != "train_micro_batch_size_per_gpu"}
    expanded = expand([f"deepspeed_json={file(config)}", "batch.micro=3"])
    assert emitted(expanded)["train_batch_size"] == 3
    assert "no batch size: batch.micro is as composed" in expanded.notes


def test_a_new_key_needs_lint_allow(file):
    path = file({**STAGE2, "brand_new": {"x": 1}})
    with pytest.raises(UserError, match="brand_new"):
        expand([f"deepspeed_json={path}"])
    assert "++deepspeed.brand_new.x=1" in expand([f"deepspeed_json={path}", "lint.allow=[brand_new]"]).overrides


@pytest.mark.parametrize("name", ["a b.json", "a=b.json", "a,b.json", "天.json"])
def test_any_path_is_taken(file, name):
    path = file(STAGE2, name)
    assert "zero=stage2" in expand([f"deepspeed_json={path}"]).overrides
    assert "zero=stage2" in expand([f"deepspeed_json='{path}'"]).overrides


def test_a_relative_path_starts_at_the_folder_of_the_call(file, monkeypatch, tmp_path):
    file(STAGE2)
    monkeypatch.chdir(tmp_path)
    assert "zero=stage2" in expand(["deepspeed_json=ds.json"]).overrides


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["deepspeed_json=absent.json"], ["deepspeed_json=absent.json", "not there"]),
        (["deepspeed_json="], ["deepspeed_json=", "path"]),
        (["deepspeed_json=a.json,b.json"], ["a.json,b.json", "one file"]),
        (["deepspeed_json=a.json", "deepspeed_json=b.json"], ["one file at a time"]),
    ],
)
def test_what_is_no_single_file_is_refused(overrides, words):
    with pytest.raises(UserError) as error:
        expand(overrides)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is not JSON"),
        ("[]", "a list"),
        ('{"gradient_cliping": 1}', "gradient_cliping: "),
        ('{"train_batch_size": 2, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}', "offload_param"),
        ('{"train_batch_size": 2, "optimizer": {"type": "Lamb"}}', "optimizer.type=Lamb"),
        ('{"train_batch_size": 2, "cpu_offload": {"a": "' + "x" * 9 + '"}}', "cpu_offload"),
        ('{"train_batch_size": 99999999}', "batch.total"),
        ('{"train_batch_size": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path, text, word):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        compose(expand([f"deepspeed_json={path}"]).overrides)
    assert word in str(error.value)


def test_a_model_that_is_swept_over_cannot_decide_auto():
    path = OFFICIAL / "chatglm3_ds_zero_3.json"
    with pytest.raises(UserError, match="one model"):
        expand([f"deepspeed_json={path}", "model=tiny,chatglm2_6b"])
    assert "batch.micro=1,2" in expand([f"deepspeed_json={path}", "batch.micro=1,2"]).overrides


ZERO = "+deepspeed.zero_optimization"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"{ZERO}.cpu_offload=true"], ["offload=cpu"]),
        ([f"{ZERO}.cpu_offload=True", f"{ZERO}.cpu_offload_param=true"], ["offload=cpu_all"]),
        ([f"{ZERO}.cpu_offload=false"], []),
        ([f"{ZERO}.cpu_offload=true", f"{ZERO}.cpu_offload_use_pin_memory=false"], ["offload=cpu", "offload.pin_memory=false"]),
        (["offload=cpu", f"{ZERO}.cpu_offload=true"], ["offload=cpu"]),
        (
            ["zero=stage3", f"{ZERO}.stage3_gather_fp16_weights_on_model_save=true"],
            ["zero=stage3", "zero.stage3_gather_16bit_weights_on_model_save=true"],
        ),
        (["+deepspeed.bfloat16.enabled=true"], ["+deepspeed.bf16.enabled=true"]),
        (["+deepspeed.fp32_allreduce=true"], ["comm.communication_data_type=fp32"]),
    ],
)
def test_retired_keys_are_mapped_with_a_line_each(overrides, expected):
    expanded = expand(overrides)
    assert expanded.overrides == expected
    assert len(expanded.notes) == len([text for text in overrides if text.startswith("+")])
    compose(["zero=stage3", *expanded.overrides])


@pytest.mark.parametrize(
    "overrides",
    [[f"{ZERO}.cpu_offload=true", "offload=none"], [f"{ZERO}.cpu_offload=1,2"], [f"{ZERO}.cpu_offload={{device:cpu}}"]],
)
def test_a_retired_key_that_says_something_else_is_refused(overrides):
    with pytest.raises(UserError, match=r"offload=|true or false"):
        expand(overrides)
