"""The result record: metrics, hash, redaction."""

import json
import math
import os
from dataclasses import replace

import pytest

from glmexp.config import compose
from glmexp.config.choices import Task
from glmexp.config.errors import UserError
from glmexp.config.files import to_values
from glmexp.dsconfig import Machine, build
from glmexp.trial.config_hash import DEFAULTS, config_hash
from glmexp.trial.placement import Placement
from glmexp.trial.record import METRICS, State, read_rank
from glmexp.trial.redact import is_secret, redact, refuse_secret_values
from glmexp.trial.result import (
    METRIC_NAMES,
    MetricsTail,
    Result,
    complete_metrics,
    exit_code,
    finite,
    read_result,
    versions,
    write_result,
)

PLACEMENT = Placement(Machine(2, "gpu"), 2, device_name="NVIDIA H200")
VERSIONS = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.24.0"}


def digest(*overrides, placement=PLACEMENT, versions=VERSIONS):
    config = compose(["model=tiny", *overrides]).config
    return config_hash(config, build(config, placement.machine), placement, versions)


def test_the_hash_covers_what_changes_the_outcome(tmp_path):
    data = tmp_path / "x.jsonl"
    data.write_text("{}\n")
    base = digest(f"data.path={data}")
    assert base == digest(f"data.path={data}")
    assert len(base) == 16
    seen = {
        base,
        digest(f"data.path={data}", "train.seed=7"),
        digest(f"data.path={data}", "zero=stage3"),
        digest(f"data.path={data}", placement=replace(PLACEMENT, device_name="NVIDIA A100")),
        digest(f"data.path={data}", placement=replace(PLACEMENT, machine=Machine(1, "gpu"), ranks=1)),
        digest(f"data.path={data}", versions={**VERSIONS, "deepspeed": "0.19.9"}),
    }
    os.utime(data, ns=(1, 1))
    seen.add(digest(f"data.path={data}"))
    data.write_text("{}\n{}\n")
    os.utime(data, ns=(1, 1))
    seen.add(digest(f"data.path={data}"))
    assert len(seen) == 8


def test_a_field_that_is_added_later_leaves_the_hashes_of_earlier_runs(monkeypatch):
    def with_field(value):
        def values(config):
            plain = to_values(config)
            return {**plain, "data": {**plain["data"], "added": value}}

        monkeypatch.setattr("glmexp.trial.config_hash.to_values", values)
        monkeypatch.setitem(DEFAULTS, "data.added", None)
        return digest()

    earlier = digest()
    assert with_field(None) == earlier
    assert with_field("x") != earlier


def test_the_hash_covers_each_of_several_files_and_those_of_a_dataset_here(tmp_path):
    (tmp_path / "set").mkdir()
    paths = [tmp_path / "set" / name for name in ("a.jsonl", "b.jsonl", "dev.jsonl")]
    for path in paths:
        path.write_text("{}\n")
    files = [f"data.path='{tmp_path}/set/[ab].jsonl'", f"data.eval_path={paths[2]}"]
    dataset = ["data=hub", f"data.path={tmp_path}/set"]
    seen = {digest(*files), digest(*dataset)}
    for path in paths:
        os.utime(path, ns=(1, 1))
        seen |= {digest(*files), digest(*dataset)}
    assert len(seen) == 8


@pytest.mark.parametrize(
    "overrides",
    [
        ["launch.timeout_minutes=5"],
        ["tracker=wandb", "tracker.mode=offline"],
        ["launch.ranks=2"],
        ["lang=zh"],
        ["sweep.resume=true", "sweep.objective=memory"],
        ["batch.micro=2", "batch.accumulation=1"],
        ["batch.micro=null", "batch.total=4", "batch.accumulation=1"],
        ["measure.steps=7"],
        ["hardware=rtx4090"],
        ["train.resume=auto", "train.stop_after=3", "checkpoint.every=2", "checkpoint.keep=5"],
        ["eval.max_new_tokens=7", "eval.micro=3"],
    ],
)
def test_the_hash_leaves_out_what_does_not(overrides):
    assert digest(*overrides) == digest()


def test_of_the_evaluations_the_hash_covers_what_they_score_and_what_follows_from_it():
    validated = digest("data.eval_share=0.1")
    assert validated != digest()
    assert validated == digest("data.eval_share=0.1", "eval.every=3", "eval.micro=7", "eval.max_new_tokens=7")
    assert validated != digest("data.eval_share=0.1", "eval.generate=true")
    best = ["data.eval_share=0.1", "checkpoint.best=loss", "eval.every=3"]
    assert len({validated, digest(*best), digest(*best, "eval.every=4"), digest(*best, "eval.patience=2")}) == 4


def test_the_checkpoint_that_a_run_begins_from_counts(tmp_path):
    one, two = (digest(f"train.resume={tmp_path}/{name}") for name in ("one", "two"))
    assert len({one, two, digest("train.resume=auto")}) == 3
    assert digest("task=measure", f"train.resume={tmp_path}") == digest("task=measure")


def test_what_is_measured_counts_for_a_measurement():
    assert digest("task=measure") != digest()
    assert digest("task=measure") != digest("task=measure", "measure.steps=7")
    assert digest("task=measure") != digest("task=measure", "data.max_length=64")
    assert digest("task=measure") != digest("task=measure", "measure.samples=longest")
    assert digest("hardware=rtx4090", "hardware.emulate=true") != digest()


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.max_steps=7"],
        ["train.save_weights=false", "train.epochs=1"],
        ["checkpoint.every=3", "eval.max_new_tokens=2"],
        ["data=synthetic", "data.max_length=512"],
        ["data.path=absent.jsonl", "data.limit=3"],
    ],
)
def test_a_measurement_does_not_depend_on_what_it_does_not_read(overrides):
    assert digest("task=measure", *overrides) == digest("task=measure")


def test_the_weights_to_start_from_count_and_not_how_that_was_said():
    released = ["model=chatglm2_6b", "task=measure"]
    assert digest(*released) == digest(*released, "model.init=random")
    assert digest(*released) != digest(*released, "model.init=pretrained")
    assert digest("model=chatglm2_6b") == digest("model=chatglm2_6b", "model.init=pretrained")


def test_a_result_reads_back(tmp_path):
    wanted = Result(State.oom, "no room", ["zero=stage2"], None, 1, {"steps": 3}, None, {}, {}, {})
    assert read_result(tmp_path) is None
    write_result(wanted, tmp_path)
    assert read_result(tmp_path) == wanted
    (tmp_path / "result.json").write_text('{"state": "oom"')
    assert read_result(tmp_path) is None


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "damage",
    [
        {"overrides": "zero=stage2"},
        {"overrides": [1]},
        {"config_hash": 5},
        {"metrics": []},
        {"device": None},
        {"reason": 1},
        DEEP,
    ],
    ids=range(7),
)
def test_a_result_with_other_things_in_its_fields_is_none(tmp_path, damage):
    write_result(Result(State.oom, "", [], None, 1, {}, None, {}, {}, {}), tmp_path)
    path = tmp_path / "result.json"
    text = path.read_text()
    path.write_text(damage if isinstance(damage, str) else json.dumps({**json.loads(text), **damage}))
    assert read_result(tmp_path) is None


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"phase": "x"}', '{"phase": "done", "outcome": 1}', DEEP], ids=range(6))
def test_a_rank_file_that_is_damaged_is_none(tmp_path, text):
    (tmp_path / "rank0.json").write_text(text)
    assert read_rank(tmp_path, 0) is None


def test_a_run_that_broke_off_has_the_figures_of_its_rows():
    rows = [
        {
            "step": step,
            "loss": 5.0 - step,
            "tokens_per_second": speed,
            "step_seconds": 1.0,
            "skipped": step == 1,
            "peak_allocated_gib": peak,
        }
        for step, speed, peak in ((1, 1.0, None), (2, 2.0, 3.0), (3, 90.0, 4.5), (4, 100.0, 4.0), (5, 110.0, 4.0))
    ]
    metrics = complete_metrics({}, rows)
    assert tuple(metrics) == METRIC_NAMES
    assert metrics["tokens_per_second"] == 100.0, "the first steps do not count for speed"
    assert metrics["step_seconds_spread"] == 0.0
    measured = complete_metrics({}, rows, Task.measure)
    assert measured["tokens_per_second"] == 90.0, "the rows of a measurement hold no warm-up"
    wanted = {"loss_first": 4.0, "loss_last": 0.0, "steps": 5, "skipped_steps": 1, "peak_allocated_gib": 4.5, "mfu": None}
    assert {name: metrics[name] for name in wanted} == wanted
    assert complete_metrics({"steps": 9, "mfu": None, "own": 1}, rows)["steps"] == 9
    assert set(complete_metrics({}, []).values()) == {None}


def test_rows_are_read_once_and_whole(tmp_path):
    tail = MetricsTail(tmp_path)
    assert tail.fresh() == []
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n{"step": 2')
    assert tail.fresh() == [{"step": 1}]
    assert tail.fresh() == []
    with path.open("a") as handle:
        handle.write('0}\nbroken\n{"step": 3}\n')
    assert tail.fresh() == [{"step": 20}, {"step": 3}]
    assert [row["step"] for row in tail.rows] == [1, 20, 3]


def test_numbers_that_json_lacks_become_null():
    assert finite({"a": [math.nan, math.inf, 1.5], "b": (State.oom, None)}) == {"a": [None, None, 1.5], "b": ["oom", None]}


def test_exit_codes():
    class Ended:
        def __init__(self, state, signal=None):
            self.state, self.signal = state, signal

    codes = {state: exit_code(Ended(state)) for state in State}
    assert codes.pop(State.complete) == 0
    assert codes.pop(State.invalid) == 2
    assert codes.pop(State.interrupted) == 130
    assert set(codes.values()) == {1}
    assert exit_code(Ended(State.interrupted, 15)) == 143


def test_versions_come_without_an_import():
    found = versions()
    assert found["torch"]
    assert found["deepspeed"]
    assert found["python"]
    assert found["glmexp"]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("WANDB_API_KEY", True),
        ("my_token", True),
        ("DB_PASSWORD", True),
        ("AWS_SECRET_ACCESS", True),
        ("PATH", False),
        ("TOKENIZERS_PARALLELISM", False),
    ],
)
def test_names_of_secrets(name, secret):
    assert is_secret(name) is secret


def test_redaction():
    environ = {"API_KEY": "abcdef123", "LONG_TOKEN": "abcdef123456", "SHORT_KEY": "1", "HOME": "/home/me"}
    text = "x=abcdef123456 y=abcdef123 n=1 at https://me:pw@host/a?b=1 and http://host/home/me@x"
    assert redact(text, environ) == "x=*** y=*** n=1 at https://***@host/a?b=1 and http://host/home/me@x"


ENVIRON = {"API_KEY": "abcdef123", "SHORT_KEY": "12345", "HOME": "/home/me"}


@pytest.mark.parametrize("override", ["data.path=abcdef123/x", "+x.abcdef123=1"])
def test_a_secret_in_an_override_is_refused_without_being_repeated(override):
    with pytest.raises(UserError, match="holds the value of API_KEY") as refused:
        refuse_secret_values(["train.seed=1", override], ENVIRON)
    assert "abcdef123" not in str(refused.value)
    assert "env -u API_KEY" in str(refused.value)


def test_values_that_are_no_secrets_pass():
    refuse_secret_values(["data.path=/home/me/x", "train.max_steps=12345"], ENVIRON)


def test_a_number_or_a_path_under_a_secret_name_is_no_secret():
    environ = {"MAX_TOKENS": "131072", "SSH_KEY_FILE": "/home/me/keys", "MY_TOKEN": "canary-5f1d"}
    assert redact("data.max_length=131072 /home/me/keys canary-5f1d", environ) == "data.max_length=131072 /home/me/keys ***"
