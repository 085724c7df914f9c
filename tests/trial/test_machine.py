"""The probe, on made-up machines."""

import os
import sys
from types import SimpleNamespace

import pytest

from glmexp.trial import machine
from glmexp.trial.machine import Gpu, choose, cpu_count, host_memory_gib, oom_kills, probe, visible_gpus

GPUS = tuple(Gpu(index, "NVIDIA H200", 140.0, (9, 0), f"GPU-{letter * 4}", f"00:{index}") for index, letter in enumerate("abc"))


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("GPU-bb", [1]),
        ("GPU-", []),  # more than one begins so
        ("1,7,2", [1]),  # CUDA stops at the first entry that names nothing
        ("0,-1,1", [0]),
        ("1,1", []),
        ("x", []),
    ],
)
def test_cuda_visible_devices(visible, indices):
    assert [gpu.index for gpu in choose(GPUS, visible)] == indices


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_an_empty_list_hides_every_gpu(hidden):
    found, problem = visible_gpus({"CUDA_VISIBLE_DEVICES": hidden})
    assert found == ()
    assert problem is not None
    assert "hides every GPU" in problem


@pytest.fixture
def nvml(monkeypatch):
    """Two GPUs behind a made-up NVML, and a torch that can use them."""

    class NVMLError(Exception):
        pass

    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=141 * 2**30),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:{handle}8:00.0"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(machine, "torch_without_cuda", lambda: None)
    return fake


def test_gpus_are_read_through_nvml(nvml):
    gpus, problem = visible_gpus({})
    assert problem is None
    assert [gpu.bus_id for gpu in gpus] == ["00000000:08:00.0", "00000000:18:00.0"]
    assert (gpus[0].name, gpus[0].memory_gib, gpus[0].capability) == ("NVIDIA H200", 141.0, (9, 0))
    assert [gpu.uuid for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "1"})[0]] == ["GPU-1"]
    none, problem = visible_gpus({"CUDA_VISIBLE_DEVICES": "5"})
    assert none == ()
    assert problem is not None
    assert "names no GPU of the 2" in problem


def test_a_torch_that_cannot_use_them(nvml, monkeypatch):
    monkeypatch.setattr(machine, "torch_without_cuda", lambda: "2.13.0+cpu")
    assert visible_gpus({}) == ((), "torch 2.13.0+cpu is a build without CUDA")


def test_a_driver_that_does_not_answer(nvml):
    def broken():
        raise nvml.NVMLError("Driver/library version mismatch")

    nvml.nvmlInit = broken
    assert visible_gpus({})[1] == "no NVIDIA driver answers (Driver/library version mismatch)"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal:       33554432 kB\nMemFree: 1 kB\n"}


def test_memory_without_a_limit(tmp_path):
    write(tmp_path, {**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert host_memory_gib(tmp_path) == 32.0


def test_memory_under_cgroup_version_2(tmp_path):
    """The limit of an outer cgroup holds for the inner one."""
    limits = {"sys/fs/cgroup/job/memory.max": f"{8 * 2**30}\n", "sys/fs/cgroup/job/step/memory.max": "max\n"}
    write(tmp_path, {**MEMINFO, "proc/self/cgroup": "0::/job/step\n", **limits})
    assert host_memory_gib(tmp_path) == 8.0


def test_memory_under_cgroup_version_1(tmp_path):
    limit = {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * 2**30}\n"}
    write(tmp_path, {**MEMINFO, "proc/self/cgroup": "9:cpu,cpuacct:/\n4:memory:/job\n0::/\n", **limit})
    assert host_memory_gib(tmp_path) == 4.0


def test_memory_in_a_container_that_sees_the_hosts_path(tmp_path):
    limit = {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * 2**30}\n"}
    write(tmp_path, {**MEMINFO, "proc/self/cgroup": "4:memory:/docker/0123\n", **limit})
    assert host_memory_gib(tmp_path) == 2.0


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", None)])
def test_cores_under_a_quota(tmp_path, quota, cores):
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota}\n"})
    allowed = len(os.sched_getaffinity(0))
    assert cpu_count(tmp_path) == (allowed if cores is None else min(allowed, cores))


def test_the_kernels_kills_are_counted(tmp_path):
    write(
        tmp_path, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom 3\noom_kill 2\noom_group_kill 0\n"}
    )
    assert oom_kills(tmp_path) == 2
    write(tmp_path, {"proc/vmstat": "pgfault 5\noom_kill 4\n"})
    assert oom_kills(tmp_path) == 6
    assert oom_kills(tmp_path / "nothing") == 0


def test_this_machine_can_be_probed():
    found = probe({"CUDA_VISIBLE_DEVICES": ""})
    assert found.gpus == ()
    assert found.host_memory_gib > 0.1
    assert found.cpus >= 1
    assert found.cpu_name
