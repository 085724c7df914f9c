"""The compiled optimizers: which one, a build that fails, and a lock that a dead build left."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_trials import MOVING, RunCommand, RunTrial  # type: ignore[import-not-found]

from glmexp.config import compose
from glmexp.dsconfig import Machine, build
from glmexp.train import ops
from glmexp.trial.record import Phase, State


@pytest.mark.parametrize(
    ("overrides", "device", "names"),
    [
        (["zero=stage2"], "cpu", []),
        (["zero=stage2"], "gpu", []),
        (["optimizer=muon"], "gpu", []),
        (["zero=stage2", "offload=cpu"], "cpu", ["CPUAdamBuilder"]),
        (["zero=stage2", "offload=cpu", "optimizer=muon"], "gpu", ["CPUAdamBuilder"]),
        (["zero=stage2", "offload=zenflow", "batch.accumulation=4"], "cpu", ["CPUAdamBuilder"]),
        (["zero=stage3", "offload=cpu_all"], "gpu", ["CPUAdamBuilder"]),
        (["zero=stage3", "offload=super_offload"], "gpu", ["CPUAdamBuilder"]),
        (
            ["zero=stage3", "offload=nvme", "offload.nvme_path=/nvme"],
            "gpu",
            ["CPUAdamBuilder", "PinMemoryBuilder", "AsyncIOBuilder"],
        ),
        (["zero=stage3_zeropp", "zero.zero_hpz_partition_size=1"], "gpu", ["QuantizerBuilder"]),
        (["kernels=deepcompile"], "gpu", ["DeepCompileBuilder"]),
    ],
)
def test_the_ops_of_a_config(overrides: list[str], device: str, names: list[str]) -> None:
    assert ops.builder_names(build(compose(overrides).config, Machine(1, device))) == names  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "name"), [("AdamW", "FusedAdamBuilder"), ("Lion", "FusedLionBuilder"), ("SGD", None), ("Adagrad", None)]
)
def test_the_op_of_raw_deepspeed_keys(optimizer: str, name: str | None) -> None:
    assert ops.optimizer_builder({"optimizer": {"type": optimizer, "params": {}}}) == name


def test_arch_list_and_path_are_mended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ninja").touch()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    environ = {"TORCH_CUDA_ARCH_LIST": "8.0 9.0a;10.0f+PTX", "PATH": "/usr/bin"}
    ops.prepare_environment(environ)
    ops.prepare_environment(environ)
    assert environ == {"TORCH_CUDA_ARCH_LIST": "8.0 9.0;10.0+PTX", "PATH": f"{tmp_path}:/usr/bin"}


# As torch.utils.file_baton: the descriptor stays open until the build is done.
BUILD = """
import os, sys, time
os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)
print("building", flush=True)
time.sleep(float(sys.argv[2]))
print(time.monotonic(), flush=True)
os.unlink(sys.argv[1])
"""


def building(lock: Path, seconds: float) -> subprocess.Popen[str]:
    """A process that holds ``lock`` for so long."""
    build = subprocess.Popen([sys.executable, "-c", BUILD, str(lock), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert build.stdout is not None
    assert build.stdout.readline() == "building\n"
    return build


def test_the_lock_of_a_killed_build_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = tmp_path / "lock"
    with building(lock, 60) as build:
        assert not ops.left_behind(lock)
        build.send_signal(signal.SIGKILL)
    assert lock.exists()
    with caplog.at_level(logging.WARNING):
        ops._wait_for_builder(lock, "cpu_adam")
    assert not lock.exists()
    assert str(lock) in caplog.text
    assert "cpu_adam" in caplog.text


def test_a_live_build_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = tmp_path / "lock"
    with building(lock, 0.6) as build, caplog.at_level(logging.INFO):
        ops._wait_for_builder(lock, "cpu_adam")
        returned = time.monotonic()
        assert build.stdout is not None
        assert returned >= float(build.stdout.readline())
    assert caplog.text.count("waiting for it") == 1
    assert "removed" not in caplog.text


def test_a_lock_of_another_host_is_left_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    monkeypatch.setattr(ops, "_on_network", lambda path: True)
    assert not ops.left_behind(lock)
    old = time.time() - ops.FOREIGN_LOCK_SECONDS - 1
    os.utime(lock, (old, old))
    assert ops.left_behind(lock)


def test_network_file_systems_are_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    assert ops._on_network(tmp_path / "cache", mounts)
    assert not ops._on_network(Path("/usr"), mounts)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1/3] g++ -c x\nFAILED: x.o\nx.cpp:3:1: error: expected ';'\nninja: build stopped", "x.cpp:3:1: error: expected ';'"),
        (
            "[1/3] g++-99 -c x\nFAILED: x.o\n/bin/sh: 1: g++-99: not found\nninja: build stopped",
            "/bin/sh: 1: g++-99: not found",
        ),
        ("", "no output"),
    ],
)
def test_the_first_error_of_a_build(text: str, line: str) -> None:
    assert ops.first_error(text) == line


def test_a_compiler_that_fails_is_told_before_the_model_loads(run_trial: RunTrial, tmp_path: Path) -> None:
    (tmp_path / "extensions" / "cpu_adam").mkdir(parents=True)
    (tmp_path / "extensions" / "cpu_adam" / "lock").touch()  # as a killed build leaves it
    broken = {"CXX": "/bin/false", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    trial = run_trial("trial", *MOVING, "zero=stage2", "offload=cpu", extra=broken)
    record = trial.record()
    assert (trial.codes, record.outcome, record.phase) == ([1], State.invalid, Phase.building)
    for word in ("cpu_adam", "CXX=/bin/false", "offload=none", "compiler", "CUDA"):
        assert word in record.error, record.error
    assert len(record.error.splitlines()) <= 6
    assert "removed" in trial.log
    assert "ds_opt_adam" not in trial.log.splitlines()[-1]
    assert "trainable parameters" not in trial.log


def test_the_command_line_tells_a_failed_build_and_stops(glmexp: RunCommand, tmp_path: Path) -> None:
    extensions = tmp_path / "extensions"
    extensions.mkdir()
    ran = glmexp(
        *("model=tiny", "zero=stage2", "offload=cpu", "train.max_steps=1", "launch.device=cpu"),
        env={"CXX": "/bin/false", "TORCH_EXTENSIONS_DIR": str(extensions)},
    ).refused("offload=cpu", "cpu_adam", "could not be built", "CXX=/bin/false", "offload=none")
    assert "ds_opt_adam" not in ran.err + ran.out
    assert ran.json("result.json")["state"] == "invalid"
    assert "trainable parameters" not in ran.only("train.log").read_text()
    assert not list(tmp_path.rglob("metrics.jsonl"))
