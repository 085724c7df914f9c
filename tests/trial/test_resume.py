"""A run in several sessions: which one goes on, what its folder holds then, and how it saves before it is ended."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from functools import cache

import pytest

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.config.files import save
from glmexp.track.base import NullTracker
from glmexp.trial import processes, resume
from glmexp.trial.record import LOG, METRICS, RUN, State, rank_file, read_rank
from glmexp.trial.result import Result, read_result, write_result
from glmexp.trial.resume import decide, held, is_to_go_on, other_data, read_sessions
from glmexp.trial.run import exit_code, run_trial
from glmexp.trial.tasks import session_of

HASH = "0123456789abcdef"


@cache
def config(*overrides):
    return compose(["model=tiny", "launch.device=cpu", "train.resume=auto", "checkpoint.every=1", *overrides]).config


def add_checkpoint(run, step, whole=True):
    folder = run / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"step": step, "files": {} if whole else {"absent.pt": 1}}))


def end(run, state, steps=None):
    result = Result(state, "", [], HASH, 1, {"steps": steps}, None, {}, {}, {"seconds": 1.5})
    write_result(result, run)


def begin(root, name, digest=HASH, overrides=()):
    """A run as it is when its first session has started."""
    run = root / "2026-01-01" / name
    run.mkdir(parents=True)
    resume.begin(run, digest, "tag", list(overrides), config(*overrides), going_on=False)
    return run


def new(root):
    """The folder that Hydra has made for the run that was asked for."""
    folder = root / "2026-01-02" / "new"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ask(root, *overrides):
    return decide(config(*overrides), HASH, new(root), given=False)


def test_nothing_there_is_a_fresh_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "outputs"
    begin(root, "another", digest="f" * 16)
    found = ask(root)
    assert found.words == "nothing to resume under outputs/: a fresh run"
    assert (found.folder, found.going_on, found.done) == (new(root), False, False)


def test_an_unfinished_run_of_another_configuration_is_told_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = begin(tmp_path / "outputs", "another", digest="f" * 16)
    save(config("optimizer.lr=0.01", "checkpoint.keep=5"), run / "config.yaml")
    assert ask(tmp_path / "outputs").words.endswith("a fresh run")  # it has saved nothing
    add_checkpoint(run, 3)
    differs = "optimizer.lr=0.01 there, 0.001 now"
    assert ask(tmp_path / "outputs").words.endswith(
        f"a fresh run; outputs/2026-01-01/another, which is not finished, is another ({differs})"
    )
    end(run, State.complete, steps=3)
    assert ask(tmp_path / "outputs").words.endswith("a fresh run")


def test_other_data_than_the_checkpoint_s_is_told(tmp_path):
    assert other_data(config(), tmp_path, 12) is None  # a checkpoint that was copied out of its run
    save(config("optimizer.lr=0.01"), tmp_path / "config.yaml")
    assert other_data(config("data.eval_share=0.1"), tmp_path, 12) is None
    assert "(train.seed=42 there, 7 now)" in other_data(config("train.seed=7"), tmp_path, 12)
    line = other_data(config("data.max_length=64"), tmp_path, 12)
    assert "(data.max_length=512 there, 64 now)" in line
    assert "goes on at sample 12 of its own" in line


def test_the_newest_run_with_a_checkpoint_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    older, newer, bare = (begin(tmp_path / "outputs", name) for name in ("older", "newer", "bare"))
    for run, step in ((older, 9), (newer, 2), (newer, 4)):
        add_checkpoint(run, step)
    (newer / METRICS).write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 7)))
    found = ask(tmp_path / "outputs")
    assert (found.folder, found.going_on) == (newer, True)
    assert found.words == "resuming outputs/2026-01-01/newer from step 4; steps 5 to 6 are done again"
    add_checkpoint(bare, 1, whole=False)
    assert ask(tmp_path / "outputs").folder == newer


def test_a_run_without_a_whole_checkpoint_begins_afresh(tmp_path):
    run = begin(tmp_path, "bare")
    assert "it has saved no checkpoint: a fresh run" in ask(tmp_path).words
    add_checkpoint(run, 1, whole=False)
    found = ask(tmp_path)
    assert "all its checkpoints are damaged: a fresh run" in found.words
    assert (found.folder, found.going_on) == (new(tmp_path), False)


def test_a_run_with_all_its_steps_is_left_alone(tmp_path):
    run = begin(tmp_path, "whole")
    add_checkpoint(run, 6)
    end(run, State.complete, steps=6)
    found = ask(tmp_path)
    assert found.done
    assert "is complete (6 steps)" in found.words
    assert f"export {resume.shown(run)}` writes step 6" in found.words
    (run / "export").mkdir()
    assert "export" not in ask(tmp_path).words


def test_a_run_that_was_told_to_stop_goes_on_without_that(tmp_path):
    run = begin(tmp_path, "stopped", overrides=["train.stop_after=3"])
    add_checkpoint(run, 3)
    end(run, State.complete, steps=3)
    assert ask(tmp_path, "train.stop_after=3").done
    assert ask(tmp_path, "train.max_steps=3").done
    assert ask(tmp_path, "train.stop_after=5").going_on
    assert ask(tmp_path).going_on
    ended = read_result(run)
    for overrides, more in (
        (["train.stop_after=3"], False),
        (["train.max_steps=3"], False),
        (["train.stop_after=5"], True),
        ([], True),
    ):
        assert is_to_go_on(config(*overrides), run, ended) == more  # what a sweep goes by
    assert not is_to_go_on(config(), begin(tmp_path, "whole"), ended)


def test_a_run_of_another_process_is_not_touched(tmp_path):
    run = begin(tmp_path, "alive")
    add_checkpoint(run, 3)
    with held(run), pytest.raises(UserError, match="still going on in another process"):
        ask(tmp_path)
    assert ask(tmp_path).going_on


def test_a_folder_that_was_given_is_the_run(tmp_path):
    run = begin(tmp_path, "given")
    assert decide(config(), HASH, run, given=True).going_on  # from its first step
    add_checkpoint(run, 3)
    found = decide(config(), HASH, run, given=True)
    assert (found.folder, found.going_on) == (run, True)
    begin(tmp_path, "newer")
    assert decide(config(), HASH, tmp_path / "absent", given=True).words.endswith("absent/: a fresh run")


def test_a_given_folder_of_another_run_is_refused(tmp_path):
    run = begin(tmp_path, "given", digest="f" * 16)
    save(config("train.seed=7", "checkpoint.keep=5"), run / "config.yaml")
    with pytest.raises(UserError, match=r"holds another run \(train.seed=7 there, 42 now\)"):
        decide(config(), HASH, run, given=True)


def test_auto_looks_for_runs_of_one_node(tmp_path, place):
    with pytest.raises(UserError, match=r"train\.resume=RUN"):
        session_of(config(), HASH, replace(place(1), nodes=2), tmp_path, given=False)


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"config_hash": 1, "began": 2, "tag": "x"}', "\0" * 9])
def test_a_damaged_record_of_a_run_is_none(tmp_path, damage):
    (tmp_path / RUN).write_text(damage)
    assert read_sessions(tmp_path) is None


class Recorder(NullTracker):
    def __init__(self):
        super().__init__()
        self.calls = []

    def start(self, run):
        self.calls.append(("start", run.going_on))

    def go_on(self, step):
        self.calls.append(("go on", step))

    def log(self, row):
        self.calls.append(("log", row["step"]))


def test_the_second_session_of_a_run(composed, tmp_path, environ, place):
    folder = tmp_path / "run"
    trackers = Recorder(), Recorder()
    first = run_trial(composed, folder, ["a=1"], place(1), environ=environ(), worker="stand_in", tracker=trackers[0])
    with (folder / LOG).open("a") as log:
        log.write("RuntimeError: CUDA out of memory\n")
    second = run_trial(
        composed,
        folder,
        ["a=2"],
        place(1),
        environ=environ({0: "go on"}),
        worker="stand_in",
        tracker=trackers[1],
        going_on=True,
    )
    assert trackers[0].calls == [("start", False), ("log", 1), ("log", 2)]
    assert trackers[1].calls == [("start", True), ("go on", 1), ("log", 2), ("log", 3)]
    assert (second.state, second.resumed, first.resumed) == (State.complete, 1, None)
    wanted = {"steps": 3, "loss_first": 4.0, "loss_last": 0.5, "skipped_steps": 2, "tokens_per_second": 7.0}
    assert {name: second.metrics[name] for name in wanted} == wanted
    told = read_sessions(folder)
    assert (told.config_hash, [session["overrides"] for session in told.sessions]) == (second.config_hash, [["a=1"], ["a=2"]])
    assert (told.sessions[0]["state"], "state" in told.sessions[1]) == ("complete", False)
    assert read_result(folder) == second
    lost = run_trial(composed, folder, ["a=3"], place(1), environ=environ({0: "exit3"}), worker="stand_in", going_on=True)
    # By the log of this session alone, and with the rows that are there.
    assert (lost.state, lost.metrics["steps"]) == (State.failed, 3)


def test_what_an_earlier_session_told_is_out_of_the_way(tmp_path):
    run = begin(tmp_path, "killed")
    rank_file(run, 0).write_text("{}")
    end(run, State.killed)
    resume.begin(run, HASH, "new tag", [], config(), going_on=True)
    assert not rank_file(run, 0).exists()
    assert read_result(run) is None
    known = read_sessions(run)
    assert (known.tag, known.sessions[0]["state"], known.sessions[0]["seconds"]) == ("new tag", "killed", 1.5)


def test_a_folder_is_one_process_at_a_time(composed, tmp_path, environ, place):
    with held(tmp_path), pytest.raises(UserError, match="a run is going on in"):
        run_trial(composed, tmp_path, [], place(1), environ=environ(), worker="stand_in")


def send_when_ready(folder, ranks, *numbers):
    """Signals to this process, one a second, once the ranks can take them; launchers send one twice."""

    def send():
        while not all((folder / f"ready{rank}").exists() for rank in range(ranks)):
            time.sleep(0.02)
        os.kill(os.getpid(), numbers[0])
        time.sleep(0.2)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(1.0)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_ranks_save_before_the_run_is_ended(run, tmp_path, number, monkeypatch):
    monkeypatch.setattr(processes, "PEER_SECONDS", 0.2)
    sender = send_when_ready(tmp_path / "run", 2, number)
    result = run({0: "save1.0", 1: "save0.1"}, ranks=2, overrides=("checkpoint.every=2",))
    sender.join()
    assert (result.state, exit_code(result)) == (State.interrupted, 128 + number)
    assert result.reason == f"ended by {signal.Signals(number).name}; saved checkpoint step-000002"
    assert all((tmp_path / "run" / f"saved{rank}").exists() for rank in (0, 1))


def test_a_signal_to_a_rank_alone_is_the_run_s(run, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "FAREWELL_SECONDS", 0.2)

    def send():
        while not (tmp_path / "run" / "ready1").exists():
            time.sleep(0.02)
        os.kill(read_rank(tmp_path / "run", 1).pid, signal.SIGTERM)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    result = run({0: "hang", 1: "save0.1"}, ranks=2, overrides=("checkpoint.every=2",))
    sender.join()
    assert (result.state, exit_code(result)) == (State.interrupted, 128 + signal.SIGTERM)


def test_a_second_signal_does_not_wait_for_the_saving(run, tmp_path):
    sender = send_when_ready(tmp_path / "run", 1, signal.SIGTERM, signal.SIGINT)
    started = time.monotonic()
    result = run({0: "save600"}, overrides=("train.resume=auto",))
    sender.join()
    assert time.monotonic() - started < 30
    assert result.state is State.interrupted
    assert result.reason == "ended by SIGTERM; last phase: saving 0 of 2"


def test_a_time_limit_lets_the_ranks_save(run, tmp_path):
    result = run({0: "save0.1"}, overrides=("checkpoint.every=2", "launch.timeout_minutes=0.05"))
    assert result.state is State.timeout
    assert result.reason == "took longer than launch.timeout_minutes=0.05; saved checkpoint step-000002"


def test_a_notice_that_comes_too_early_ends_no_rank(run):
    assert run({0: "SIGUSR1"}).state is State.complete


def test_without_checkpoints_sigusr1_ends_nothing(run, tmp_path, capfd):
    sender = send_when_ready(tmp_path / "run", 1, signal.SIGUSR1, signal.SIGTERM)
    result = run({0: "save0.1"})
    sender.join()
    assert result.signal == signal.SIGTERM
    assert "SIGUSR1 has no effect without checkpoint.every" in capfd.readouterr().err
