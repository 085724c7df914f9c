"""The torch side of ``doctor``: ``python -m glmexp.train.doctor FOLDER`` looks at one thing after the other.

``FOLDER/facts.json`` (thing -> value, error) is written anew after each, so that one that hangs or crashes takes none along.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from glmexp.train import ops
from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import write_json

COMMAND_SECONDS = 15
PINNED_BYTES = 64 * 2**20
EXTENSION = """
#include <Python.h>
#include <omp.h>
#include <vector>
int threads() { std::vector<int> counted(1, omp_get_max_threads()); return counted[0]; }
"""


def main(folder: Path) -> None:
    die_with_parent()
    ops.prepare_environment()
    facts: dict[str, dict[str, Any]] = {}
    for name, look in THINGS.items():
        try:
            facts[name] = {"value": look(), "error": None}
        except Exception as error:
            facts[name] = {"value": None, "error": short(error)}
        write_json(folder / "facts.json", facts)
    os._exit(0)


def short(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def compiler() -> dict[str, Any]:
    """The C++ compiler that torch's builder would call (get_cxx_compiler, torch/utils/cpp_extension.py), put to the test."""
    named = os.environ.get("CXX")
    words = shlex.split(named or "c++")
    told = {"command": f"CXX={named}" if named else "c++", "version": ops.tool_version(words[0])}
    with tempfile.TemporaryDirectory() as name:
        flags = ["-std=c++20", "-fopenmp", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-o", f"{name}/probe.so"]
        return {**told, "error": failure([*words, *flags, "-x", "c++", "-"], EXTENSION)}


def failure(command: list[str], source: str) -> str | None:
    """What a compiler that reads ``source`` complains of, in one line; None if it went well."""
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        return f"{command[0]} is not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return short(error)
    if done.returncode == 0:
        return None
    said = done.stdout + done.stderr
    return ops.first_error(said) if said.strip() else f"it ends with code {done.returncode}"


def ninja() -> dict[str, Any]:
    path = shutil.which("ninja")
    return {"path": path, "version": ops.tool_version("ninja") if path else None}


def imports() -> dict[str, str | None]:
    """Package -> what importing it raises, in one line, or None."""
    told: dict[str, str | None] = {}
    for name in ("torch", "deepspeed", "transformers", "peft"):
        try:
            import_module(name)
            told[name] = None
        except Exception as error:
            told[name] = short(error)
    return told


def torch_build() -> dict[str, Any]:
    """What PyTorch was built for, and the GPUs that it sees."""
    import torch

    available = torch.cuda.is_available()
    devices = torch.cuda.device_count() if available else 0
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "available": available,
        "devices": devices,
        "reason": None if available else reason_without_cuda(),
        "architectures": torch.cuda.get_arch_list() if available else [],
        "without_peer_access": [
            (one, other)
            for one in range(devices)
            for other in range(one + 1, devices)
            if not torch.cuda.can_device_access_peer(one, other)
        ],
    }


def reason_without_cuda() -> str | None:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # RuntimeError of the driver, AssertionError of a build without CUDA
        return " ".join(str(error).split())[:300]
    return None


def pinned() -> bool:
    """Pins host memory as DeepSpeed does for offloading; whether there is a GPU to pin it for."""
    import torch

    if not torch.cuda.is_available():
        return False
    torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    return True


def nvcc() -> dict[str, str | None]:
    """CUDA_HOME as torch finds it, and the release that its nvcc tells."""
    from torch.utils.cpp_extension import CUDA_HOME

    if CUDA_HOME is None:
        return {"home": None, "release": None}
    try:
        done = subprocess.run(
            [f"{CUDA_HOME}/bin/nvcc", "-V"], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {"home": CUDA_HOME, "release": None}
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    return {"home": CUDA_HOME, "release": release[1] if release else None}


def extension_root() -> Path:
    """The folder above all builds; as ``_get_build_directory`` of torch/utils/cpp_extension.py, but it makes no folder."""
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    if root := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(root)
    accelerator = f"cu{torch.version.cuda.replace('.', '')}" if torch.version.cuda else "cpu"
    return Path(get_default_build_root(), f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_{accelerator}")


def compiled() -> dict[str, Any]:
    """The extension cache, the ops in it that offloading needs, and the locks."""
    from deepspeed.git_version_info import installed_ops

    root = extension_root()
    told: dict[str, Any] = {"root": str(root)}
    for op in ("cpu_adam", "async_io"):
        folder = root / op
        built = (folder / f"{op}.so").is_file()
        told[op] = {
            "folder": str(folder),
            "built": built,
            "installed": bool(installed_ops.get(op)),
            "rebuild": rebuild(folder) if built else None,
        }
    told["async_io"]["missing"] = missing_for_async_io()
    told["locks"] = [{"path": str(lock), "held": not ops.left_behind(lock)} for lock in sorted(root.glob("*/lock"))]
    return told


def rebuild(folder: Path) -> str | None:
    """Why a built op would be compiled again when it is next used, or None."""
    try:
        written = re.search(r"^cxx = (.+)$", (folder / "build.ninja").read_text(), re.MULTILINE)
    except OSError:
        return "its build file is gone"
    now = os.environ.get("CXX", "c++")
    if written and written[1] != now:  # torch writes the compiler's name into the build file
        return f"built with {written[1]}, now {now}"
    if shutil.which("ninja") is None:
        return None
    dry = subprocess.run(["ninja", "-n"], cwd=folder, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    return None if "no work to do" in dry.stdout else "the build is unfinished or out of date"


def missing_for_async_io() -> str | None:
    """What DeepSpeed's async_io does not find: CUDA's headers on a GPU, libaio to link with, its header."""
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from torch.utils.cpp_extension import CUDA_HOME

    missing = []
    if os.environ.get("DS_ACCELERATOR") != "cpu" and not (CUDA_HOME and Path(CUDA_HOME, "include").is_dir()):
        missing.append("the CUDA toolkit (CUDA_HOME)")
    if not AsyncIOBuilder().is_compatible(False):
        missing.append("libaio")
    words = shlex.split(os.environ.get("CXX") or "c++")
    if failure([*words, "-fsyntax-only", "-x", "c++", "-"], "#include <libaio.h>\n") is not None:
        missing.append("libaio.h")
    return ", ".join(missing) or None


THINGS: dict[str, Callable[[], Any]] = {
    "compiler": compiler,
    "ninja": ninja,
    "imports": imports,
    "torch": torch_build,
    "nvcc": nvcc,
    "compiled": compiled,
    "pinned": pinned,
}
"""What is looked at, the quickest and surest first."""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
