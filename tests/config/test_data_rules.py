"""Where samples come from: what data.path may be, what goes together, and paths that are made absolute."""

import pytest

from glmexp.config import UserError, compose
from glmexp.config.compose import absolute_paths
from glmexp.config.data_files import files
from glmexp.config.rules import warnings

HUB = ["data=hub", "data.path=owner/name"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.path=3"], ["data.path=3", "./NAME"]),
        (["data.path=true"], ["data.path=True"]),
        (["data.path={a: b}"], ["data.path={'a': 'b'}"]),
        (["data.path=[]"], ["data.path=[]", "'data/*.jsonl'"]),
        (["data.path=''"], ["data.path holds an empty path"]),
        (["data.path=[a.jsonl,null]"], ["data.path=None", "[a.jsonl,b.csv]"]),
        (["data.eval_path=[1]"], ["data.eval_path=1"]),
        (["data.eval_path=a.jsonl", "data.eval_share=0.1"], ["data.eval_path=", "data.eval_share=0.1", "leave one out"]),
        (["data.subset=zh"], ["data.subset=zh has no effect", "data=hub"]),
        (["data.revision=main"], ["data.revision=main has no effect", "data=hub"]),
        (["data=hub", "data.path=/d", "data.revision=v1"], ["data.revision=v1 has no effect", "data.path=/d"]),
        (["data.split=test"], ["data.split=test has no effect", "data=hub"]),
        (["data.streaming=true"], ["data.streaming=True has no effect", "data=hub"]),
        (["data.eval_split=test"], ["data.eval_split=test has no effect", "data=hub"]),
        (["data.encoding=gb81030"], ["data.encoding=gb81030", "gb18030"]),
        (["data.encoding=base64"], ["data.encoding=base64"]),
        (["data.columns.messages=m", "data.columns.history=h"], ["data.columns.history=h has no effect"]),
        (["data.encoding=undefined"], ["data.encoding=undefined"]),
        (["data.encoding=punycode"], ["data.encoding=punycode"]),
        (["data=synthetic", "data.encoding=gbk"], ["data.encoding=gbk has no effect"]),
        (["data=synthetic", "data.eval_path=a.jsonl"], ["data.eval_path", "no effect"]),
        (["data=hub"], ["data.path is not set"]),
        (["data=hub", "data.path=null"], ["data.path=None", "data.path=owner/name"]),
        (["data=hub", "data.path=[a/b]"], ["data.path=['a/b']", "one dataset"]),
        (["data=hub", "data.path=a/b/c"], ["data.path=a/b/c", "data.path=owner/name"]),
        ([*HUB, "data.eval_path=a.jsonl"], ["data.eval_path", "data.eval_split=NAME"]),
        ([*HUB, "data.eval_split=train"], ["data.eval_split=train", "trained on"]),
        ([*HUB, "data.eval_split=test", "data.eval_share=0.1"], ["data.eval_split=test", "data.eval_share=0.1"]),
        ([*HUB, "data.encoding=gbk"], ["data.encoding=gbk has no effect with data=hub"]),
    ],
)
def test_what_would_be_dropped_or_break_is_refused(overrides, words):
    with pytest.raises(UserError) as error:
        compose(overrides)
    assert len(str(error.value).splitlines()) <= 6
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.encoding=GBK", "data.path=a.csv", "data.eval_path='dev/*.csv'"],
        [*HUB, "data.streaming=true", "data.limit=9", "data.subset=zh", "data.revision=v1", "data.eval_split=dev"],
    ],
)
def test_what_goes_together_composes(overrides):
    compose(overrides)


def test_paths_are_made_absolute_one_by_one(tmp_path, monkeypatch):
    home = tmp_path / "home[1]"
    home.mkdir()
    (home / "x[2].jsonl").touch()
    monkeypatch.chdir(home)
    data = compose(["data.path=[a.jsonl,/b.csv,../c.tsv,'x[2].jsonl','*.json']", "data.eval_path='~/dev.jsonl'"]).config.data
    escaped = f"{tmp_path}/home[[]1]"
    assert data.path == [f"{home}/a.jsonl", "/b.csv", f"{tmp_path}/c.tsv", f"{home}/x[2].jsonl", f"{escaped}/*.json"]
    assert data.eval_path.startswith("/")
    (home / "y.json").touch()
    assert [path.name for path in files("data.path", data.path[-2:])] == ["x[2].jsonl", "y.json"]


def test_the_name_of_a_dataset_stays_and_a_folder_of_files_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compose(HUB).config.data.path == "owner/name"
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert compose(HUB).config.data.path == f"{tmp_path}/owner/name"
    assert compose(["data=hub", "data.path=./absent"]).config.data.path == f"{tmp_path}/absent"


def test_values_that_are_no_paths_stay():
    assert absolute_paths({"data": {"path": [1, ""], "eval_path": None}})["data"] == {"path": [1, ""], "eval_path": None}


def test_validation_on_what_is_trained_on_is_warned_of():
    told = warnings(compose(["data.path=[a.jsonl,b.jsonl]", "data.eval_path=b.jsonl"]).config)
    assert any("b.jsonl is trained on too" in line for line in told)
    assert not any("trained on too" in line for line in warnings(compose(["data.eval_path=b.jsonl"]).config))


def test_a_pattern_that_takes_the_validation_file_too_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "dev.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "link.json").symlink_to("dev.jsonl")
    for overrides in (["data.path='*.jsonl'", "data.eval_path=dev.jsonl"], ["data.path='d*'", "data.eval_path=link.json"]):
        told = warnings(compose(overrides).config)
        assert any(f"data.eval_path={tmp_path}/dev.jsonl is trained on too" in line for line in told)
    told = warnings(compose(["data.path='a*'", "data.eval_path=dev.jsonl"]).config)
    assert not any("trained on too" in line for line in told)
