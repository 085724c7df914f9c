"""What this machine has: the only place of the parent that probes.

GPUs are read through NVML, so that neither torch nor a CUDA context is needed; host memory and cores respect cgroups.
"""

import importlib.util
import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3


@dataclass(frozen=True)
class Gpu:
    index: int
    """NVML's number, in the order of the PCI bus."""
    name: str
    memory_gib: float
    capability: tuple[int, int]
    """CUDA compute capability, such as (9, 0)."""
    uuid: str
    bus_id: str
    """PCI bus id, such as 00000000:18:00.0."""


@dataclass(frozen=True)
class GpuUse:
    """What is in use on one GPU."""

    used_gib: float
    """Memory that cannot be had, the driver's own share (about half a GiB) included."""
    pids: tuple[int, ...]
    """Processes with memory there; empty in a container that does not see them."""


@dataclass(frozen=True)
class Probe:
    """One look at the machine."""

    gpus: tuple[Gpu, ...]
    """Visible GPUs in the order that CUDA numbers them."""
    gpu_problem: str | None
    """Why there is no usable GPU, in words; None if there is one."""
    host_memory_gib: float
    """Physical memory, or the cgroup's limit if that is lower."""
    cpus: int
    """Cores that this process may use."""
    cpu_name: str


def probe(environ: Mapping[str, str]) -> Probe:
    """Looks at GPUs (as CUDA_VISIBLE_DEVICES lets them be seen), host memory and cores."""
    gpus, problem = visible_gpus(environ)
    return Probe(gpus, problem, host_memory_gib(), cpu_count(), cpu_name())


def visible_gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs that torch would see, or none and the reason."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return (), f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    gpus, problem = installed_gpus()
    if not gpus:
        return (), problem or "NVML finds no GPU"
    if (version := torch_without_cuda()) is not None:
        return (), f"torch {version} is a build without CUDA"
    if visible is None:
        return gpus, None
    chosen = choose(gpus, visible)
    return chosen, None if chosen else f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU of the {len(gpus)} here"


def choose(gpus: tuple[Gpu, ...], visible: str) -> tuple[Gpu, ...]:
    """CUDA_VISIBLE_DEVICES as CUDA reads it: indices or the beginnings of UUIDs.

    The first entry that names nothing ends the list; a GPU named twice leaves none visible.
    """
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if re.fullmatch(r"\d+", entry):
            found = [gpu for gpu in gpus if gpu.index == int(entry)]
        elif entry.startswith("GPU-"):
            found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        elif entry.startswith("MIG-"):
            found = [slice_ for slice_ in [_mig_device(entry)] if slice_ is not None]
        else:
            found = []
        if len(found) != 1:
            break
        if found[0] in chosen:
            return ()
        chosen += found
    return tuple(chosen)


def installed_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """All GPUs of the machine by NVML, or none and NVML's reason."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"no NVIDIA driver answers ({error})"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_describe(handle, index) for index, handle in enumerate(handles)), None
    except pynvml.NVMLError as error:
        return (), f"NVML cannot read a GPU ({error})"
    finally:
        pynvml.nvmlShutdown()


def _describe(handle: object, index: int, physical: object | None = None) -> Gpu:
    """Reads one device; ``physical`` is the whole GPU if ``handle`` is a MIG slice of it."""
    import pynvml

    whole = physical or handle
    return Gpu(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_gib=pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB,
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(whole)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        bus_id=_text(pynvml.nvmlDeviceGetPciInfo(whole).busId),
    )


def _mig_device(uuid: str) -> Gpu | None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        physical = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return _describe(handle, pynvml.nvmlDeviceGetIndex(physical), physical)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def gpu_use(gpu: Gpu) -> GpuUse | None:
    """What is in use on ``gpu`` now, or None if NVML does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode())
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return GpuUse(pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB, tuple(process.pid for process in processes))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def torch_without_cuda() -> str | None:
    """The version of an installed torch that was built without CUDA, read from its files; None otherwise."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"^__version__ = '([^']*)'", text, re.MULTILINE)
    without = re.search(r"^cuda\b[^=]*= None", text, re.MULTILINE)
    return version[1] if version and without else None


def host_memory_gib(root: Path = Path("/")) -> float:
    """Physical memory in GiB, or the lowest limit of the cgroups around this process (version 1 and 2)."""
    limits = [_total_memory(root)]
    for folder in cgroup_folders("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _read(folder / name).strip()
            if value.isdigit():
                limits.append(int(value))
    return min(limits) / GIB


def _total_memory(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """The cgroup folders of this process for one controller, the innermost first, up to the mount (version 1 and 2)."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controller, root / "sys/fs/cgroup" / controllers]
        else:
            continue
        for mount in mounts:
            inner = mount / path.lstrip("/")
            # In a container the path may be the host's, which is not mounted here: then the mount itself is the cgroup.
            folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount) and folder.is_dir()]
    return list(dict.fromkeys(folders))


def cpu_count(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, or the cgroup's quota (rounded up) if that is lower."""
    cores = len(os.sched_getaffinity(0))
    for folder in cgroup_folders("cpu", root):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def cpu_name(root: Path = Path("/")) -> str:
    """The processor's name, or the architecture where /proc does not tell."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def oom_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel has ended for lack of memory so far, in this cgroup and on the whole machine."""
    texts = [
        _read(folder / name)
        for folder in cgroup_folders("memory", root)[:1]
        for name in ("memory.events", "memory.oom_control")
    ]
    texts.append(_read(root / "proc/vmstat"))
    return sum(int(count) for text in texts for count in re.findall(r"^oom_kill (\d+)", text, re.MULTILINE))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def loopback_answers() -> bool:
    """Whether 127.0.0.1, where the ranks of one node meet, can be reached: not in a network namespace whose ``lo`` is down."""
    with socket.socket() as server:
        try:
            server.bind(("127.0.0.1", 0))
            server.listen()
            with socket.create_connection(server.getsockname(), timeout=5):
                return True
        except OSError:
            return False
