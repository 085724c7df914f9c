"""torchrun and the deepspeed launcher, inside a run and around it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from glmexp.trial import node
from glmexp.trial.launcher import Outer
from glmexp.trial.node import follow, new_run_id, once_a_node

PARENT = str(Path(__file__).parent / "parent.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO_ON_CPU = ["model=tiny", "launch.device=cpu"]


def result_of(root):
    found = list(root.glob("*/result.json"))
    assert len(found) == 1, found
    return found[0].parent, json.loads(found[0].read_text())


def call(command, environ, cwd, timeout=120):
    return subprocess.run(
        command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("backend", "deeds", "state", "words"),
    [
        ("torchrun", {0: "meet", 1: "meet"}, "complete", ""),
        ("torchrun", {1: "SIGKILL", 0: "hang"}, "killed", "SIGKILL, most likely out of host memory"),
        ("torchrun", {1: "oom", 0: "hang"}, "oom", "rank 1: the words of oom"),
        ("deepspeed", {0: "meet", 1: "meet"}, "complete", ""),
        pytest.param("deepspeed", {1: "SIGSEGV", 0: "hang"}, "failed", "SIGSEGV", marks=pytest.mark.slow),
    ],
)
def test_an_inner_launcher_gives_the_same_outcome(run, tmp_path, backend, deeds, state, words):
    result = run(deeds, ranks=2, overrides=(f"launch.backend={backend}",))
    assert result.state.value == state, result
    assert words in result.reason
    for rank in (0, 1):
        environ = json.loads((tmp_path / "run" / f"environ{rank}.json").read_text())
        assert [environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == [str(rank)] * 2 + [
            "2",
            "2",
        ]


def test_under_torchrun_one_parent_runs_both_ranks(tmp_path, environ):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node=2", PARENT, str(tmp_path), *TWO_ON_CPU]
    done = call(command, environ({0: "meet", 1: "meet"}), tmp_path)
    assert done.returncode == 0, done.stderr
    folder, result = result_of(tmp_path)
    assert result["state"] == "complete"
    assert result["world_size"] == 2
    assert json.loads((folder / "ds_config.json").read_text())["train_batch_size"] % 2 == 0
    assert json.loads((folder / "environ1.json").read_text())["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_under_torchrun_a_failure_passes_on(tmp_path, environ):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node=2", PARENT, str(tmp_path), *TWO_ON_CPU]
    done = call(command, environ({0: "raise", 1: "raise"}), tmp_path)
    assert done.returncode != 0
    assert result_of(tmp_path)[1]["state"] == "failed"


@pytest.mark.slow
def test_under_torchrun_on_two_nodes(tmp_path, environ):
    """Two agents on this host stand for two nodes: one world, one result, a folder a node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    everyone = environ(dict.fromkeys(range(4), "meet"))
    agents = [
        subprocess.Popen(
            [
                *(*TORCHRUN, "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=2", "--master-addr=127.0.0.1"),
                *(f"--master-port={port}", PARENT, str(tmp_path), *TWO_ON_CPU),
            ],
            env=everyone,
            cwd=tmp_path,
        )
        for rank in (0, 1)
    ]
    assert [agent.wait(timeout=120) for agent in agents] == [0, 0]
    _, result = result_of(tmp_path)
    assert result["world_size"] == 4
    assert result["state"] == "complete"
    other = next(tmp_path.glob("*-node1"))
    assert sorted(path.name for path in other.glob("rank*.json")) == ["rank2.json", "rank3.json"]


@pytest.mark.slow
def test_under_the_deepspeed_launcher(tmp_path, environ):
    """With the ``--local_rank`` that it appends."""
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", f"--hostfile={os.devnull}", "--num_gpus=2"]
    done = call(
        [*launcher, PARENT, str(tmp_path), *TWO_ON_CPU], environ({0: "meet", 1: "meet"}, DS_ACCELERATOR="cpu"), tmp_path
    )
    assert done.returncode == 0, done.stderr
    _, result = result_of(tmp_path)
    assert result["world_size"] == 2
    assert not any("local_rank" in override for override in result["overrides"])


def test_under_srun_the_node_has_one_parent(tmp_path, environ):
    """Slurm's variables without Slurm: two tasks of one step, started side by side."""
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, PARENT, str(tmp_path), *TWO_ON_CPU],
            env=environ({1: "invalid"}, **step, SLURM_PROCID=str(task), SLURM_LOCALID=str(task), SLURM_TASKS_PER_NODE="2"),
            cwd=tmp_path,
        )
        for task in (0, 1)
    ]
    assert [task.wait(timeout=60) for task in tasks] == [2, 2]
    assert result_of(tmp_path)[1]["world_size"] == 2


def test_a_taken_default_port_is_no_matter(run):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
        assert run({0: "meet", 1: "meet"}, ranks=2).state.value == "complete"


def outer(local_rank, job):
    return Outer("torchrun", local_rank, local_rank, 2, 2, 0, 1, "127.0.0.1", 1, job)


def test_a_follower_ends_with_a_parent_that_dies(monkeypatch):
    monkeypatch.setattr(node, "MEET_SECONDS", 5.0)
    job = f"dies-{os.getpid()}"
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        once_a_node(lambda: (os.write(tell, b"."), time.sleep(60))[0], outer(0, job))
    os.read(ready, 1)
    threading.Timer(0.5, os.kill, (child, signal.SIGKILL)).start()
    assert follow(outer(1, job)) == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_follower_gives_up_on_a_parent_that_never_comes(monkeypatch, capsys):
    monkeypatch.setattr(node, "MEET_SECONDS", 0.3)
    assert follow(outer(1, f"never-{os.getpid()}")) == 1
    assert "local rank 0 did not start" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_a_late_follower_still_gets_the_code(code):
    job = f"late-{code}-{os.getpid()}"
    child = os.fork()
    if child == 0:
        os._exit(once_a_node(lambda: code, outer(0, job)))
    time.sleep(0.5)
    assert follow(outer(1, job)) == code
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code


def test_alone_there_is_nobody_to_wait_for():
    assert once_a_node(lambda: 7, None) == 7


def test_run_ids_are_unlike_and_safe():
    ids = {new_run_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(name.isalnum() for name in ids)
    assert new_run_id(3).endswith("-node3")
