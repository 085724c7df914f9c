"""Warm starts: a forked rank is what a fresh process would be, hurts nobody, and is never left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glmexp.train import server
from glmexp.trial import processes
from glmexp.trial import warm as starting
from glmexp.trial.commands import Command
from glmexp.trial.orphan import TAG, is_alive, tagged
from glmexp.trial.processes import Signals
from glmexp.trial.record import State
from glmexp.trial.run import run_trial
from glmexp.trial.starter import COLD
from glmexp.trial.warm import SERVER_LOST, WarmStarter
from tests.faults import plant
from tests.trial.conftest import stand_in_environ
from tests.trial.test_signals import until


@pytest.fixture(scope="module", autouse=True)
def light():
    """Servers that import torch alone, and do not differ by what the stand-in is to do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "SERVER", "light_server")
        patch.setattr(starting, "PER_RANK", (*starting.PER_RANK, "STAND_IN"))
        yield patch


@pytest.fixture(scope="module")
def warm(light):
    """One starter, and so one server, for most tests; ``warnings`` holds what it said."""
    warnings = []
    with WarmStarter(warnings.append) as started:
        started.warnings = warnings
        yield started


@pytest.fixture
def trial(composed, tmp_path, place, monkeypatch):
    """``trial(starter, "name", {0: "deed"}, ranks=1, worker="stand_in", VARIABLE="value")``; its folder is tmp_path / name."""

    monkeypatch.chdir(tmp_path)

    def start(chosen, name, deeds=None, ranks=1, worker="stand_in", signals=None, **environ):
        environ = stand_in_environ(deeds, **environ)
        del environ["PYTEST_CURRENT_TEST"]  # each test would get a server of its own
        return run_trial(
            composed, tmp_path / name, [], place(ranks), environ=environ, worker=worker, starter=chosen, signals=signals
        )

    return start


def state(folder, rank=0):
    return json.loads((folder / f"state{rank}.json").read_text())


def forker(folder, rank=0):
    """Pid of the process that started a rank of the stand-in."""
    return int((folder / f"parent{rank}").read_text())


def servers_of(pid, variable=b"", name=b"light_server"):
    """Servers that a process has started with ``variable`` in their environment."""
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    texts = {int(child): [Path(f"/proc/{child}/{file}").read_bytes() for file in ("cmdline", "environ")] for child in children}
    return [child for child, (line, environ) in texts.items() if name in line and variable in environ]


def pid_of(folder, rank=0):
    return (
        until(lambda: (folder / f"environ{rank}.json").exists())
        and json.loads((folder / f"rank{rank}.json").read_text())["pid"]
    )


def test_a_forked_rank_is_like_a_fresh_process(warm, trial, tmp_path):
    found = {}
    for name, chosen in {"cold": COLD, "warm": warm, "again": warm}.items():
        result = trial(chosen, name, worker="describer", OMP_NUM_THREADS="2", MY_API_TOKEN="canary-5f1d")
        assert result.state is State.complete, result.reason
        found[name] = state(tmp_path / name)
    assert found["cold"]["parent"] == os.getpid()
    assert found["warm"]["parent"] == found["again"]["parent"] != os.getpid()
    assert found["warm"]["threads"] == 2
    assert all(one != other for one, other in zip(found["warm"]["drawn"], found["again"]["drawn"], strict=True))
    environs = [found[name].pop("environ") for name in ("cold", "warm")]
    changing = {TAG, "MASTER_PORT"}
    assert [{k: v for k, v in one.items() if k not in changing} for one in environs] == 2 * [
        {k: v for k, v in environs[0].items() if k not in changing}
    ]
    assert "MY_API_TOKEN" not in environs[1]
    for name in ("cold", "warm"):
        record = json.loads((tmp_path / name / "rank0.json").read_text())
        assert record["pid"] == found[name]["pid"]
        assert "said on stdout\nsaid on stderr\n" in (tmp_path / name / "train.log").read_text()
    own = {"pid", "parent", "drawn", "arguments", "outputs"}
    cold, forked = ({key: value for key, value in found[name].items() if key not in own} for name in ("cold", "warm"))
    assert forked == cold
    assert found["warm"]["arguments"][1:] == [str(tmp_path / "warm")]
    assert found["warm"]["outputs"] == 2 * [str(tmp_path / "warm" / "train.log")]


def test_a_forked_rank_is_found_by_the_tag_of_its_trial_alone(warm, trial, tmp_path):
    with ThreadPoolExecutor(1) as pool, Signals() as signals:
        running = pool.submit(trial, warm, "a", {0: "hang"}, 1, "stand_in", signals)
        pid = pid_of(tmp_path / "a")
        tag = json.loads((tmp_path / "a" / "environ0.json").read_text())[TAG]
        assert list(tagged(tag)) == [pid]
        served = Path(f"/proc/{forker(tmp_path / 'a')}/environ").read_bytes()
        assert tag.encode() not in served
        assert b"MASTER_PORT" not in served
        signals.received.append(signal.SIGTERM)
        assert running.result(timeout=30).state is State.interrupted
    until(lambda: not is_alive(pid), 5)


DEATHS = [
    ({1: "SIGKILL"}, State.killed, "rank 1 was killed by SIGKILL"),
    ({1: "SIGSEGV"}, State.failed, "rank 1 ended by SIGSEGV"),
    ({1: "exit3"}, State.failed, "rank 1 exit code 3"),
    ({1: "memory"}, State.oom_host, "MemoryError: no words"),
    ({0: "deaf", 1: "raise"}, State.failed, "rank 1: ValueError: bad shape"),
    ({0: "orphan"}, State.complete, ""),
    ({0: "slow"}, State.complete, ""),
]


def test_a_rank_that_dies_hurts_no_trial_beside_it(warm, trial, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PEER_SECONDS", 0.5)
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    with ThreadPoolExecutor(len(DEATHS)) as pool:
        running = [pool.submit(trial, warm, str(number), deeds, 2) for number, (deeds, *_) in enumerate(DEATHS)]
        for number, (result, (_, expected, words)) in enumerate(zip(running, DEATHS, strict=True)):
            ended = result.result(timeout=60)
            assert (ended.state, words in ended.reason) == (expected, True), ended.reason
            assert not list(tagged(json.loads((tmp_path / str(number) / "environ1.json").read_text())[TAG]))
    assert len({path.read_text() for path in tmp_path.glob("*/parent*")}) == 1
    assert warm.warnings == []


def test_the_death_of_the_server_is_told_and_mended(trial, tmp_path):
    warnings = []
    with WarmStarter(warnings.append) as own, ThreadPoolExecutor(1) as pool:
        running = pool.submit(trial, own, "lost", {0: "hang", 1: "hanging orphan"}, 2)
        assert all(pid_of(tmp_path / "lost", rank) for rank in (0, 1))
        first = forker(tmp_path / "lost")
        os.kill(first, signal.SIGKILL)
        result = running.result(timeout=30)
        assert result.state is State.killed
        assert "forked from (sweep.warm_start) was ended by SIGKILL; last phase: training 1 of 2" in result.reason
        assert not list(tagged(json.loads((tmp_path / "lost" / "environ1.json").read_text())[TAG]))
        assert trial(own, "next").state is State.complete
        second = forker(tmp_path / "next")
        assert second not in (first, os.getpid())
    assert warnings == []
    assert not is_alive(second)


def test_without_a_server_ranks_start_cold_and_it_is_said_once(trial, tmp_path, monkeypatch):
    monkeypatch.setattr(starting, "SERVER", "no_such_module")
    warnings = []
    with WarmStarter(warnings.append) as own:
        for name in "ab":
            assert trial(own, name).state is State.complete
            assert forker(tmp_path / name) == os.getpid()
    assert len(warnings) == 1
    assert "trials are started cold" in warnings[0]
    assert "No module named no_such_module" in warnings[0]


@pytest.mark.slow
def test_a_server_killed_while_it_starts_leaves_the_trial_to_a_cold_start(trial, tmp_path):
    warnings = []
    with WarmStarter(warnings.append) as own, ThreadPoolExecutor(1) as pool:
        running = pool.submit(trial, own, "a", LIGHT_SERVER_SECONDS="60")
        os.kill(until(lambda: servers_of(os.getpid(), b"LIGHT_SERVER_SECONDS=60"))[0], signal.SIGKILL)
        assert running.result(timeout=30).state is State.complete
    assert forker(tmp_path / "a") == os.getpid()
    assert len(warnings) == 1
    assert "was ended by SIGKILL" in warnings[0]


def test_a_server_dies_with_its_parent_before_it_hears_of_anything(tmp_path):
    environ = stand_in_environ(WARM="1", LIGHT_SERVER_SECONDS="60")
    parent = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("parent.py")), str(tmp_path), "model=tiny", "launch.device=cpu"],
        env=environ, cwd=tmp_path,
    )  # fmt: skip
    (server,) = until(lambda: servers_of(parent.pid, b"LIGHT_SERVER_SECONDS=60"))
    until(lambda: (tmp_path / "server_is_slow").exists())
    os.kill(server, signal.SIGSTOP)  # it can notice nothing: this is the kernel's doing
    parent.kill()
    parent.wait()
    until(lambda: not is_alive(server), seconds=10)


def test_an_interrupt_does_not_wait_for_the_server(trial, tmp_path):
    with WarmStarter() as own, Signals() as signals:
        threading.Timer(0.5, lambda: signals.received.append(signal.SIGINT)).start()
        assert trial(own, "a", signals=signals, LIGHT_SERVER_SECONDS="3").state is State.interrupted
        (server,) = own._servers.values()
        assert not server._ready
        del signals.received[:]
        # The same server, once it is ready, starts what was asked for since and not what was called off.
        assert trial(own, "b", signals=signals, LIGHT_SERVER_SECONDS="3").state is State.complete
        assert list(own._servers.values()) == [server]
    assert not list((tmp_path / "a").glob("rank*"))
    assert forker(tmp_path / "b") != os.getpid()


@pytest.mark.slow
def test_a_server_that_hangs_while_it_starts_costs_one_trial(trial, tmp_path, monkeypatch):
    monkeypatch.setattr(starting, "SLOWEST_START", 0.2)
    warnings = []
    with WarmStarter(warnings.append) as own, Signals() as signals:
        threading.Timer(1, lambda: signals.received.append(signal.SIGTERM)).start()  # ends the trial as its timeout would
        assert trial(own, "a", signals=signals, LIGHT_SERVER_SECONDS="600").state is State.interrupted
        del signals.received[:]
        assert trial(own, "b", signals=signals, LIGHT_SERVER_SECONDS="600").state is State.complete
        assert not servers_of(os.getpid(), b"LIGHT_SERVER_SECONDS=600")
    assert forker(tmp_path / "b") == os.getpid()
    assert len(warnings) == 1
    assert "was not ready after" in warnings[0]


def test_one_server_for_each_environment_that_matters(warm, trial, tmp_path):
    for name, environ in {"a": {}, "b": {"OMP_NUM_THREADS": "1"}, "c": {"HF_HUB_OFFLINE": "1"}}.items():
        assert trial(warm, name, **environ).state is State.complete
    a, b, c = (forker(tmp_path / name) for name in "abc")
    assert a == b != c


def test_an_inner_launcher_is_never_forked(tmp_path):
    with WarmStarter() as own:
        process = own.start(Command([sys.executable, "-c", "raise SystemExit(7)"], dict(os.environ), None), tmp_path / "log")
        assert isinstance(process, subprocess.Popen)
        assert process.wait(timeout=20) == 7
        assert own._servers == {}


def test_a_fault_can_be_planted_in_forked_ranks(trial, tmp_path):
    begin = "import os\ndef begin(place, folder):\n    if folder.endswith('b'):\n        os.kill(os.getpid(), 9)"
    paths = os.pathsep.join([str(plant(tmp_path / "site", begin)), stand_in_environ()["PYTHONPATH"]])
    (tmp_path / "calls.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom glmexp.train.ranks import from_environment\n"
        "from glmexp.trial.record import RankWriter, State\nfrom_environment()\n"
        "RankWriter(Path(sys.argv[1]), 0).finish(State.complete)\n"
    )
    with WarmStarter() as own:
        states = [trial(own, name, worker="calls", PYTHONPATH=f"{tmp_path}{os.pathsep}{paths}").state for name in "abc"]
    assert states == [State.complete, State.killed, State.complete]


def test_what_is_said_of_a_lost_server_is_recognised():
    line = "the server that ranks are forked from (sweep.warm_start) was ended by SIGKILL"
    assert SERVER_LOST.search(f"x\n{line}\ny")[0] == line


def test_a_server_whose_children_could_not_use_cuda_does_not_start(monkeypatch):
    import torch

    monkeypatch.setattr(server, "PRELOADED", ())
    server.preload()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match="initialized CUDA"):
        server.preload()


def test_what_a_server_imports_is_there():
    import importlib.util

    for name in server.PRELOADED:
        package, *parts = name.split(".")
        (root,) = importlib.util.find_spec(package).submodule_search_locations
        path = Path(root, *parts)
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
