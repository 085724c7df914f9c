"""Real processes: how a run ends, and what its folder holds then."""

import errno
import io
import json
import os
import signal
import time

import pytest

from glmexp.config import load
from glmexp.trial import processes
from glmexp.trial import run as running
from glmexp.trial.orphan import TAG
from glmexp.trial.record import State
from glmexp.trial.result import METRIC_NAMES
from glmexp.trial.run import exit_code


def environment_of(folder, rank):
    return json.loads((folder / f"environ{rank}.json").read_text())


def alive(tag):
    """Pids with this tag, found from outside."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as handle:
                found += [int(pid)] if f"{TAG}={tag}".encode() in handle.read() else []
        except OSError:
            continue
    return found


def test_a_complete_run_leaves_its_folder(run, tmp_path, composed):
    result = run(ranks=2)
    folder = tmp_path / "run"
    assert (result.state, result.reason, exit_code(result)) == (State.complete, "", 0)
    written = json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)
    assert written["state"] == "complete"
    assert written["world_size"] == 2
    assert written["predicted"] is None
    assert set(METRIC_NAMES) <= set(written["metrics"])
    # As rank 0 told it, from the rows, never measured, and told as a number that JSON does not know.
    assert [written["metrics"][name] for name in ("steps", "loss_last", "mfu", "host_peak_gib")] == [2, 2.0, None, None]
    assert written["versions"]["torch"]
    assert written["device"]["kind"] == "cpu"
    assert written["times"]["seconds"] > 0
    assert load(folder / "config.yaml") == composed.config
    config = json.loads((folder / "ds_config.json").read_text())
    assert config["train_batch_size"] == 2 * config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    log = (folder / "train.log").read_text()
    assert "rank 0 is done" in log
    assert "rank 1 is done" in log
    assert log.startswith("ranks 0-1 -> CPU")


def test_ranks_find_their_place_and_a_port_of_their_own(run, tmp_path):
    run(ranks=2, RANK="7", WORLD_SIZE="9", TORCHELASTIC_RUN_ID="gone", OMP_NUM_THREADS="")
    one, two = (environment_of(tmp_path / "run", rank) for rank in (0, 1))
    assert [one[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["0", "0", "2", "2"]
    assert [two[name] for name in ("RANK", "LOCAL_RANK", "MASTER_PORT")] == ["1", "1", one["MASTER_PORT"]]
    assert one["DS_ACCELERATOR"] == "cpu"
    assert one["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
    assert one["GLMEXP_PARENT_PID"] == str(os.getpid())
    assert "TORCHELASTIC_RUN_ID" not in one


@pytest.mark.parametrize(
    ("deeds", "state", "words", "code"),
    [
        ({0: "oom", 1: "lost"}, State.oom, "rank 0: the words of oom", 1),
        ({0: "lost", 1: "oom"}, State.oom, "rank 1: the words of oom", 1),
        ({0: "hang", 1: "oom_host"}, State.oom_host, "rank 1: the words of oom_host", 1),
        ({0: "invalid", 1: "hang"}, State.invalid, "the words of invalid", 2),
        ({0: "diverged", 1: "diverged"}, State.diverged, "the words of diverged", 1),
        ({0: "lost", 1: "raise"}, State.failed, "rank 1: ValueError: bad shape", 1),
        ({0: "lost", 1: "SIGKILL"}, State.killed, "rank 1 was killed by SIGKILL, most likely out of host memory", 1),
        ({0: "lost", 1: "SIGSEGV"}, State.failed, "rank 1 ended by SIGSEGV", 1),
        ({0: "memory", 1: "lost"}, State.oom_host, "MemoryError: no words", 1),
        ({1: "exit3"}, State.failed, "rank 1 exit code 3", 1),
        ({1: "leave"}, State.failed, "rank 1 has not told how it ended", 1),
    ],
)
def test_two_ranks_end_as_the_cause_says(run, monkeypatch, deeds, state, words, code):
    monkeypatch.setattr(processes, "PEER_SECONDS", 1.5)
    result = run(deeds, ranks=2)
    assert (result.state, exit_code(result)) == (state, code), result
    assert words in result.reason


def test_a_failing_rank_ends_the_waiting_one(run, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PEER_SECONDS", 0.5)
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    started = time.monotonic()
    result = run({0: "deaf", 1: "raise"}, ranks=2)
    assert time.monotonic() - started < 10
    assert result.state is State.failed
    assert (tmp_path / "run" / "deaf").exists(), "the rank must have been one that SIGTERM does not end"
    assert alive(environment_of(tmp_path / "run", 0)[TAG]) == []


def test_a_time_limit_ends_the_run(run, tmp_path):
    result = run({0: "hang"}, overrides=("launch.timeout_minutes=0.02",))
    assert result.state is State.timeout
    assert "launch.timeout_minutes=0.02" in result.reason
    assert "training 1 of 2" in result.reason
    assert exit_code(result) == 1
    assert alive(environment_of(tmp_path / "run", 0)[TAG]) == []


def test_a_run_without_news_is_ended(run, tmp_path):
    result = run({0: "hang"}, overrides=("launch.hang_minutes=0.02",))
    assert result.state is State.timeout
    assert result.reason == "no progress for 0.02 minutes (launch.hang_minutes); last phase: training 1 of 2"
    assert alive(environment_of(tmp_path / "run", 0)[TAG]) == []


def test_news_of_either_kind_keep_a_run_alive(run):
    assert run({0: "slow"}, overrides=("launch.hang_minutes=0.025",)).state is State.complete


def test_trials_in_threads_share_the_signals_of_their_owner(composed, tmp_path, environ, place):
    from concurrent.futures import ThreadPoolExecutor

    from glmexp.track import NullTracker
    from glmexp.trial.processes import Signals
    from glmexp.trial.run import run_trial

    class Seen(NullTracker):
        def start(self, run):
            self.told = (run.name, run.group)

    trackers = Seen(), Seen()
    with Signals() as signals, ThreadPoolExecutor(2) as pool:
        started = [
            pool.submit(
                run_trial, composed, tmp_path / name, [], place(), tracker=tracker, environ=environ({0: "hang"}),
                worker="stand_in", signals=signals, name=name, group="sweep",
            )
            for name, tracker in zip("ab", trackers, strict=True)
        ]  # fmt: skip
        deadline = time.monotonic() + 30
        while not all((tmp_path / name / "environ0.json").exists() for name in "ab") and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        results = [one.result(timeout=30) for one in started]
    assert [(result.state, result.signal) for result in results] == 2 * [(State.interrupted, signal.SIGTERM)]
    assert [tracker.told for tracker in trackers] == [("a", "sweep"), ("b", "sweep")]


def test_what_a_rank_leaves_behind_is_ended(run, tmp_path):
    result = run({0: "orphan"})
    assert result.state is State.complete
    assert alive(environment_of(tmp_path / "run", 0)[TAG]) == []


def test_a_rank_that_cannot_exit_does_not_hold_up_the_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "FAREWELL_SECONDS", 0.5)
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.3)
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys, time\nif 'stand_in' in sys.orig_argv:\n    atexit.register(time.sleep, 600)\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.path.dirname(__file__), os.getcwd()])
    assert run(PYTHONPATH=paths).state is State.complete


def test_no_secret_reaches_ranks_or_files(composed, tmp_path, environ, place):
    from glmexp.trial.run import run_trial

    secrets = {"MY_API_TOKEN": "canary-5f1d", "WANDB_API_KEY": "canary-5f1d-too", "HF_TOKEN": "hf_needed"}
    overrides = ["data.path=canary-5f1d.jsonl", "model.path=https://me:secret@host/x"]
    result = run_trial(composed, tmp_path, overrides, place(), environ=environ(**secrets), worker="stand_in")
    assert result.overrides == ["data.path=***.jsonl", "model.path=https://***@host/x"]
    seen = environment_of(tmp_path, 0)
    assert seen["HF_TOKEN"] == "hf_needed"
    assert "TOKENIZERS_PARALLELISM" in seen
    assert "WANDB_API_KEY" not in seen
    assert [path for path in tmp_path.iterdir() if b"canary" in path.read_bytes()] == []


def test_a_result_that_cannot_be_written_is_told(run, tmp_path, monkeypatch):
    def full(result, folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(running, "write_result", full)
    result = run()
    assert (result.state, result.metrics["steps"]) == (State.complete, 2)
    assert result.warnings == [f"{tmp_path / 'run' / 'result.json'} could not be written: No space left on device"]


def test_a_tracker_that_failed_is_a_warning(composed, tmp_path, environ, place):
    from glmexp.track import NullTracker
    from glmexp.trial.run import run_trial

    class Seen(NullTracker):
        def start(self, run):
            self.calls = [run.world_size, run.ds_config["zero_optimization"]["stage"]]

        def log(self, row):
            self.calls.append(row["loss"])

        def finish(self, result):
            self.calls.append(result["state"])
            self.error = "no network"

    tracker = Seen()
    result = run_trial(composed, tmp_path, [], place(), tracker=tracker, environ=environ(), worker="stand_in")
    assert tracker.calls == [1, 2, 4.0, 2.0, "complete"]
    assert result.state is State.complete
    assert json.loads((tmp_path / "result.json").read_text())["warnings"] == ["tracker: no network"]


def test_a_broken_display_is_a_warning(composed, tmp_path, environ, place):
    from rich.console import Console

    from glmexp.trial.progress import ProgressView
    from glmexp.trial.run import run_trial

    class Broken(ProgressView):
        def update(self, records, rows=()):
            raise BrokenPipeError("the terminal is gone")

    view = Broken(2, Console(file=io.StringIO(), force_terminal=False))
    result = run_trial(composed, tmp_path, [], place(), view=view, environ=environ(), worker="stand_in")
    assert result.state is State.complete
    assert len(result.warnings) == 1
    assert "terminal is gone" in result.warnings[0]
