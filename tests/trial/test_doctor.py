"""The ``doctor`` verb: real runs of it, and what it does when its processes hang or die."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from glmexp.config.errors import UserError
from glmexp.trial import doctor, machine
from glmexp.trial.doctor import children, diagnosis
from glmexp.trial.doctor.diagnosis import Diagnosis, State, diagnose, fail, ok, warn

ROOT = Path(__file__).parent.parent.parent
CHECKS = {
    *("python", "shadowing", "torch", "deepspeed", "transformers", "peft", "launcher", "cuda", "loopback", "all-reduce"),
    *("compiler", "ninja", "nvcc", "arch list", "cpu adam", "async i/o", "build locks", "op cache"),
    *("host memory", "shared memory", "pinned memory", "open files", "nvme", "outputs", "hugging face", "wandb"),
}


def looked(ran):
    """Check -> its entry, and what holds for each of them."""
    entries = {entry["check"]: entry for entry in json.loads(ran.out)}
    assert set(entries) >= CHECKS
    for entry in entries.values():
        assert list(entry) == ["check", "state", "finding", "next"]
        assert (entry["next"] is None) == (entry["state"] == "ok")
    assert ran.code == int(any(entry["state"] == "fail" for entry in entries.values()))
    return entries


def test_this_machine(glmexp, tmp_path):
    started = time.monotonic()
    entries = looked(glmexp("doctor", "--json"))
    assert time.monotonic() - started < 60
    for name in ("python", "shadowing", "torch", "deepspeed", "transformers", "peft", "loopback", "all-reduce", "ninja"):
        assert entries[name]["state"] == "ok", entries[name]
    assert not [name for name, entry in entries.items() if "could not be looked at" in entry["finding"]]
    assert not list(tmp_path.iterdir())


def test_a_machine_with_much_in_the_way(glmexp, tmp_path):
    """A compiler that fails, an empty PATH, a lock that a killed build left, a module in the way, and secrets to keep."""
    extensions, home = tmp_path / "extensions", tmp_path / "home"
    (extensions / "cpu_adam").mkdir(parents=True)
    (extensions / "cpu_adam" / "lock").touch()
    home.mkdir()
    (tmp_path / "peft.py").touch()
    before = sorted(tmp_path.rglob("*"))
    trouble = {"CXX": "/bin/false", "PATH": "/nowhere", "RANK": "3", "TORCH_EXTENSIONS_DIR": str(extensions)}
    secrets = {"HF_ENDPOINT": "https://user:hunter2@mirror", "WANDB_API_KEY": "0123456789abcdef", "HOME": str(home)}
    ran = glmexp("doctor", "--json", env={**trouble, **secrets, "HF_HOME": None, "PYTHONDONTWRITEBYTECODE": "1"})
    entries = looked(ran)
    states = {name: entry["state"] for name, entry in entries.items()}
    assert (states["shadowing"], states["torch"]) == ("fail", "ok")
    assert str(tmp_path / "peft.py") in entries["shadowing"]["finding"]
    for name in ("compiler", "cpu adam", "async i/o", "build locks"):
        assert states[name] == "warn", entries[name]
    assert "CXX=/bin/false" in entries["compiler"]["finding"]
    assert "CXX=/bin/false" in entries["cpu adam"]["finding"]
    assert entries["build locks"]["next"] == f"rm {extensions / 'cpu_adam' / 'lock'}"
    assert "RANK" in entries["launcher"]["finding"]
    assert "hunter2" not in ran.out + ran.err
    assert "0123456789abcdef" not in ran.out + ran.err
    assert sorted(tmp_path.rglob("*")) == before


STAND_IN = """
import json, os, signal, sys, time
folder, deed = sys.argv[1], os.environ["DEED"]
if "RANK" in os.environ and deed != "hang":
    with open(f"{folder}/all_reduce{os.environ['RANK']}.json", "w") as told:
        json.dump({"backend": "gloo", "error": None}, told)
    sys.exit()
with open(f"{folder}/facts.json", "w") as facts:
    ninja = {"value": {"version": "1", "path": "/n"}, "error": None}
    json.dump({"ninja": ninja, "torch": {"value": None, "error": "no torch"}}, facts)
open(os.path.join(os.environ["TMPDIR"], "left"), "w").close()
if deed == "die":
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(600)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Processes that tell a little and then hang or die; the facts that are gathered from them within two seconds."""
    (tmp_path / "stand_in_doctor.py").write_text(STAND_IN)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(children, "EXAMINER", "stand_in_doctor")
    monkeypatch.setattr(children, "RANK", "stand_in_doctor")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def examine(deed):
        facts = children.examine((), {**os.environ, "DEED": deed, "PYTHONPATH": str(tmp_path)}, 2.0)
        assert not list(temporary.iterdir())
        return facts

    return examine


def test_processes_that_hang(stand_in):
    started = time.monotonic()
    facts = stand_in("hang")
    assert time.monotonic() - started < 10
    assert (facts["ninja"], facts.ranks) == ({"version": "1", "path": "/n"}, [None, None])
    assert facts.error("torch") == "no torch"
    with pytest.raises(diagnosis.NotSeenError, match="no answer within 2 s"):
        facts["compiler"]


def test_a_process_that_dies(stand_in):
    facts = stand_in("die")
    assert facts.ranks == [{"backend": "gloo", "error": None}] * 2
    assert facts.error("compiler") == "the process ended on signal 11: Fatal Python error: Segmentation fault"


def test_a_signal_ends_it_and_leaves_nothing(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-m", "glmexp", "doctor"], env=environ, cwd=tmp_path, stdout=subprocess.PIPE) as run:
        while not list(tmp_path.glob("glmexp-doctor-*/log")) and run.poll() is None:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=30) == 143
    assert not list(tmp_path.iterdir())


def test_a_machine_on_which_nothing_can_be_started(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(doctor, "examine", full)
    monkeypatch.setattr(machine, "visible_gpus", full)
    found = doctor.look({}, tmp_path)
    assert set(found) >= CHECKS
    assert found["all-reduce"].state is State.fail
    assert "No space left" in found["all-reduce"].finding
    assert found["compiler"].state is State.warn
    assert "could not be looked at: no process could be started" in found["compiler"].finding


def test_checks_that_raise_or_hang_are_warnings():
    def broken():
        raise PermissionError(13, "Permission denied", "/proc/x")

    started = time.monotonic()
    found = diagnose({"a": broken, "b": lambda: time.sleep(5), "c": lambda: ok("well"), "d": lambda: {}["key"]}, 0.3)
    assert time.monotonic() - started < 2
    assert [line.state.value for line in found.values()] == ["warn", "warn", "ok", "warn"]
    assert "PermissionError" in found["a"].finding
    assert "no answer within" in found["b"].finding


def test_the_screen(monkeypatch, capsys):
    long = "a path " + "/very/long" * 12 + " and words " * 15
    found = {"python": ok("3.11"), "gpu 0": warn(long, "words " * 30), "all-reduce": fail("broken", "mend it")}
    monkeypatch.setattr(doctor, "look", lambda *_: found)
    assert doctor.main([]) == 1
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == "ok    python         3.11"
    assert lines[-1] == "1 ok, 1 warn, 1 fail"
    assert f"{'fail':<6}{'all-reduce':<15}broken\n{'':<21}-> mend it\n" in printed
    assert "\x1b" not in printed
    assert all(len(line) <= 100 or "/very/long" in line for line in lines)
    assert "/very/long" * 12 in printed  # in one piece, to be copied
    assert doctor.main(["--json"]) == 1
    assert [entry["check"] for entry in json.loads(capsys.readouterr().out)] == list(found)
    monkeypatch.setattr(doctor, "look", lambda *_: {"gpu 0": Diagnosis(State.warn, "x", "y")})
    assert doctor.main([]) == 0


@pytest.mark.parametrize("argument", ["zero=stage2", "--jason", "-x"])
def test_other_arguments_are_refused(argument):
    with pytest.raises(UserError, match="takes nothing but --json"):
        doctor.main([argument])


def test_what_is_in_use_is_read_through_nvml(monkeypatch):
    class NVMLError(Exception):
        pass

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3 * 2**30),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=7)],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = machine.Gpu(0, "H200", 140.0, (9, 0), "GPU-a", "0")
    assert machine.gpu_use(gpu) == machine.GpuUse(3.0, (7,))

    def not_supported(handle):
        raise NVMLError

    nvml.nvmlDeviceGetComputeRunningProcesses = not_supported
    assert machine.gpu_use(gpu) is None
