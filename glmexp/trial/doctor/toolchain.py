"""What DeepSpeed compiles at first use, and what it compiles with. The facts come from ``glmexp.train.doctor``."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from glmexp.trial.commands import plain_architectures
from glmexp.trial.doctor.diagnosis import Diagnosis, ok, warn
from glmexp.trial.machine import Gpu

COMPATIBLE_MAJORS = (11, 12)
"""CUDA majors whose minor versions DeepSpeed lets differ (cuda_minor_mismatch_ok, deepspeed/ops/op_builder/builder.py)."""


def compiler(facts: Mapping[str, Any]) -> Diagnosis:
    """Args: ``facts``: command, version, error of a small C++20 extension with OpenMP and Python's headers."""
    if facts["error"] is None:
        return ok(f"{facts['command']}: {facts['version']}; it builds a C++20 extension")
    move = "install one and Python's headers (apt-get install g++ python3-dev)"
    if "CXX=" in facts["command"]:
        move = "unset CXX, or set it to a C++ compiler with C++20 and OpenMP"
    return warn(f"{facts['command']} ({facts['version']}) builds no extension: {facts['error']}; offload=cpu needs one", move)


def ninja(facts: Mapping[str, Any]) -> Diagnosis:
    if facts["version"] is None:
        return warn("not found: DeepSpeed loads no compiled op without it, so offload=cpu cannot run", "pip install ninja")
    return ok(f"{facts['version']}, {facts['path']}")


def nvcc(home: str | None, release: str | None, torch_cuda: str | None) -> Diagnosis:
    """CUDA's compiler against the CUDA that PyTorch was built with.

    Args: ``home``: CUDA_HOME as PyTorch finds it; ``release``: what ``nvcc`` there says, None if it does not run.
    """
    if torch_cuda is None:
        return ok("not needed: PyTorch is a build without CUDA")
    users = "ZeRO++ quantisation, DeepCompile and offload=nvme compile with it"
    wanted = ".".join(torch_cuda.split(".")[:2])
    if home is None or release is None:
        where = "CUDA_HOME is not set and there is no nvcc" if home is None else f"{home}/bin/nvcc does not run"
        return warn(f"{where}; {users}", f"install the CUDA toolkit {wanted} and set CUDA_HOME, or do without these options")
    if release == wanted:
        return ok(f"{release} in {home}, as PyTorch's CUDA")
    major, torch_major = int(release.split(".")[0]), int(wanted.split(".")[0])
    if major == torch_major and major in COMPATIBLE_MAJORS:
        return ok(f"{release} in {home}, close enough to PyTorch's CUDA {wanted}")
    return warn(
        f"{release} in {home}, PyTorch's CUDA is {wanted}: DeepSpeed refuses this pair where it checks; {users}",
        f"set CUDA_HOME to a CUDA toolkit {wanted}",
    )


def architectures(listed: str | None, gpus: Sequence[Gpu]) -> Diagnosis:
    """TORCH_CUDA_ARCH_LIST as DeepSpeed's op builder reads it (compute_capability_args of its ops/op_builder/builder.py)."""
    if not listed or not listed.strip():
        return ok("TORCH_CUDA_ARCH_LIST is not set: ops are built for the GPUs of this machine")
    plain = plain_architectures(listed)
    entries = plain.split(";")
    unread = [entry for entry in entries if not re.fullmatch(r"\d+\.\d+(\+PTX)?", entry)]
    if unread:
        return warn(
            f"TORCH_CUDA_ARCH_LIST={listed}: DeepSpeed cannot read {', '.join(unread)}",
            "unset it, or list numbers: TORCH_CUDA_ARCH_LIST='8.0;9.0'",
        )
    # DeepSpeed adds PTX to the highest entry, which newer GPUs translate; an older one gets nothing that it can run.
    lowest = min(tuple(map(int, entry.removesuffix("+PTX").split("."))) for entry in entries)
    older = [gpu for gpu in gpus if gpu.capability < lowest]
    if older:
        capability = ".".join(map(str, older[0].capability))
        return warn(f"TORCH_CUDA_ARCH_LIST={listed} leaves out {older[0].name} ({capability})", f"add {capability} or unset it")
    if plain != listed:
        return ok(f"TORCH_CUDA_ARCH_LIST={listed}: runs read it as {plain}, since DeepSpeed knows numbers only")
    return ok(f"TORCH_CUDA_ARCH_LIST={listed}")


def cpu_adam(op: Mapping[str, Any], obstacle: str | None) -> Diagnosis:
    """DeepSpeed's CPU Adam, which steps the offloaded optimizer.

    Args:
        op: folder, built (the ``.so`` is there), installed (with DeepSpeed), rebuild (why it would be built again, or None).
        obstacle: why nothing can be built here, or None.
    """
    return _op("offload=cpu", "offload=none", op, obstacle)


def async_io(op: Mapping[str, Any], obstacle: str | None) -> Diagnosis:
    """DeepSpeed's asynchronous I/O, with which NVMe offload reads and writes.

    Args: ``op``: as of ``cpu_adam``, with missing: the header or library that is not there, or None; ``obstacle`` likewise.
    """
    if op["missing"] and not op["installed"] and obstacle is None:
        move = "apt-get install libaio-dev (dnf install libaio-devel)" if "aio" in op["missing"] else "see nvcc above"
        return warn(f"cannot be built without {op['missing']}; offload=nvme needs it", f"{move}, or use offload=cpu_all")
    return _op("offload=nvme", "offload=cpu_all", op, obstacle)


def _op(option: str, instead: str, op: Mapping[str, Any], obstacle: str | None) -> Diagnosis:
    if op["installed"]:
        return ok(f"came built with DeepSpeed: {option} starts at once")
    if op["built"] and op["rebuild"] is None:
        if obstacle and "ninja" in obstacle:
            return warn(f"built in {op['folder']}, but {obstacle}", f"mend that, or use {instead}")
        return ok(f"built in {op['folder']}: {option} starts at once")
    state = f"built in {op['folder']}, to be built again ({op['rebuild']})" if op["built"] else "not built yet"
    if obstacle:
        return warn(f"{state}, and cannot be: {obstacle}; {option} needs it", f"mend that, or use {instead}")
    return ok(f"{state}: the first run with {option} builds it, a minute or more")


def locks(found: Sequence[Mapping[str, Any]]) -> Diagnosis:
    """Args: ``found``: path, and held (a process has it open, so that a build is under way) of each lock in the cache."""
    stale = [lock["path"] for lock in found if not lock["held"]]
    if stale:
        return warn(
            f"{', '.join(stale)}: left by a killed build; runs of glmexp remove it, other programs wait for it for ever",
            f"rm {' '.join(stale)}",
        )
    if found:
        return ok(f"a build is under way ({', '.join(lock['path'] for lock in found)})")
    return ok("none in the extension cache")


def obstacle(compiler_facts: Mapping[str, Any], ninja_facts: Mapping[str, Any]) -> str | None:
    """Why no op can be built here, or None."""
    if ninja_facts["version"] is None:
        return "ninja is not found"
    if compiler_facts["error"] is not None:
        return f"{compiler_facts['command']} builds no extension"
    return None
