"""What ``doctor`` makes of facts: each check on made-up machines."""

import os
import re
from pathlib import Path

import pytest

from glmexp.trial.doctor import hardware, software, toolchain
from glmexp.trial.doctor.diagnosis import State
from glmexp.trial.machine import Gpu
from tests.trial.test_launcher import TORCHRUN

ROOT = Path(__file__).parent.parent.parent
H200 = Gpu(0, "NVIDIA H200", 140.4, (9, 0), "GPU-a", "0")
P100 = Gpu(1, "Tesla P100", 16.0, (6, 0), "GPU-b", "1")


def holds(line, state, *words):
    assert line.state is State(state), line
    assert (line.next is None) == (line.state is State.ok), "a next move stands under what is not well, and nowhere else"
    for word in words:
        assert word in line.finding + " -> " + (line.next or ""), line


def test_the_bounds_are_those_of_pyproject():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, (oldest, untried) in software.BOUNDS.items():
        found = re.search(rf'"{name}>=([\d.]+)(?:,<([\d.]+))?"', text)
        assert found is not None
        assert (found[1], found[2]) == (oldest, untried)


@pytest.mark.parametrize(
    ("version", "error", "state", "word"),
    [
        ("0.19.8", None, "ok", "0.19.8"),
        ("0.19.12+git1", None, "ok", "0.19.12"),
        ("0.19.7", None, "fail", "pip install 'deepspeed>=0.19.8,<0.20'"),
        ("0.20.0", None, "warn", "newer"),
        (None, None, "fail", "not installed"),
        ("0.19.8", "ImportError: libcudart.so.12", "fail", "libcudart.so.12"),
    ],
)
def test_a_package(version, error, state, word):
    holds(software.package("deepspeed", version, error), state, word)


def test_python():
    holds(software.python((3, 10, 1), "/bin/python"), "ok", "3.10.1, /bin/python")
    holds(software.python((3, 9, 18), "/bin/python"), "fail", "3.10 or newer")


TORCH = {"version": "2.13.0", "cuda": "13.0", "available": True, "devices": 1, "reason": None, "architectures": ["sm_90"]}
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.mark.parametrize(
    ("changes", "gpus", "problem", "state", "words"),
    [
        ({}, [H200], None, "ok", ["CUDA 13.0 sees 1 GPU"]),
        ({"available": False, "devices": 0, "reason": TOO_OLD}, [H200], None, "fail", ["too old", "update the driver"]),
        ({}, [P100], None, "fail", ["no kernels for Tesla P100", "6.0", "sm_90"]),
        ({"devices": 2}, [H200], None, "warn", ["sees 2 GPUs, the driver 1"]),
        ({}, [], "no NVIDIA driver answers (x)", "warn", ["runs use the CPU", "install NVIDIA's driver"]),
        ({"cuda": None}, [], "torch 2.13.0+cpu is a build without CUDA", "warn", ["install a CUDA build"]),
        ({}, [], "CUDA_VISIBLE_DEVICES='-1' hides every GPU", "warn", ["unset CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_pytorch_and_the_gpus(changes, gpus, problem, state, words):
    holds(software.cuda({**TORCH, **changes}, gpus, problem), state, *words)


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_86", "sm_90"], True),  # machine code of the same major version
        ((8, 0), ["sm_86", "sm_90"], False),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is translated for what is newer
        ((9, 0), ["sm_90a"], True),
        ((9, 0), [], False),
    ],
)
def test_kernels_for_a_gpu(capability, architectures, runs):
    assert software.has_kernels(capability, architectures) is runs


def test_files_that_hide_a_package(tmp_path):
    holds(software.shadowing(tmp_path, "", False), "ok")
    for name in ("test.py", "train.py", "sys.py"):
        (tmp_path / name).touch()
    (tmp_path / "transformers").mkdir()  # without __init__.py the installed package wins
    holds(software.shadowing(tmp_path, "", False), "ok")
    (tmp_path / "random.py").touch()
    holds(software.shadowing(tmp_path, "", False), "warn", "random.py", "rename")
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").touch()
    holds(software.shadowing(tmp_path, "", False), "fail", str(tmp_path / "deepspeed"))
    holds(software.shadowing(tmp_path, "", True), "ok")  # PYTHONSAFEPATH
    holds(software.shadowing(Path("/"), str(tmp_path), False), "warn", "random.py")  # packages in PYTHONPATH are meant
    (tmp_path / "torch.py").touch()
    holds(software.shadowing(Path("/"), f"{os.pathsep}{tmp_path}", False), "fail", "torch.py")


def test_what_a_launcher_left():
    holds(software.launcher({"PATH": "/bin"}), "ok", "no launcher")
    holds(software.launcher({"RANK": "1", "MASTER_ADDR": "gone"}), "ok", "RANK, MASTER_ADDR", "do not heed")
    holds(software.launcher(TORCHRUN), "warn", "torchrun", "unset RANK LOCAL_RANK WORLD_SIZE")


def room(folder="/x", free=100.0, writable=True, executable=True):
    return hardware.Space(Path(folder), free, writable, executable)


def test_the_hub():
    holds(software.hub({}, room()), "ok", "https://huggingface.co")
    holds(software.hub({"HF_ENDPOINT": "https://mirror"}, room()), "ok", "https://mirror")
    holds(software.hub({"HF_HUB_OFFLINE": "1"}, room()), "ok", "nothing is fetched (HF_HUB_OFFLINE=1)")
    holds(software.hub({"HF_HUB_OFFLINE": "0"}, room()), "ok", "models come from")
    holds(software.hub({}, room(free=3)), "warn", "HF_HOME")
    holds(software.hub({}, room(writable=False)), "warn", "cannot be written to")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_hubs_cache(environ, folder):
    assert software.hub_cache(environ) == Path(folder)


def test_wandb():
    holds(software.wandb("0.31", True, None), "ok", "a key is there")
    holds(software.wandb("0.31", False, "offline"), "ok", "no key", "WANDB_MODE=offline")
    holds(software.wandb(None, False, None), "warn", "pip install wandb")


WELL = {"command": "c++", "version": "c++ 12.2.0", "error": None}
BROKEN = {"command": "CXX=/bin/false", "version": "tells no version", "error": "it ends with code 1"}
NINJA = {"path": "/usr/bin/ninja", "version": "1.13"}


def test_compiler_and_ninja():
    holds(toolchain.compiler(WELL), "ok", "12.2.0")
    holds(toolchain.compiler(BROKEN), "warn", "CXX=/bin/false", "code 1", "unset CXX")
    holds(toolchain.compiler({**BROKEN, "command": "c++", "error": "c++ is not found"}), "warn", "not found", "apt-get install")
    holds(toolchain.ninja(NINJA), "ok", "1.13")
    holds(toolchain.ninja({"path": None, "version": None}), "warn", "pip install ninja")
    assert toolchain.obstacle(WELL, NINJA) is None
    assert "ninja" in (toolchain.obstacle(BROKEN, {"version": None}) or "")
    assert "CXX=/bin/false" in (toolchain.obstacle(BROKEN, NINJA) or "")


@pytest.mark.parametrize(
    ("home", "release", "cuda", "state", "word"),
    [
        (None, None, None, "ok", "not needed"),
        ("/cuda", "13.0", "13.0", "ok", "as PyTorch's"),
        ("/cuda", "12.4", "12.8", "ok", "close enough"),
        ("/cuda", "13.1", "13.0", "warn", "refuses"),  # in 0.19.8 only 11 and 12 may differ in the minor version
        ("/cuda", "12.4", "13.0", "warn", "toolkit 13.0"),
        (None, None, "13.0", "warn", "CUDA_HOME is not set"),
        ("/cuda", None, "13.0", "warn", "/cuda/bin/nvcc does not run"),
    ],
)
def test_nvcc_against_pytorchs_cuda(home, release, cuda, state, word):
    holds(toolchain.nvcc(home, release, cuda), state, word)


@pytest.mark.parametrize(
    ("listed", "state", "word"),
    [
        (None, "ok", "not set"),
        ("9.0a", "ok", "read it as 9.0"),
        ("8.0;9.0+PTX", "ok", "8.0;9.0+PTX"),
        ("Hopper", "warn", "cannot read Hopper"),
        ("8.0,9.0", "warn", "cannot read 8.0,9.0"),
        ("90", "warn", "cannot read 90"),
        ("10.0 12.0", "warn", "leaves out NVIDIA H200 (9.0)"),
        ("8.0", "ok", "8.0"),  # with the PTX that DeepSpeed adds
    ],
)
def test_the_architecture_list(listed, state, word):
    holds(toolchain.architectures(listed, [H200]), state, word)


OP = {"folder": "/cache/cpu_adam", "built": False, "installed": False, "rebuild": None, "missing": None}


@pytest.mark.parametrize(
    ("changes", "obstacle", "state", "word"),
    [
        ({"built": True}, None, "ok", "starts at once"),
        ({"built": True}, "c++ builds no extension", "ok", "starts at once"),
        ({"built": True}, "ninja is not found", "warn", "ninja"),
        ({"built": True, "rebuild": "built with g++, now clang++"}, None, "ok", "now clang++"),
        (
            {"built": True, "rebuild": "built with c++, now /bin/false"},
            "CXX=/bin/false builds no extension",
            "warn",
            "offload=none",
        ),
        ({"installed": True}, "ninja is not found", "ok", "came built"),
        ({}, None, "ok", "a minute or more"),
        ({}, "c++ builds no extension", "warn", "cannot be"),
    ],
)
def test_cpu_adam(changes, obstacle, state, word):
    holds(toolchain.cpu_adam({**OP, **changes}, obstacle), state, word)


def test_async_io():
    holds(toolchain.async_io(OP, None), "ok", "offload=nvme")
    holds(toolchain.async_io({**OP, "missing": "libaio, libaio.h"}, None), "warn", "without libaio, libaio.h", "libaio-dev")
    holds(toolchain.async_io({**OP, "missing": "the CUDA toolkit (CUDA_HOME)"}, None), "warn", "nvcc above")
    # Without a compiler nobody can tell whether the header is there.
    holds(toolchain.async_io({**OP, "missing": "libaio.h"}, "c++ builds no extension"), "warn", "c++ builds no extension")


def test_build_locks():
    holds(toolchain.locks([]), "ok", "none")
    holds(toolchain.locks([{"path": "/c/a/lock", "held": True}]), "ok", "under way")
    found = toolchain.locks([{"path": "/c/a/lock", "held": True}, {"path": "/c/b/lock", "held": False}])
    holds(found, "warn", "rm /c/b/lock")
    assert "/c/a" not in found.finding
