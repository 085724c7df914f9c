"""A sweep's folder: the lock, what is finished, and earlier tries."""

import os
import subprocess
import sys
import threading

import pytest

from glmexp.config.errors import UserError
from glmexp.sweep.folder import SweepFolder, claimed, set_aside
from glmexp.trial.record import State
from glmexp.trial.result import Result, read_result, write_result


def result(state=State.complete, digest="0123456789abcdef", overrides=()):
    return Result(state, "", list(overrides), digest, 1, {}, None, {}, {}, {})


def trial(sweep, name, *args, **kwargs):
    folder = sweep / name
    folder.mkdir()
    write_result(result(*args, **kwargs), folder)
    return folder


def test_only_one_sweep_at_a_time(tmp_path):
    first = SweepFolder(tmp_path / "a")
    first.open(resume=False)
    with pytest.raises(UserError, match="another sweep is running"):
        SweepFolder(tmp_path / "a").open(resume=True)
    first.close()
    SweepFolder(tmp_path / "a").open(resume=True)


def test_a_killed_parent_frees_the_lock_though_its_children_live(tmp_path):
    code = (
        "import subprocess, sys, time\nfrom pathlib import Path\nfrom glmexp.sweep.folder import SweepFolder\n"
        f"folder = SweepFolder(Path({str(tmp_path)!r}))\nfolder.open(resume=True)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        with pytest.raises(UserError, match="another sweep is running"):
            SweepFolder(tmp_path).open(resume=True)
        parent.kill()
    SweepFolder(tmp_path).open(resume=True)
    os.kill(child, 9)


def test_trials_are_not_mixed_with_an_earlier_sweep(tmp_path):
    trial(tmp_path, "micro-1-01234567")
    folder = SweepFolder(tmp_path)
    with pytest.raises(UserError, match=r"holds 1 trial.*\n.*sweep.resume=true"):
        folder.open(resume=False)
    folder.open(resume=True)
    assert list(folder.ran()) == ["0123456789abcdef"]


def test_a_refused_sweep_leaves_nothing(tmp_path):
    folder = SweepFolder(tmp_path / "a")
    folder.open(resume=False)
    folder.save_settings({})
    folder.abandon()
    assert list(tmp_path.iterdir()) == []
    trial(tmp_path, "b")
    SweepFolder(tmp_path).abandon()
    assert (tmp_path / "b" / "result.json").is_file()


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "ds_config.json"])
def test_no_sweep_goes_into_the_folder_of_a_single_run(tmp_path, name):
    (tmp_path / name).write_text("{}")
    for resume in (False, True):
        with pytest.raises(UserError, match=f"the folder of a single run: {name}"):
            SweepFolder(tmp_path).open(resume)
    assert [path.name for path in tmp_path.iterdir()] == [name], "no lock is left"


def test_other_files_are_no_trials(tmp_path):
    for name in ("notes", "wandb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    with pytest.raises(UserError, match=r"holds other files: notes, wandb\n"):
        SweepFolder(tmp_path).open(resume=False)
    assert not (tmp_path / ".lock").exists()
    (tmp_path / "sweep.json").write_text("{}")  # its trials were deleted
    SweepFolder(tmp_path).open(resume=False)


def test_a_file_where_the_folder_would_be(tmp_path):
    (tmp_path / "a").touch()
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(UserError, match=r"a file is in its way\ngive another sweep.name"):
            SweepFolder(path).open(resume=False)


def test_trials_are_known_by_what_is_in_them_or_by_their_names(tmp_path):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    moved = trial(tmp_path, "moved")
    (sweep / "linked").symlink_to(moved)
    (sweep / "micro-1-01234567" / "attempt1").mkdir(parents=True)
    (sweep / "empty-01234567").mkdir()
    (sweep / "notes").mkdir()
    (sweep / "notes" / "x").touch()
    assert [path.name for path in SweepFolder(sweep).trials()] == ["linked", "micro-1-01234567"]
    assert list(SweepFolder(sweep).ran()) == ["0123456789abcdef"]


def test_what_lies_in_a_trials_way_stays(tmp_path):
    folder = SweepFolder(tmp_path)
    (tmp_path / "a-01234567").touch()
    (tmp_path / "a-01234567-2").symlink_to(tmp_path / "gone")
    assert folder.place("a-01234567", "0123456789abcdef") == tmp_path / "a-01234567-3"
    folder.record("a-01234567", result(State.skipped))
    assert read_result(tmp_path / "a-01234567-3").state is State.skipped
    folder.record("a-01234567", result(State.skipped))
    assert len(folder.results()) == 1


def test_what_never_ran_is_not_finished(tmp_path):
    trial(tmp_path, "a", State.skipped)
    trial(tmp_path, "b", State.invalid, None)
    trial(tmp_path, "c", State.oom, "f" * 16)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.yaml").write_text("")
    (tmp_path / ".claims").mkdir()
    folder = SweepFolder(tmp_path)
    assert set(folder.ran()) == {"f" * 16}
    assert len(folder.results()) == 3
    assert [path.name for path in folder.trials()] == ["a", "b", "c", "d"]


def test_a_trial_goes_where_an_earlier_session_left_it(tmp_path):
    digest = "0123456789abcdef"
    folder = SweepFolder(tmp_path)
    assert folder.place("new-01234567", digest) == tmp_path / "new-01234567"
    half = tmp_path / "old-01234567"
    half.mkdir()
    (half / "config.yaml").write_text("")
    assert folder.place("new-01234567", digest) == half
    write_result(result(State.skipped), half)  # a twin's row is no place for the trial itself
    assert folder.place("new-01234567", digest) == tmp_path / "new-01234567"
    write_result(result(State.failed), half)
    assert folder.place("new-01234567", digest) == half


def test_every_try_is_kept(tmp_path):
    folder = trial(tmp_path, "a", State.failed)
    (folder / "train.log").write_text("one")
    assert set_aside(folder) == 1
    assert [path.name for path in folder.iterdir()] == ["attempt1"]
    assert read_result(folder / "attempt1").state is State.failed
    assert set_aside(folder) == 1, "nothing new to set aside"
    (folder / "train.log").write_text("two")
    assert set_aside(folder) == 2
    assert (folder / "attempt2" / "train.log").read_text() == "two"
    assert set_aside(tmp_path / "absent") == 0


def test_a_trial_is_claimed_by_one_at_a_time(tmp_path):
    order = []

    def second():
        with claimed(tmp_path, "a"):
            order.append("second")

    waiting = threading.Thread(target=second)
    with claimed(tmp_path, "a"), claimed(tmp_path, "b"):
        waiting.start()
        waiting.join(timeout=0.3)
        order.append("first")
    waiting.join(timeout=10)
    assert order == ["first", "second"]


def test_a_try_is_kept_when_the_trial_is_skipped_later(tmp_path):
    folder = SweepFolder(tmp_path)
    tried = trial(tmp_path, "a", State.failed)
    folder.record("a", result(State.skipped))
    assert read_result(tried).state is State.skipped
    assert read_result(tried / "attempt1").state is State.failed
    folder.record("a", result(State.skipped))
    assert sorted(path.name for path in tried.iterdir()) == ["attempt1", "result.json"]


def test_sessions_are_told_apart(tmp_path):
    folder = SweepFolder(tmp_path)
    trial(tmp_path, "a", State.failed)
    assert not folder.of_this_session(folder.results()[0]), "no session has begun"
    os.utime(tmp_path / "a" / "result.json", (1, 1))
    folder.save_settings({})
    assert not folder.of_this_session(folder.results()[0])
    write_result(result(), tmp_path / "a")
    assert folder.of_this_session(folder.results()[0])


def test_settings_read_back(tmp_path):
    folder = SweepFolder(tmp_path)
    assert folder.settings() == {}
    folder.save_settings({"lang": "zh"})
    assert folder.settings() == {"lang": "zh"}
    for damage in ("[", "[]", "[" * 100_000):
        (tmp_path / "sweep.json").write_text(damage)
        assert folder.settings() == {}
