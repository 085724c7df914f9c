"""What ``doctor`` makes of GPUs, memory, limits, disks and the ranks' all-reduce."""

import re
import resource

import pytest

from glmexp.trial.doctor import hardware
from glmexp.trial.machine import GpuUse
from tests.trial.test_doctor_checks import H200, P100, holds, room


def test_gpus():
    holds(hardware.gpu(H200, GpuUse(0.6, ())), "ok", "NVIDIA H200, 140.4 GiB, compute capability 9.0, bf16")
    holds(hardware.gpu(H200, None), "ok")
    holds(hardware.gpu(H200, GpuUse(5.2, (684,))), "warn", "5.2 GiB in use by process 684", "CUDA_VISIBLE_DEVICES")
    holds(hardware.gpu(H200, GpuUse(100.0, ())), "warn", "100.0 GiB in use")
    holds(hardware.gpu(P100, None), "warn", "no bf16", "precision=fp16")
    holds(hardware.peers([(0, 1)], 2), "ok", "0-1", "through host memory")
    holds(hardware.peers([], 2), "ok", "all 2 GPUs")


def test_memory_and_limits():
    assert hardware.available_gib("MemTotal: 9 kB\nMemAvailable:    2097152 kB\n") == 2.0
    holds(hardware.host_memory(64.0, 60.0), "ok", "60.0 GiB available")
    holds(hardware.host_memory(64.0, 2.0), "warn", "end other programs")
    holds(hardware.shared_memory(room("/dev/shm", 0.06), 1), "ok")
    holds(hardware.shared_memory(room("/dev/shm", 0.06), 2), "warn", "--shm-size")
    holds(hardware.open_files(256), "warn", "ulimit -n")
    holds(hardware.open_files(resource.RLIM_INFINITY), "ok", "unlimited")


@pytest.mark.parametrize(
    ("limit", "trial", "gpus", "nvme", "state", "word"),
    [
        (resource.RLIM_INFINITY, None, 0, True, "ok", "unlimited"),
        (8 * 2**20, None, 0, False, "ok", "8192 KiB"),
        (8 * 2**20, None, 0, True, "warn", "memlock=-1"),
        (8 * 2**20, None, 1, False, "ok", "64 MiB pinned"),
        (resource.RLIM_INFINITY, "CUDA error: out of memory", 1, False, "warn", "offload.pin_memory=false"),
        (8 * 2**20, "torch is missing", 0, False, "ok", "8192 KiB"),  # nothing to pin for
    ],
)
def test_pinned_memory(limit, trial, gpus, nvme, state, word):
    holds(hardware.pinned_memory(limit, trial, gpus, nvme), state, word)


def test_a_capability_lifts_the_limit():
    assert hardware.lockable(1024, "CapPrm:\t0\nCapEff:\t0000000000004000\n") == resource.RLIM_INFINITY
    assert hardware.lockable(1024, "CapEff:\t000001ffffffbfff\n") == 1024
    assert hardware.lockable(1024, "") == 1024


def test_places(tmp_path):
    found = hardware.space(tmp_path / "not" / "yet")
    assert (found.folder, found.writable) == (tmp_path / "not" / "yet", True)
    assert found.free_gib > 0
    (tmp_path / "file").touch()
    assert not hardware.space(tmp_path / "file" / "below").writable
    holds(hardware.outputs(room()), "ok", "100 GiB free")
    holds(hardware.outputs(room(free=1)), "warn", "hydra.run.dir")
    holds(hardware.outputs(room(writable=False)), "fail", "cannot be written to")
    holds(hardware.extension_cache(room()), "ok")
    for bad in (room(writable=False), room(executable=False), room(free=0.1)):
        holds(hardware.extension_cache(bad), "warn", "TORCH_EXTENSIONS_DIR")


def test_nvme_devices(tmp_path):
    for folder in ("sys/block", "proc", "fast", "data", "dev/mapper"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/mounts").write_text("overlay / overlay rw 0 0\n")
    holds(hardware.nvme(tmp_path), "ok", "none here")
    for name in ("nvme0n1", "nvme1n1", "nvme2n1", "nvme2c0n1", "dm-3/slaves/nvme1n1p2"):
        (tmp_path / "sys/block" / name).mkdir(parents=True)
    (tmp_path / "dev/mapper/group-data").symlink_to("../dm-3")
    (tmp_path / "hosts").touch()
    mounts = [
        "/dev/nvme0n1p1 /hosts ext4 rw 0 0",
        "/dev/nvme0n1p1 /fast ext4 rw 0 0",
        "/dev/mapper/group-data /data xfs rw 0 0",
    ]
    (tmp_path / "proc/mounts").write_text("\n".join(mounts))
    text = re.sub(r" \(\d+ GiB free\)", "", hardware.nvme(tmp_path).finding)
    assert text == "nvme0n1 at /fast; nvme1n1 at /data; nvme2n1 not mounted"


def test_the_all_reduce():
    well = {"backend": "nccl", "error": None}
    holds(hardware.collective([well, well], "", "gpu"), "ok", "NCCL all-reduce over 2 GPU ranks")
    closed = {"backend": "nccl", "error": "Connection closed by peer"}
    broken = {"backend": "nccl", "error": "no socket interface found"}
    holds(hardware.collective([closed, broken], "", "gpu"), "fail", "rank 1: no socket interface found", "NCCL_P2P_DISABLE=1")
    holds(hardware.collective([well, None], "no answer within 40 s", "cpu"), "fail", "gloo", "rank 1: no answer within 40 s")
    holds(hardware.collective([closed, None], "on signal 11", "cpu"), "fail", "on signal 11")
    holds(hardware.loopback(True), "ok")
    holds(hardware.loopback(False), "fail", "ip link set lo up")
