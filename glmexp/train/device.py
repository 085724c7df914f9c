"""The device of this rank, its memory cap, and the process group."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from glmexp.config.choices import Device, Dtype
from glmexp.config.errors import UserError
from glmexp.config.schema import Config, HardwareConfig
from glmexp.train.ranks import Ranks

DTYPES = {Dtype.bf16: torch.bfloat16, Dtype.fp16: torch.float16, Dtype.fp32: torch.float32}
GIB = 2**30


def choose(device: Device, ranks: Ranks) -> torch.device:
    """The device of this rank; sets DS_ACCELERATOR=cpu on the CPU so that DeepSpeed agrees.

    A parent that placed the run on the CPU has set DS_ACCELERATOR=cpu itself.

    Raises:
        UserError: a GPU is wanted, and this PyTorch cannot use one.
    """
    on_cpu = device is Device.cpu or os.environ.get("DS_ACCELERATOR") == "cpu"
    started_by_parent = "GLMEXP_PARENT_PID" in os.environ
    if not on_cpu and not torch.cuda.is_available():
        if device is Device.gpu or started_by_parent:
            raise UserError(
                f"launch.device={device.value}: PyTorch {torch.__version__} cannot use a GPU here\n"
                "install a CUDA build of PyTorch that fits the driver, or set launch.device=cpu"
            )
        on_cpu = True
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
        return torch.device("cpu")
    chosen = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    name_gpus_by_uuid()
    return chosen


def name_gpus_by_uuid(environ: Mapping[str, str] = os.environ) -> None:
    """Lets DeepSpeed live with a CUDA_VISIBLE_DEVICES of UUIDs, as MIG slices and the trials of a sweep have it.

    Its CUDA accelerator takes every entry for a number when it asks NVML for the free memory (``_get_nvml_gpu_id`` in
    deepspeed/accelerator/cuda_accelerator.py), which stages 1 and 2 do at their start. CUDA itself tells the same.
    """
    entries = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(entry.strip().isdecimal() for entry in entries if entry):
        return
    from deepspeed.accelerator import get_accelerator

    get_accelerator().available_memory = lambda device_index=None: torch.cuda.mem_get_info(device_index)[0]


def cap_memory(hardware: HardwareConfig, device: torch.device) -> None:
    """``hardware.emulate``: keeps this process within ``hardware.gpu_memory_gib`` of a larger card."""
    if not hardware.emulate or hardware.gpu_memory_gib is None or device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(hardware.gpu_memory_gib * GIB / total, 1.0), device)


def describe(device: torch.device) -> str:
    """The device for the log, with the PCI bus id by which ``nvidia-smi`` knows a GPU."""
    if device.type != "cuda":
        return f"CPU, {torch.get_num_threads()} threads"
    found = torch.cuda.get_device_properties(device)
    # Absent from older PyTorch, and from the stubs of newer ones.
    domain, bus, slot = (getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    place = "" if bus is None or slot is None else f", PCI {domain or 0:04x}:{bus:02x}:{slot:02x}"
    return f"{device} {found.name}{place}, {found.total_memory / GIB:.1f} GiB, CUDA_VISIBLE_DEVICES={visible}"


def start_process_group(config: Config, device: torch.device) -> None:
    """Joins the run's process group: NCCL on GPUs, gloo on the CPU, with ``launch.collective_timeout_minutes``.

    Raises:
        UserError: the rendezvous port is taken.
    """
    import deepspeed
    import deepspeed.ops

    # Without this DeepSpeed compiles its shared-memory collectives (a minute and a half) for any run on the CPU.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    timeout = timedelta(minutes=config.launch.collective_timeout_minutes)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timeout)
    except RuntimeError as error:
        if re.search("EADDRINUSE|address already in use", str(error), re.IGNORECASE):
            port = os.environ.get("MASTER_PORT")
            raise UserError(
                f"the rendezvous port {port} (MASTER_PORT) is taken by another process\n"
                "torchrun --master_port, deepspeed --master_port or MASTER_PORT under srun choose another"
            ) from error
        raise
    deepspeed.init_distributed(dist_backend=backend, timeout=timeout, auto_mpi_discovery=False, verbose=False)


def synchronize(device: torch.device) -> None:
    """Waits for the work queued on ``device``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def all_reduced(values: list[float], device: torch.device, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> list[float]:
    """The values summed (or another ``op``) over all ranks, in fp64."""
    if dist.get_world_size() == 1:
        return values
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, op=op)
    return [float(number) for number in numbers.tolist()]
