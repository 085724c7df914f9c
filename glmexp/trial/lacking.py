"""What a device lacks for a configuration that is right in itself."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from glmexp.config.choices import Dtype, Method, OffloadDevice
from glmexp.config.errors import missing_package
from glmexp.config.schema import Config
from glmexp.dsconfig.machine import Machine
from glmexp.trial.machine import Gpu

DEEPCOMPILE_TORCH = (2, 6)
QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def lacking(config: Config, machine: Machine, gpus: Sequence[Gpu], nodes: int) -> Iterator[str]:
    """Why ``config`` does not run on the device, a message each: what is missing, and on a second line the next move.

    Args:
        gpus: those that the ranks of this node use; empty for a GPU that was asked for and is not here.
    """
    dtype = config.precision.dtype
    if machine.device == "cpu":
        yield from _on_cpu(config)
    elif dtype is Dtype.bf16 or config.precision.autocast_dtype is Dtype.bf16:
        old = next((gpu for gpu in gpus if gpu.capability < (8, 0)), None)
        if old:
            major, minor = old.capability
            option = "bf16" if dtype is Dtype.bf16 else "autocast"
            yield (
                f"precision={option}: {old.name} (compute capability {major}.{minor}) has no bf16, which begins with 8.0.\n"
                "Choose precision=fp16 or precision=fp32."
            )
    if config.method.name is Method.qlora and machine.device == "gpu" and find_spec("bitsandbytes") is None:
        missing = missing_package("method=qlora", "bitsandbytes", "'glmexp[qlora]'", "choose method=lora")
        yield str(missing)
    if config.zero.zero_quantized_gradients and machine.device == "gpu" and nodes == 1:
        # runtime/zero/stage3.py, __avg_scatter_grads, takes the int4 path only where there is more than one node.
        yield (
            "zero.zero_quantized_gradients=true has no effect on one node: it is for the traffic between nodes.\n"
            "Set zero.zero_quantized_gradients=false, or start glmexp on several nodes."
        )
    if config.kernels.deepcompile and machine.device == "gpu" and (version := torch_version()) < DEEPCOMPILE_TORCH:
        yield (
            f"kernels=deepcompile needs PyTorch 2.6, and this is {'.'.join(map(str, version))}.\n"
            "Upgrade PyTorch, or choose kernels=eager."
        )


def _on_cpu(config: Config) -> Iterator[str]:
    if config.precision.dtype is Dtype.fp16:
        # DeepSpeed's CPU accelerator has no fp16.
        yield "precision=fp16 does not run on the CPU.\nChoose precision=bf16 or precision=fp32, or run on a GPU."
    if config.method.name is Method.qlora:
        yield (
            "method=qlora does not run on the CPU: its 4-bit weights are for the memory of a GPU, whose kernels unpack them.\n"
            "Choose method=lora, or run on a GPU."
        )
    for field in QUANTIZED:
        if getattr(config.zero, field):
            yield f"zero.{field}=true does not run on the CPU: its kernels are CUDA's.\nSet it to false, or run on a GPU."
    if config.offload.super_offload:
        yield "offload=super_offload does not run on the CPU: it is made for a GPU.\nChoose offload=cpu, or run on a GPU."
    if config.kernels.deepcompile:
        yield "kernels=deepcompile does not run on the CPU: its kernels are CUDA's.\nChoose kernels=eager, or run on a GPU."


def lacking_nvme(config: Config) -> Iterator[str]:
    """Why ``offload=nvme`` does not run on this machine: its folder, or the library for asynchronous reads and writes."""
    if config.offload.device is not OffloadDevice.nvme or config.offload.nvme_path is None:
        return
    folder = Path(config.offload.nvme_path)
    if not folder.is_dir():
        yield f"offload.nvme_path={folder} is no folder here.\nMake it on the NVMe device, or name another."
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield f"offload.nvme_path={folder} cannot be written.\nName a folder that this user may write."
    if not has_libaio():
        yield (
            "offload=nvme needs libaio with its header, and a program that uses it cannot be built here.\n"
            "Install libaio-dev (apt) or libaio-devel (dnf), or choose offload=cpu_all."
        )


def has_libaio() -> bool:
    """Whether a program with libaio can be compiled and linked, the way DeepSpeed's ``async_io`` builder finds out.

    CC, CFLAGS and LDFLAGS count, as they do there (op_builder/async_io.py, is_compatible).
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "libaio.c"
        source.write_text(
            "#include <libaio.h>\nint main(void) { io_context_t context = 0; return io_submit(context, 0, 0); }\n"
        )
        flags = [*os.environ.get("CFLAGS", "").split(), str(source), "-o", f"{scratch}/libaio"]
        command = [*os.environ.get("CC", "cc").split(), *flags, *os.environ.get("LDFLAGS", "").split(), "-laio"]
        try:
            return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


def torch_version() -> tuple[int, ...]:
    """(major, minor) of the PyTorch that is installed, read from its metadata."""
    found = re.match(r"(\d+)\.(\d+)", metadata.version("torch"))
    assert found is not None
    return int(found[1]), int(found[2])
