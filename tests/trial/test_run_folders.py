"""What ``evaluate``, ``predict`` and ``export`` say of a folder that is no run."""

import pytest

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.config.files import save
from glmexp.trial.use import parse, run_config


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "disk" / "home" / "outputs" / "day" / "run"
    (folder / "export").mkdir(parents=True)
    save(compose([]).config, folder / "config.yaml")
    return folder


def refused(folder):
    with pytest.raises(UserError) as error:
        run_config("predict", folder)
    return str(error.value)


def test_the_folder_around_a_run_and_one_in_it_name_the_run(run, monkeypatch):
    assert str(run) in refused(run / "export")
    assert str(run) in refused(run.parent)
    assert str(run) in refused(run.parent.parent)
    monkeypatch.chdir(run.parent)
    assert "such as run" in refused(run.parent.relative_to(run.parent))  # .
    assert "as outputs/DATE/TIME-ID" in refused(run.parents[3])  # as /: a whole disk is not searched


def test_what_an_evaluation_left_is_no_run(run, tmp_path):
    evaluation = tmp_path / "evaluations" / "then"
    evaluation.mkdir(parents=True)
    (run / "config.yaml").rename(evaluation / "config.yaml")
    assert "such as" not in refused(tmp_path)


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"? ? ?\n- :", b"[" * 2000])
def test_a_damaged_config_is_named(run, content):
    (run / "config.yaml").write_bytes(content)
    assert str(run / "config.yaml") in refused(run)


def test_a_strangers_config_reads_no_variable(run, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hidden")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("path: ", "path: ${oc.env:MY_TOKEN} #", 1))
    assert "holds an interpolation" in refused(run)
    assert "hidden" not in refused(run)


def test_a_question_that_looks_like_an_option_is_told_how_to_be_asked():
    with pytest.raises(UserError, match="bare words go after --"):
        parse("predict", ["run", "x=1"], ["seed"])
    assert parse("predict", ["run", "--", "x=1"], ["seed"]) == (["run", "x=1"], {})
