"""What the task verbs need of the machine: a screen that may go away, and the files that are named."""

import errno
import json
from importlib.util import find_spec
from io import StringIO

import pytest
from rich.live import Live

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.trial.saved import FORMAT
from glmexp.trial.tasks import Screen, check_inputs


class Dying(StringIO):
    """A terminal that is closed after ``writes``, or a file on a disk that is full by then."""

    def __init__(self, number, writes=2):
        super().__init__()
        self.number, self.left = number, writes

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, "it is gone")
        return super().write(text)

    def isatty(self):
        return True


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPIPE])
def test_a_screen_goes_quiet_when_it_cannot_be_written_to(number):
    stream = Dying(number)
    screen = Screen(file=stream)
    for line in ("one", "two", "three", "four"):
        screen.print(line)
    assert screen.quiet
    assert stream.getvalue() == "one\ntwo\n"


def test_a_live_display_outlives_its_terminal():
    screen = Screen(file=Dying(errno.EIO), force_terminal=True)
    with Live("a table", console=screen, auto_refresh=False) as live:
        live.refresh()
        live.refresh()
    assert screen.quiet


LONG = "x" * 300


@pytest.mark.parametrize(
    "override", [f"data.path={LONG}", f"data.path=/{LONG}", f"model.path=/{LONG}", 'data.path="~nosuchuser/x"']
)
def test_a_path_that_cannot_be_looked_up(override):
    key = override.partition("=")[0]
    with pytest.raises(UserError, match=rf"^{key}=/.*(cannot be read: File name too long|is not there)\n"):
        check_inputs(compose(["model=tiny", override]).config)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.touch()

    def refuse(self, *arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    config = compose(["model=tiny", f"data.path={path}"]).config
    monkeypatch.setattr("pathlib.Path.open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(UserError, match=r"x\.jsonl cannot be read: Permission denied"):
        check_inputs(config)


def test_a_long_name_of_a_hub_is_left_to_the_hub():
    assert compose(["model=tiny", f"model.path={LONG}"]).config.model.path == LONG


def checked(*overrides):
    check_inputs(compose(["model=tiny", *overrides]).config)


def test_each_file_and_pattern_is_looked_at(tmp_path):
    for name in ("a.jsonl", "b.csv"):
        (tmp_path / name).touch()
    checked(f"data.path=[{tmp_path}/a.jsonl,'{tmp_path}/*.csv']", f"data.eval_path={tmp_path}/b.csv")
    with pytest.raises(UserError, match=rf"^data.path={tmp_path}/c.jsonl is not there\n"):
        checked(f"data.path=[{tmp_path}/a.jsonl,{tmp_path}/c.jsonl]")
    with pytest.raises(UserError, match=r"^data.eval_path=.*\*.tsv matches no file\n"):
        checked(f"data.eval_path='{tmp_path}/*.tsv'")
    with pytest.raises(UserError, match=r"is a folder, not a file\nname the files in it"):
        checked(f"data.eval_path={tmp_path}")


@pytest.mark.parametrize(
    ("package", "overrides"), [("pyarrow", ["data.path=a.parquet"]), ("datasets", ["data=hub", "data.path=owner/name"])]
)
def test_a_package_that_is_needed_and_absent_is_told_before_a_start(package, overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.parquet").touch()
    checked(*overrides)
    monkeypatch.setattr("glmexp.trial.tasks.find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(UserError, match=rf"^data.path=\S+: the package {package} is not installed.\n.*'glmexp\[data\]'"):
        checked(*overrides)


def save_checkpoint(run, step, **files):
    folder = run / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    state = {"format": FORMAT, "step": step, "files": files, "method": "full", "optimizer": "AdamW", "zero_stage": 2}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_a_checkpoint_to_begin_from_is_looked_at_first(tmp_path):
    saved = save_checkpoint(tmp_path, 4)
    for path in (saved, tmp_path):
        check_inputs(compose([f"train.resume={path}", "train.max_steps=5"]).config)
        check_inputs(compose([f"train.resume={path}", "train.max_steps=4", "task=measure"]).config)


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("absent", [], "no such folder"),
        (".", ["train.max_steps=4"], "is of step 4, and train.max_steps=4 ends there"),
        (".", ["train.stop_after=3"], "is of step 4, and train.stop_after=3 ends there"),
        (".", ["method=lora"], "set method=full, or leave"),
        (".", ["optimizer=muon"], "set optimizer=adamw, or leave"),
        ("damaged", [], "weights.pt is not there"),
        ("empty", [], "holds no checkpoint"),
    ],
)
def test_a_checkpoint_that_no_run_can_begin_from(tmp_path, name, overrides, words):
    save_checkpoint(tmp_path, 4)
    save_checkpoint(tmp_path / "damaged", 4, **{"weights.pt": 1})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as refused:
        check_inputs(compose([f"train.resume={tmp_path / name}", *overrides]).config)
    assert str(refused.value).startswith("train.resume: ")
    assert words in str(refused.value)
