"""DeepSpeed's compiled optimizers: built or found before any weights are read, or refused with the real reason.

DeepSpeed compiles an op when it is first used, which is after the model is loaded, and torch guards the build with a lock
file that a killed build leaves behind: every later run then waits for ever (torch.utils.file_baton).
"""

import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from glmexp.config.errors import UserError
from glmexp.trial.record import BUILDING_OP

LOGGER = logging.getLogger(__name__)

FAMILIES = {"adam": "Adam", "adamw": "Adam", "muon": "Adam", "lion": "Lion", "adagrad": "Adagrad", "lamb": "Lamb"}
WAYS_OUT = {
    "cpu_": ("an optimizer on the host (offload=cpu and its like)", "offload=none"),
    "pin_memory": ("offload=nvme", "offload=cpu_all"),
    "async_io": ("offload=nvme", "offload=cpu_all"),
    "quantizer": ("zero=stage3_zeropp", "zero=stage3"),
    "dc": ("kernels=deepcompile", "kernels=eager"),
}
"""Beginning of an op's name -> the option that needs it, and one that does not."""
NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "cifs", "smb", "gpfs", "beegfs", "ceph", "afs", "panfs", "wekafs", "fuse")
FOREIGN_LOCK_SECONDS = 20 * 60
"""Age at which a lock on a network file system, whose holder may be on another host, counts as left behind."""


def builder_names(ds_config: dict[str, Any]) -> list[str]:
    """Names in ``deepspeed.ops.op_builder`` of the ops that the config needs."""
    zero = ds_config.get("zero_optimization") or {}
    names = [optimizer_builder(ds_config)]
    if "nvme" in ((zero.get(section) or {}).get("device") for section in ("offload_optimizer", "offload_param")):
        names += ["PinMemoryBuilder", "AsyncIOBuilder"]
    if any(zero.get(f"zero_quantized_{what}") for what in ("weights", "nontrainable_weights", "gradients")):
        names.append("QuantizerBuilder")
    if (ds_config.get("compile") or {}).get("deepcompile"):
        names.append("DeepCompileBuilder")
    return [name for name in names if name is not None]


def optimizer_builder(ds_config: dict[str, Any]) -> str | None:
    """Name of the op that the optimizer needs, or None.

    Follows ``get_optimizer_configuration`` of DeepSpeed's engine: an offloaded optimizer steps in the CPU op, the others in the
    fused one, and ``torch_adam`` needs neither.
    """
    optimizer = ds_config.get("optimizer") or {}
    family = FAMILIES.get(str(optimizer.get("type", "")).lower())
    if family is None or (optimizer.get("params") or {}).get("torch_adam"):
        return None
    offload = (ds_config.get("zero_optimization") or {}).get("offload_optimizer") or {}
    if offload.get("device", "none") != "none":
        return f"CPU{family}Builder" if family != "Lamb" else None
    return f"Fused{family}Builder" if family != "Adagrad" else None


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Makes the build find this interpreter's ninja, and mends what DeepSpeed's builder cannot parse.

    Two ninja versions that take turns rebuild everything each time, and ``9.0a`` in TORCH_CUDA_ARCH_LIST ends in a ValueError.
    """
    scripts = Path(sys.executable).parent
    path = environ.get("PATH", os.defpath)
    if (scripts / "ninja").exists() and path.split(os.pathsep)[0] != str(scripts):
        environ["PATH"] = f"{scripts}{os.pathsep}{path}"
    listed = environ.get("TORCH_CUDA_ARCH_LIST")
    if listed:
        mended = re.sub(r"(\d+\.\d+)[a-z]+", r"\1", listed)
        if mended != listed:
            LOGGER.info("TORCH_CUDA_ARCH_LIST=%s read as %s: DeepSpeed takes numbers only", listed, mended)
            environ["TORCH_CUDA_ARCH_LIST"] = mended


def ensure(ds_config: dict[str, Any], tell: Callable[[str], None] = LOGGER.info) -> None:
    """Builds or loads the ops that ``ds_config`` needs.

    Processes of one cache take turns: the first builds, the others load what it built. ``tell`` takes a line before a build,
    which is long.

    Raises:
        UserError: the op cannot be built; the message holds the compiler's first error line and the ways out.
    """
    wanted = builder_names(ds_config)
    if not wanted:
        return
    from deepspeed.ops import op_builder

    for name in wanted:
        _ensure(getattr(op_builder, name)(), tell)


def _ensure(builder: Any, tell: Callable[[str], None]) -> None:
    from torch.utils.cpp_extension import _get_build_directory

    folder = Path(_get_build_directory(builder.name, False))
    with _turn(folder):
        _wait_for_builder(folder / "lock", builder.name)
        if not (folder / f"{builder.name}.so").exists():
            tell(f"{BUILDING_OP}{builder.name} in {folder}: a minute or more, once a machine")
        try:
            # Without verbose the compiler's output is in the exception instead of on the terminal.
            builder.load(verbose=False)
        except Exception as error:
            LOGGER.info("the whole output of the failed build:\n%s", _whole_text(error))
            raise UserError(_refusal(builder.name, folder, error)) from error


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Holds a lock of our own that, unlike torch's, the kernel drops with its process."""
    with (folder / "glmexp.lock").open("w") as handle:
        with suppress(OSError):  # a file system without locks: torch's own lock still stands
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _wait_for_builder(lock: Path, op: str) -> None:
    """Returns when no build is under way; removes the lock of one that died."""
    told = False
    while lock.exists():
        if left_behind(lock):
            LOGGER.warning("removed %s: the build of %s that it belonged to is gone", lock, op)
            lock.unlink(missing_ok=True)
            return
        if not told:
            LOGGER.info("another process builds %s (%s); waiting for it", op, lock)
            told = True
        time.sleep(0.2)


def left_behind(lock: Path) -> bool:
    """Whether no process has the lock file open: torch's builder keeps it open until it is done."""
    try:
        status = lock.stat()
    except FileNotFoundError:
        return False
    if _held(status):
        return False
    if _on_network(lock):
        return time.time() - status.st_mtime > FOREIGN_LOCK_SECONDS
    return True


def _held(status: os.stat_result) -> bool:
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            entries = list(descriptors.iterdir())
        except OSError:  # ended meanwhile, or another user's
            continue
        for entry in entries:
            try:
                found = entry.stat()
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
                return True
    return False


def _on_network(path: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    best, kind = "", ""
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind.startswith(NETWORK_FILE_SYSTEMS)


def _whole_text(error: BaseException | None) -> str:
    parts = []
    while error is not None:
        parts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def first_error(text: str) -> str:
    """The line of a failed build that says what is wrong, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = (r"\berror\s*:", r"No such file or directory|not found", r"Error\b.*:", r"^FAILED")
    for mark in marks:
        for line in lines:
            if re.search(mark, line) and not line.startswith("RuntimeError: Error building extension"):
                return line[:300]
    return (lines[0] if lines else "no output")[:300]


def tool_version(command: str) -> str:
    """The first line of ``command --version``, or that there is none."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "not there"
    return next(iter(done.stdout.splitlines()), "tells no version").strip()


def _refusal(op: str, folder: Path, error: Exception) -> str:
    import torch

    compiler = os.environ.get("CXX") or "c++"
    named = f"CXX={compiler}" if os.environ.get("CXX") else compiler
    cuda = f"PyTorch {torch.__version__}, its CUDA {torch.version.cuda or 'none'}"
    if shutil.which("nvcc") and torch.version.cuda:
        cuda += f", nvcc {tool_version('nvcc')}"
    known = next((ways for name, ways in WAYS_OUT.items() if op.startswith(name)), None)
    setting, instead = known or ("optimizer.type", "+deepspeed.optimizer.params.torch_adam=true")
    return "\n".join(
        [
            f"{setting} needs DeepSpeed's {op}, which could not be built: {first_error(_whole_text(error))}",
            f"compiler {named} ({tool_version(compiler)}); {cuda}; build folder {folder}",
            f"install a C++ compiler and ninja{'' if not os.environ.get('CXX') else ' or unset CXX'}, and run again;"
            f" or go without it: {instead}",
        ]
    )
