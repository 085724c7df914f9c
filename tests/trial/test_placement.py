"""Device, ranks and precision for a machine and a launcher."""

from dataclasses import replace

import pytest

from glmexp.config import UserError, compose
from glmexp.dsconfig import Machine
from glmexp.trial.machine import Gpu, Probe
from glmexp.trial.placement import resolve
from tests.trial.test_launcher import DEEPSPEED, SRUN, TORCHRUN

NONE = Probe((), "no NVIDIA driver answers", 64.0, 8, "a processor")
H200 = Gpu(0, "NVIDIA H200", 139.8, (9, 0), "GPU-aa", "00000000:18:00.0")
TWO = replace(NONE, gpus=(H200, replace(H200, index=1, uuid="GPU-bb", bus_id="00000000:2A:00.0")), gpu_problem=None)
OLD = replace(NONE, gpus=(replace(H200, name="Tesla V100", capability=(7, 0)),), gpu_problem=None)


def config(*overrides):
    return compose(["model=tiny", *overrides]).config


@pytest.mark.parametrize(
    ("overrides", "found", "machine"),
    [
        ([], NONE, Machine(1, "cpu")),
        ([], TWO, Machine(2, "gpu")),
        (["launch.ranks=1"], TWO, Machine(1, "gpu")),
        (["launch.device=cpu"], TWO, Machine(1, "cpu")),
        (["launch.ranks=3"], NONE, Machine(3, "cpu")),
    ],
)
def test_what_there_is_decides(overrides, found, machine):
    placement = resolve(config(*overrides), {"RANK": "4"}, found)
    assert placement.machine == machine
    assert placement.first_rank == 0
    assert placement.port is None


@pytest.mark.parametrize(
    ("overrides", "found", "environ", "words"),
    [
        (["launch.device=gpu"], NONE, {}, ["launch.device=gpu", "no NVIDIA driver", "launch.device=cpu"]),
        (
            ["launch.ranks=4"],
            TWO,
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            ["4 ranks", "2 GPU", "CUDA_VISIBLE_DEVICES=0,1", "launch.ranks=2"],
        ),
        (["precision=fp16"], NONE, {}, ["precision=fp16", "precision=bf16", "precision=fp32"]),
        ([], OLD, {}, ["precision=bf16", "Tesla V100", "7.0", "precision=fp16", "precision=fp32"]),
        (["precision=autocast"], OLD, {}, ["precision=autocast", "Tesla V100", "precision=fp32"]),
        (
            ["zero=stage3", "zero.zero_quantized_weights=true"],
            NONE,
            {},
            ["zero.zero_quantized_weights=true does not run on the CPU", "run on a GPU"],
        ),
        (
            ["zero=stage3", "zero.zero_quantized_gradients=true"],
            TWO,
            {},
            ["zero.zero_quantized_gradients=true has no effect on one node", "several nodes"],
        ),
        (["zero=stage3", "offload=super_offload"], NONE, {}, ["offload=super_offload does not run on the CPU", "offload=cpu"]),
        (["kernels=deepcompile"], NONE, {}, ["kernels=deepcompile does not run on the CPU", "kernels=eager"]),
        (
            ["zero=stage3", "offload=nvme", "offload.nvme_path=/not/there"],
            NONE,
            {},
            ["offload.nvme_path=/not/there is no folder here"],
        ),
        (["launch.nodes=2"], NONE, {}, ["launch.nodes=2", "torchrun --nnodes 2", "srun"]),
        (["launch.nodes=3"], NONE, TORCHRUN, ["launch.nodes=3", "torchrun has started 2"]),
        (["launch.ranks=2"], NONE, TORCHRUN, ["launch.ranks=2", "torchrun has started 4"]),
        (["launch.ranks=2"], NONE, {**DEEPSPEED, "LOCAL_SIZE": "1"}, ["launch.ranks=2", "deepspeed has started 1"]),
        (["launch.backend=torchrun"], NONE, TORCHRUN, ["launch.backend=torchrun", "spawn"]),
        ([], TWO, TORCHRUN, ["4 ranks", "2 GPU", "torchrun"]),
    ],
)
def test_what_is_not_there_is_refused(overrides, found, environ, words):
    with pytest.raises(UserError) as told:
        resolve(config(*overrides), environ, found)
    assert all(word in str(told.value) for word in words), told.value
    assert len(str(told.value).splitlines()) <= 6


def test_a_verb_that_starts_nothing_takes_what_is_set():
    placement = resolve(
        config("launch.device=gpu", "launch.ranks=4", "zero=stage1", "precision=fp16"), {}, NONE, launching=False
    )
    assert placement.machine == Machine(4, "gpu")
    assert resolve(config("launch.nodes=2", "launch.ranks=4"), {}, NONE, launching=False).machine.world_size == 8


def test_ranks_under_launchers():
    torchrun = resolve(config("launch.device=cpu"), TORCHRUN, NONE)
    assert (torchrun.machine.world_size, torchrun.ranks, torchrun.first_rank, torchrun.node, torchrun.port) == (
        8,
        4,
        4,
        1,
        29500,
    )
    uneven = resolve(config(), {**SRUN, "SLURM_LOCALID": "0", "SLURM_PROCID": "2"}, NONE)
    assert (uneven.machine.world_size, uneven.first_rank) == (2, 1), "one task on this node: it counts its ranks itself"


def test_srun_with_a_task_a_node_leaves_the_ranks_to_us():
    step = {**SRUN, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    placement = resolve(config(), step, TWO)
    assert (placement.machine, placement.ranks, placement.first_rank, placement.nodes) == (Machine(4, "gpu"), 2, 2, 2)
    assert resolve(config("launch.ranks=1"), step, TWO).machine.world_size == 2


def test_each_rank_names_its_device():
    lines = resolve(config(), {}, TWO).lines("2,3")
    assert len(lines) == 2
    assert lines[1].startswith("rank 1 -> cuda:1 NVIDIA H200")
    assert "00000000:2A:00.0" in lines[1]
    assert lines[1].endswith("=2,3")
    assert resolve(config(), {}, NONE).lines(None) == ["rank 0 -> CPU, a processor, 8 cores"]


def test_a_torch_without_cuda_beside_a_gpu_is_told():
    blind = replace(NONE, gpu_problem="torch 2.13.0+cpu is a build without CUDA")
    assert "although this machine has a GPU" in resolve(config(), {}, blind).notes[0]
    assert resolve(config("launch.device=cpu"), {}, blind).notes == [] == resolve(config(), {}, NONE).notes
