"""Python, the packages, and what the environment says: nothing here needs a GPU or imports torch."""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmexp.trial.doctor.diagnosis import Diagnosis, fail, ok, warn
from glmexp.trial.doctor.hardware import Space
from glmexp.trial.launcher import RANK_VARIABLES, detect
from glmexp.trial.machine import Gpu

OLDEST_PYTHON = (3, 10)
BOUNDS: dict[str, tuple[str, str | None]] = {
    "torch": ("2.11", "2.15"),
    "deepspeed": ("0.19.8", "0.20"),
    "transformers": ("5.17", "5.25"),
    "peft": ("0.18", None),
}
"""Package -> the oldest version, and the first that glmexp was not tried with. As in pyproject.toml: a test compares them."""

PACKAGES = (*BOUNDS, "hydra", "numpy", "omegaconf", "safetensors", "tokenizers", "wandb")
HARMLESS = ("test", "this", "antigravity", "turtle", "turtledemo", "idlelib")
"""Modules of the standard library that no package imports: a ``test.py`` in the current folder is nobody's trouble."""

OFFLINE_FLAGS = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def python(version: Sequence[int], executable: str) -> Diagnosis:
    found = f"{'.'.join(str(number) for number in version[:3])}, {executable}"
    if tuple(version[:2]) < OLDEST_PYTHON:
        return fail(f"{found}: too old", "use Python 3.10 or newer")
    return ok(found)


def package(name: str, version: str | None, import_error: str | None) -> Diagnosis:
    """Args: ``version`` as installed, None if it is not; ``import_error``: what importing it raised, None if that went well."""
    oldest, untried = BOUNDS[name]
    wanted = f"{name}>={oldest}" + (f",<{untried}" if untried else "")
    install = f"python -m pip install '{wanted}'"
    if version is None:
        return fail("not installed", install)
    if import_error is not None:
        return fail(f"{version} cannot be imported: {import_error}", f"mend what it names, or install it anew: {install}")
    if _numbers(version) < _numbers(oldest):
        return fail(f"{version} is too old", install)
    if untried and _numbers(version) >= _numbers(untried):
        return warn(f"{version} is newer than what glmexp was tried with", f"if something breaks: {install}")
    return ok(version)


def _numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cu130`` -> (2, 13, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def cuda(torch: Mapping[str, Any], gpus: Sequence[Gpu], problem: str | None) -> Diagnosis:
    """Whether PyTorch can use the GPUs that the driver shows.

    Args:
        torch: the worker's facts: version, cuda, available, devices, reason, architectures.
        problem: why there is no GPU.
    """
    build = f"PyTorch {torch['version']} with {'CUDA ' + torch['cuda'] if torch['cuda'] else 'no CUDA'}"
    if not gpus:
        move = "on a machine with a GPU: install NVIDIA's driver; start a container with its GPUs (docker run --gpus all)"
        if problem and "without CUDA" in problem:
            move = "install a CUDA build of PyTorch: https://pytorch.org/get-started/locally"
        elif problem and "CUDA_VISIBLE_DEVICES" in problem:
            move = "unset CUDA_VISIBLE_DEVICES, or name a GPU in it"
        return warn(f"{build}; no GPU: {problem}; runs use the CPU", move)
    if not torch["available"]:
        return fail(
            f"{build} cannot use the GPU: {torch['reason'] or 'no reason given'}",
            "update the driver, or install a PyTorch for an older CUDA: https://pytorch.org/get-started/locally; "
            "launch.device=cpu runs without",
        )
    foreign = [gpu for gpu in gpus if not has_kernels(gpu.capability, torch["architectures"])]
    if foreign:
        capability = ".".join(map(str, foreign[0].capability))
        return fail(
            f"{build} has no kernels for {foreign[0].name} (compute capability {capability}), only for "
            + " ".join(torch["architectures"]),
            "install a PyTorch built for this GPU, or hide it with CUDA_VISIBLE_DEVICES",
        )
    if torch["devices"] != len(gpus):
        return warn(
            f"{build} sees {torch['devices']} GPUs, the driver {len(gpus)}", "compare `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"
        )
    return ok(f"{build} sees {torch['devices']} GPU(s)")


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Whether code for one of ``sm_90``, ``compute_80`` … runs on this GPU.

    Machine code (sm) runs within its major version on the same or a higher minor one, PTX (compute) on anything newer.
    """
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        number = re.match(r"\d+", digits)
        if number is None:
            continue
        built = (int(number[0][:-1] or 0), int(number[0][-1]))
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return False


def shadowing(folder: Path, pythonpath: str, safe_path: bool) -> Diagnosis:
    """Files that Python finds before the packages they are named like: ``python -m`` looks in the current folder first.

    Args: ``pythonpath``, ``safe_path``: PYTHONPATH and whether PYTHONSAFEPATH is set, which keeps the current folder out.
    """
    names = {*PACKAGES, *sys.stdlib_module_names} - {*sys.builtin_module_names, *HARMLESS}
    listed = [Path(entry) for entry in pythonpath.split(os.pathsep) if entry]
    found = [path for entry in listed for path in _modules(entry, names, packages=False)]
    if not safe_path:
        # A package in PYTHONPATH is meant to be found; in the current folder it is an accident.
        packages = folder not in (entry.absolute() for entry in listed)
        found += _modules(folder, names, packages)
    if not found:
        return ok(f"nothing in {folder} hides a package")
    finding = f"found before the real module of that name: {', '.join(dict.fromkeys(map(str, found)))}"
    move = "rename it, or call glmexp from another folder"
    return fail(finding, move) if any(path.stem in PACKAGES for path in found) else warn(finding, move)


def _modules(folder: Path, names: set[str], packages: bool) -> list[Path]:
    """``.py`` files, and with ``packages`` folders with an ``__init__.py``, whose name is one of ``names``."""
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.stem in names)
        or (packages and path.name in names and (path / "__init__.py").is_file())
    )


def launcher(environ: Mapping[str, str]) -> Diagnosis:
    """What a launcher, alive or gone, has left in the environment."""
    left = [name for name in RANK_VARIABLES if name in environ]
    outer = detect(environ)
    if outer is not None:
        return warn(
            f"by the environment this is rank {outer.rank} of {outer.world_size} of {outer.name}; a run waits for the others",
            f"if no {outer.name} started this shell: unset {' '.join(left or ['SLURM_PROCID'])}",
        )
    if left:
        return ok(f"{', '.join(left)}: left over from a launcher; runs do not heed them")
    return ok("no launcher's variables in the environment")


def hub(environ: Mapping[str, str], cache: Space) -> Diagnosis:
    """Where models are fetched from and kept."""
    source = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = [
        f"{name}={environ[name]}" for name in OFFLINE_FLAGS if environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
    ]
    found = f"cache {cache.folder} ({cache.free_gib:.0f} GiB free), "
    found += f"nothing is fetched ({', '.join(offline)})" if offline else f"models come from {source}"
    if not cache.writable:
        return warn(f"{found}; it cannot be written to", "set HF_HOME to a folder of your own")
    if cache.free_gib < 15:
        return warn(f"{found}; ChatGLM2-6B takes 12.5 GB", "set HF_HOME to a larger disk")
    return ok(found)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder as huggingface_hub finds it (huggingface_hub/constants.py)."""
    if explicit := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(explicit).expanduser()
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(environ.get("HF_HOME") or Path(caches) / "huggingface") / "hub").expanduser()


def wandb(version: str | None, has_key: bool, mode: str | None) -> Diagnosis:
    """Args: ``has_key``: whether a key is found, which is never shown; ``mode``: WANDB_MODE."""
    if version is None:
        return warn("not installed: tracker=wandb cannot run", "python -m pip install wandb")
    told = f", WANDB_MODE={mode}" if mode else ""
    if has_key:
        return ok(f"{version}, a key is there{told}")
    return ok(f"{version}, no key: tracker=wandb keeps its runs offline{told}")
