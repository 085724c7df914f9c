"""Command lines and environments of the ranks."""

import os
import socket
from dataclasses import replace

import pytest

from glmexp.config.choices import Backend
from glmexp.dsconfig import Machine
from glmexp.trial.commands import commands, free_port, plain_architectures, rank_environment
from glmexp.trial.launcher import detect
from glmexp.trial.machine import Gpu
from glmexp.trial.placement import Placement
from tests.trial.test_launcher import TORCHRUN

CPU = Placement(Machine(2, "cpu"), ranks=2, cpus=8)
GPU = replace(CPU, machine=Machine(2, "gpu"), gpus=tuple(Gpu(i, "H200", 140.0, (9, 0), f"GPU-{i}", "0") for i in (2, 3)))


def environment(placement=CPU, **environ):
    return rank_environment(environ, placement, "tag", 4711)


@pytest.mark.parametrize(
    ("listed", "plain"),
    [
        ("9.0a", "9.0"),
        ("8.0;9.0a", "8.0;9.0"),
        ("9.0 9.0a", "9.0"),
        ("10.0f+PTX", "10.0+PTX"),
        ("8.0;8.6+PTX", "8.0;8.6+PTX"),
        ("Hopper", "Hopper"),
    ],
)
def test_architectures_that_deepspeed_can_read(listed, plain):
    assert plain_architectures(listed) == plain


def test_a_changed_architecture_is_told_once():
    child, notes = environment(TORCH_CUDA_ARCH_LIST="9.0a")
    assert child["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert len(notes) == 1
    assert "9.0a" in notes[0]
    assert environment(TORCH_CUDA_ARCH_LIST="9.0")[1] == []


def test_what_ranks_find():
    child, _ = environment(PATH="/bin", RANK="3", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1", MY_SECRET="xxxxxxx")
    assert child["OMP_NUM_THREADS"] == "4"
    assert child["DS_ACCELERATOR"] == "cpu"
    assert child["PATH"] == "/bin"
    assert not {"RANK", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "MY_SECRET", "CUDA_VISIBLE_DEVICES"} & set(child)
    kept, _ = environment(GPU, OMP_NUM_THREADS="3", CUDA_VISIBLE_DEVICES="2,3")
    assert (kept["OMP_NUM_THREADS"], kept["DS_ACCELERATOR"], kept["CUDA_VISIBLE_DEVICES"]) == ("3", "cuda", "2,3")


def test_under_a_launcher_its_rendezvous_is_kept():
    placement = replace(
        CPU, first_rank=4, address="gpu1", port=29500, outer=detect(TORCHRUN), machine=Machine(8, "cpu"), nodes=2
    )
    child, _ = rank_environment({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, placement, "tag", 1)
    ranks = commands(placement, Backend.spawn, "folder", child)
    assert [command.rank for command in ranks] == [4, 5]
    second = ranks[1].environ
    assert [second[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["5", "1", "8", "2"]
    assert (second["MASTER_ADDR"], second["MASTER_PORT"], second["TORCHELASTIC_USE_AGENT_STORE"]) == ("gpu1", "29500", "True")
    assert "GLOO_SOCKET_IFNAME" not in second


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [("5,3,1", "--include=localhost:5,3"), ("GPU-2,GPU-3", "--include=localhost:2,3"), (None, "--num_gpus=2")],
)
def test_the_deepspeed_launcher_is_told_which_gpus(visible, wanted):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    (command,) = commands(GPU, Backend.deepspeed, "folder", environ)
    assert wanted in command.arguments
    assert command.rank is None
    assert f"--hostfile={os.devnull}" in command.arguments


def test_a_free_port_can_be_bound():
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", ports.pop()))
