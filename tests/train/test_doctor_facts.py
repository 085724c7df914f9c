"""The torch side of ``doctor``: what it finds of compilers, built ops and locks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from glmexp.train import doctor


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    found = doctor.compiler()
    assert (found["command"], found["error"]) == ("c++", None)
    fake = script(tmp_path / "g++-99", "echo 'probe.cpp:2:10: fatal error: Python.h: No such file or directory' >&2; exit 1")
    monkeypatch.setenv("CXX", str(fake))
    assert doctor.compiler()["error"] == "probe.cpp:2:10: fatal error: Python.h: No such file or directory"
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    assert doctor.compiler() == {
        "command": "CXX=/nowhere/g++ -m64",
        "version": "not there",
        "error": "/nowhere/g++ is not found",
    }


def test_a_compiler_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "COMMAND_SECONDS", 0.2)
    assert "timed out" in (doctor.failure([str(script(tmp_path / "cc", "exec sleep 60"))], "") or "")


def test_ninja(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.ninja() == {"path": None, "version": None}
    script(tmp_path / "ninja", "echo 1.99")
    assert doctor.ninja() == {"path": str(tmp_path / "ninja"), "version": "1.99"}


def test_the_extension_cache_is_torchs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    assert not doctor.extension_root().exists()
    assert str(doctor.extension_root() / "cpu_adam") == cpp_extension._get_build_directory("cpu_adam", False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "b"))
    assert str(doctor.extension_root() / "cpu_adam") == cpp_extension._get_build_directory("cpu_adam", False)


def test_built_ops_and_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # this interpreter's ninja
    monkeypatch.delenv("CXX", raising=False)
    for op in ("cpu_adam", "fused_adam"):
        (tmp_path / op).mkdir()
    build_file = "cxx = c++\nrule copy\n  command = cp $in $out\nbuild cpu_adam.so: copy cpu_adam.o\n"
    (tmp_path / "cpu_adam" / "cpu_adam.o").write_text("compiled")
    (tmp_path / "cpu_adam" / "build.ninja").write_text(build_file)
    subprocess.run(["ninja"], cwd=tmp_path / "cpu_adam", check=True, capture_output=True)
    stale, held = tmp_path / "cpu_adam" / "lock", tmp_path / "fused_adam" / "lock"
    stale.touch()
    descriptor = os.open(held, os.O_CREAT | os.O_EXCL)  # as torch's builder keeps it
    try:
        found = doctor.compiled()
    finally:
        os.close(descriptor)
    assert found["locks"] == [{"path": str(stale), "held": False}, {"path": str(held), "held": True}]
    adam = {"folder": str(tmp_path / "cpu_adam"), "built": True, "installed": False, "rebuild": None}
    assert (found["root"], found["cpu_adam"]) == (str(tmp_path), adam)
    assert not found["async_io"]["built"]
    before = sorted(tmp_path.rglob("*"))
    os.utime(tmp_path / "cpu_adam" / "cpu_adam.so", (0, 0))  # as after a build that was killed between compiling and linking
    assert "unfinished" in (doctor.rebuild(tmp_path / "cpu_adam") or "")
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.setenv("CXX", "clang++")
    assert doctor.rebuild(tmp_path / "cpu_adam") == "built with c++, now clang++"
    (tmp_path / "cpu_adam" / "build.ninja").unlink()
    assert doctor.rebuild(tmp_path / "cpu_adam") == "its build file is gone"


def test_what_async_io_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    script(tmp_path / "c++", "exit 1")
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda self, verbose: False)
    assert doctor.missing_for_async_io() == "libaio, libaio.h"
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert doctor.missing_for_async_io() == "the CUDA toolkit (CUDA_HOME), libaio, libaio.h"
    script(tmp_path / "c++", "exit 0")
    (tmp_path / "include").mkdir()
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda self, verbose: True)
    assert doctor.missing_for_async_io() is None


def test_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert doctor.nvcc() == {"home": str(tmp_path), "release": None}
    script(tmp_path / "bin" / "nvcc", "echo 'Cuda compilation tools, release 12.8, V12.8.93'")
    assert doctor.nvcc() == {"home": str(tmp_path), "release": "12.8"}
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    assert doctor.nvcc() == {"home": None, "release": None}
