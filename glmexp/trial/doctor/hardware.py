"""GPUs, memory, limits, disks, and whether the ranks of a run reach one another."""

import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmexp.trial.doctor.diagnosis import Diagnosis, fail, ok, warn
from glmexp.trial.machine import GIB, Gpu, GpuUse

BF16_CAPABILITY = (8, 0)
CAP_IPC_LOCK = 14
"""Its bit in a mask of capabilities (linux/capability.h)."""


@dataclass(frozen=True)
class Space:
    """A folder that may not be there yet, by the file system that it would be on."""

    folder: Path
    free_gib: float
    writable: bool
    executable: bool
    """Whether code may be loaded from there: not on a file system that is mounted noexec."""


def space(folder: Path) -> Space:
    """Raises OSError if not even a folder above can be looked at."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    found = os.statvfs(there)
    return Space(
        folder=folder,
        free_gib=found.f_bavail * found.f_frsize / GIB,
        writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK) and not found.f_flag & os.ST_RDONLY,
        executable=not found.f_flag & os.ST_NOEXEC,
    )


def gpu(found: Gpu, use: GpuUse | None) -> Diagnosis:
    """Args: ``use``: what is in use before a run, None if NVML does not tell."""
    major, minor = found.capability
    bf16 = found.capability >= BF16_CAPABILITY
    text = f"{found.name}, {found.memory_gib:.1f} GiB, compute capability {major}.{minor}, {'' if bf16 else 'no '}bf16"
    if use is not None and (use.pids or use.used_gib > 2):
        by = f" by process {', '.join(map(str, use.pids))}" if use.pids else ""
        return warn(
            f"{text}; {use.used_gib:.1f} GiB in use{by}", "end what uses it, or choose other GPUs with CUDA_VISIBLE_DEVICES"
        )
    if not bf16:
        return warn(text, "precision=fp16 (the default bf16 is refused on this GPU)")
    return ok(text)


def peers(missing: Sequence[Sequence[int]], gpus: int) -> Diagnosis:
    """Args: ``missing``: pairs of GPUs that cannot read each other's memory."""
    if gpus < 2:
        return ok("fewer than two GPUs: nothing to exchange")
    if not missing:
        return ok(f"all {gpus} GPUs read each other's memory")
    pairs = ", ".join(f"{a}-{b}" for a, b in missing)
    return ok(f"no direct access between GPUs {pairs}: NCCL goes through host memory, which is slower")


def host_memory(limit_gib: float, available_gib: float) -> Diagnosis:
    """Args: ``limit_gib``: physical memory or the cgroup's limit; ``available_gib``: what the kernel would hand out now."""
    text = f"{limit_gib:.1f} GiB for this process (cgroups heeded), {min(limit_gib, available_gib):.1f} GiB available"
    if available_gib < 4:
        return warn(text, "end other programs: a small run takes 2 GiB, offload=cpu 18 bytes a parameter over all ranks")
    return ok(text)


def available_gib(meminfo: str) -> float:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) / 1024**2 if found else float("inf")


def shared_memory(found: Space, gpus: int) -> Diagnosis:
    """/dev/shm, through which NCCL moves what cannot go from GPU to GPU."""
    text = f"{found.folder}: {found.free_gib:.1f} GiB free"
    if gpus > 1 and found.free_gib < 1:
        return warn(
            f"{text}; NCCL needs some for several GPUs",
            "mount -o remount,size=8G /dev/shm, or docker run --shm-size=8g",
        )
    return ok(text)


def pinned_memory(limit: int, trial: str | None, gpus: int, nvme_possible: bool) -> Diagnosis:
    """Page-locked host memory: for copies to and from a GPU, and for DeepSpeed's async I/O.

    The latter locks buffers of a whole tensor with ``mlock`` and ends the process if it may not (ds_page_aligned_alloc,
    deepspeed/ops/csrc/pin_memory/page_alloc.cpp).

    Args:
        limit: bytes that ``mlock`` may lock: see ``lockable``.
        trial: what went wrong as 64 MiB were pinned for a GPU, or None.
        nvme_possible: whether async I/O is built or could be.
    """
    unlimited = limit == resource.RLIM_INFINITY
    text = f"ulimit -l {'unlimited' if unlimited else f'{limit // 1024} KiB'}"
    if gpus and trial is not None:
        return warn(f"{text}; 64 MiB could not be pinned: {trial}", "use offload.pin_memory=false with offload=cpu")
    if gpus:
        text += "; 64 MiB pinned for the GPU"
    if not unlimited and limit < GIB and nvme_possible:
        return warn(
            f"{text}; offload=nvme locks buffers of a whole tensor", "ulimit -l unlimited (docker run --ulimit memlock=-1)"
        )
    return ok(text)


def lockable(soft: int, status: str) -> int:
    """Bytes that this process may lock: ``ulimit -l``, which CAP_IPC_LOCK lifts. ``status``: /proc/self/status."""
    capabilities = re.search(r"^CapEff:\s+([0-9a-f]+)", status, re.MULTILINE)
    lifted = capabilities is not None and int(capabilities[1], 16) >> CAP_IPC_LOCK & 1
    return resource.RLIM_INFINITY if lifted else soft


def open_files(soft: int) -> Diagnosis:
    if soft != resource.RLIM_INFINITY and soft < 1024:
        return warn(f"ulimit -n {soft}: a run opens hundreds of files and sockets", "ulimit -n 4096")
    return ok(f"ulimit -n {'unlimited' if soft == resource.RLIM_INFINITY else soft}")


def outputs(found: Space) -> Diagnosis:
    text = f"{found.folder}: {found.free_gib:.0f} GiB free"
    if not found.writable:
        return fail(f"{text}; it cannot be written to", "call glmexp from a folder of your own, or set hydra.run.dir")
    if found.free_gib < 20:
        return warn(
            f"{text}; the weights of ChatGLM2-6B alone take 12.5 GB", "make room, or set hydra.run.dir to a larger disk"
        )
    return ok(text)


def extension_cache(found: Space) -> Diagnosis:
    """Where torch keeps the ops that it has built."""
    text = f"{found.folder}: {found.free_gib:.0f} GiB free"
    move = "set TORCH_EXTENSIONS_DIR to a folder on another disk"
    if not found.writable:
        return warn(f"{text}; it cannot be written to, so no op is built", move)
    if not found.executable:
        return warn(f"{text}; mounted noexec, so no op can be loaded from it", move)
    if found.free_gib < 1:
        return warn(f"{text}; a build takes some 100 MB", move)
    return ok(text)


def nvme(root: Path = Path("/")) -> Diagnosis:
    """NVMe devices and where they are mounted, through device mapper too."""
    devices = sorted(path.name for path in (root / "sys/block").glob("nvme*") if re.fullmatch(r"nvme\d+n\d+", path.name))
    if not devices:
        return ok("none here; offload=nvme also runs on another disk, as slowly as that is")
    places = _mounts(root, (root / "proc/mounts").read_text(encoding="utf-8", errors="replace"))
    shown = []
    for device in devices:
        mounted = [point for point, disks in places if device in disks]
        free = f" ({space(root / mounted[0].lstrip('/')).free_gib:.0f} GiB free)" if mounted else ""
        shown.append(f"{device} {'at ' + mounted[0] + free if mounted else 'not mounted'}")
    return ok("; ".join(shown))


def _mounts(root: Path, text: str) -> list[tuple[str, set[str]]]:
    """Mount points, the shortest path first, with the names of the disks below each."""
    found = []
    for line in text.splitlines():
        source, point, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        # A container shows single files of the host's disk, such as /etc/hosts, as mounts of their own.
        if source.startswith("/dev/") and (root / point.lstrip("/")).is_dir():
            name = (root / source.lstrip("/")).resolve().name
            slaves = [path.name for path in (root / "sys/block" / name / "slaves").glob("*")]
            found.append((point, {re.sub(r"p\d+$", "", disk) for disk in (name, *slaves)}))
    return sorted(found, key=lambda mount: len(mount[0]))


def loopback(answers: bool) -> Diagnosis:
    if answers:
        return ok("127.0.0.1 answers")
    return fail("127.0.0.1 does not answer, and the ranks of a run meet there", "ip link set lo up")


def collective(ranks: Sequence[Mapping[str, Any] | None], trouble: str, device: str) -> Diagnosis:
    """An all-reduce over as many ranks as a run would have.

    Args:
        ranks: per rank its backend, or its error; None for one that has told nothing.
        trouble: why some have told nothing.
    """
    backend = "NCCL" if device == "gpu" else "gloo"
    what = f"{len(ranks)} {'GPU' if device == 'gpu' else 'CPU'} rank{'s' if len(ranks) > 1 else ''}"
    wrong = {rank: told["error"] if told else trouble for rank, told in enumerate(ranks) if not told or told["error"]}
    if not wrong:
        return ok(f"{backend} all-reduce over {what}")
    # A rank that has lost its peer knows least about the reason, and one that was silent less than one that spoke.
    rank = min(wrong, key=lambda rank: ("onnect" in wrong[rank], ranks[rank] is None))
    reason = f"rank {rank}: {wrong[rank]}"
    if device == "gpu":
        move = "call doctor with NCCL_P2P_DISABLE=1, then with NCCL_SHM_DISABLE=1: what helps names the broken path"
    else:
        move = "see loopback above; a firewall or GLOO_SOCKET_IFNAME may keep the ranks apart"
    return fail(f"{backend} all-reduce over {what} failed; {reason}", move)
