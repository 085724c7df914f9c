"""Which variables are a launcher, and which are left over."""

import pytest

from glmexp.trial.launcher import cleaned, detect, first_host, tasks_of_nodes, without_local_rank

TORCHRUN = {
    **{"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
    **{"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500"},
}
DEEPSPEED = {
    **{"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
SRUN = {
    **{"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
    **{"SLURM_NTASKS": "3", "SLURM_NNODES": "2", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_TASKS_PER_NODE": "2,1"},
    **{"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"},
}


def test_torchrun():
    outer = detect(TORCHRUN)
    assert outer is not None
    assert outer.name == "torchrun"
    assert (outer.rank, outer.local_rank, outer.world_size, outer.local_world_size) == (5, 1, 8, 4)
    assert (outer.node, outer.nodes, outer.address, outer.port) == (1, 2, "gpu1", 29500)


def test_deepspeed():
    outer = detect(DEEPSPEED)
    assert outer is not None
    assert (outer.name, outer.local_world_size, outer.nodes) == ("deepspeed", 2, 1)


def test_srun():
    outer = detect(SRUN)
    assert outer is not None
    assert (outer.name, outer.world_size, outer.local_world_size) == ("srun", 3, 1)
    # Where srun was typed may be a login node: rank 0 runs on the step's first node.
    assert outer.address == "gpu07"
    assert outer.port is not None
    assert 20000 <= outer.port < 30000
    other = detect({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert other is not None
    assert (other.address, other.port, other.local_world_size) == ("gpu07", outer.port, 2)
    exported = detect({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert exported is not None
    assert (exported.address, exported.port) == ("head", 1234)


def test_srun_on_one_node_needs_no_agreed_port():
    outer = detect({**SRUN, "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "3"})
    assert outer is not None
    assert (outer.address, outer.port, outer.local_world_size) == ("127.0.0.1", None, 3)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "3"},
        {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "MASTER_PORT": "1"},
        {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"},
        {**TORCHRUN, "LOCAL_RANK": ""},
        {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"},  # an sbatch script without srun
        {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFB)},  # its batch step
        {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA)},  # an interactive salloc shell
    ],
)
def test_less_than_a_whole_set_is_no_launcher(environ):
    assert detect(environ) is None


@pytest.mark.parametrize(
    ("listed", "host"),
    [
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("node1", "node1"),
        ("a[3,5]-ib,b", "a3-ib"),
        ("n1,n2", "n1"),
        ("r[1-2]n[4-5]", "r1n4"),
        ("", ""),
    ],
)
def test_first_host(listed, host):
    assert first_host(listed) == host


@pytest.mark.parametrize(("listed", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("x", [])])
def test_tasks_of_nodes(listed, counts):
    assert tasks_of_nodes(listed) == counts


def test_local_rank_arguments_are_dropped():
    given = ["--local_rank=0", "check", "--local-rank", "1", "zero=stage2", "--local_rank", "--cfg", "job"]
    assert without_local_rank(given) == ["check", "zero=stage2", "--cfg", "job"]


def test_a_launchers_variables_are_cleaned_away():
    left = cleaned(
        {**TORCHRUN, **DEEPSPEED, "TORCHELASTIC_USE_AGENT_STORE": "True", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}
    )
    assert left == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}
