"""Whether an outer launcher (torchrun, deepspeed, srun) started us, and what it says of the other processes."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Name = Literal["torchrun", "deepspeed", "srun"]

LOCAL_RANK_ARGUMENT = re.compile(r"--local[_-]rank(=-?\d+)?")
SLURM_STEP_RESERVED = 0xFFFFFFF0
"""Steps numbered from here on are Slurm's own (batch script, interactive shell, extern), not the user's srun."""

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OTHER_VARIABLES = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "CROSS_RANK",
    "CROSS_SIZE",
)
"""What launchers set besides; left over in a shell it would mislead a rank."""


@dataclass(frozen=True)
class Outer:
    """One process of an outer launcher."""

    name: Name
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    """Processes that the launcher started on this node."""
    node: int
    nodes: int
    address: str
    port: int | None
    """Rendezvous port; None where the launcher has none of its own and this is its only node."""
    job: str
    """Names this launch among all on this node."""


def detect(environ: Mapping[str, str]) -> Outer | None:
    """The launcher that started this process, or None.

    Only a whole set of variables counts: neither a RANK left over in a shell nor a Slurm allocation without srun does.
    """
    return _torchrun(environ) or _deepspeed(environ) or _srun(environ)


def _numbers(environ: Mapping[str, str], *names: str) -> list[int] | None:
    """The values as whole numbers, or None if one is missing or something else."""
    values = [environ.get(name, "") for name in names]
    return [int(value) for value in values] if all(value.isdecimal() for value in values) else None


def _torchrun(environ: Mapping[str, str]) -> Outer | None:
    # https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"
    numbers = _numbers(environ, *RANK_VARIABLES[:4], "MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE")
    if numbers is None or not environ.get("TORCHELASTIC_RUN_ID") or not environ.get("MASTER_ADDR"):
        return None
    rank, local_rank, world_size, local_world_size, port, node, nodes = numbers
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job = f"{environ['TORCHELASTIC_RUN_ID']}-{port}-{restarts}-{node}"
    return Outer("torchrun", rank, local_rank, world_size, local_world_size, node, nodes, environ["MASTER_ADDR"], port, job)


def _deepspeed(environ: Mapping[str, str]) -> Outer | None:
    # deepspeed/launcher/launch.py sets these for each process.
    numbers = _numbers(environ, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_PORT", "CROSS_RANK", "CROSS_SIZE")
    if numbers is None or not environ.get("MASTER_ADDR"):
        return None
    rank, local_rank, world_size, local_world_size, port, node, nodes = numbers
    job = f"{environ['MASTER_ADDR']}-{port}-{node}"
    return Outer("deepspeed", rank, local_rank, world_size, local_world_size, node, nodes, environ["MASTER_ADDR"], port, job)


def _srun(environ: Mapping[str, str]) -> Outer | None:
    # https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"
    names = "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"
    numbers = _numbers(environ, *names)
    if numbers is None:
        return None
    job_id, step, rank, local_rank, node = numbers
    tasks = _numbers(environ, "SLURM_STEP_NUM_TASKS") or _numbers(environ, "SLURM_NTASKS")
    nodes = _numbers(environ, "SLURM_STEP_NUM_NODES") or _numbers(environ, "SLURM_NNODES")
    if step >= SLURM_STEP_RESERVED or not tasks or not nodes:
        return None
    counts = tasks_of_nodes(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "")
    here = counts[node] if len(counts) == nodes[0] else -(-tasks[0] // nodes[0])
    address, port = _slurm_rendezvous(environ, nodes[0], job_id, step)
    return Outer("srun", rank, local_rank, tasks[0], here, node, nodes[0], address, port, f"{job_id}-{step}-{node}")


def _slurm_rendezvous(environ: Mapping[str, str], nodes: int, job_id: int, step: int) -> tuple[str, int | None]:
    """Address and port of rank 0: as exported, else the step's first node and a port that all tasks work out alike."""
    exported = _numbers(environ, "MASTER_PORT")
    port = exported[0] if exported else 20000 + zlib.crc32(f"{job_id}.{step}".encode()) % 10000
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"], port
    if nodes == 1:
        return "127.0.0.1", exported[0] if exported else None
    # SLURM_LAUNCH_NODE_IPADDR is where srun was typed, which may be a login node that runs no task: the last resort.
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return first_host(listed) or environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"), port


def first_host(listed: str) -> str:
    """The first host of a Slurm host list: ``gpu[07-09,12],cpu1`` gives ``gpu07``."""
    head = re.match(r"((?:[^,\[]|\[[^\]]*\])*)", listed)
    assert head is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", head[1])


def tasks_of_nodes(listed: str) -> list[int]:
    """Tasks of each node from Slurm's short form: ``2(x3),1`` gives 2, 2, 2, 1; an empty list if unreadable."""
    counts: list[int] = []
    for part in listed.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not found:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def without_local_rank(arguments: Sequence[str]) -> list[str]:
    """The command line without ``--local_rank=N``, which the deepspeed launcher and the old torch launcher add."""
    kept: list[str] = []
    drop_value = False
    for argument in arguments:
        if drop_value and re.fullmatch(r"-?\d+", argument):
            drop_value = False
            continue
        drop_value = False
        found = LOCAL_RANK_ARGUMENT.fullmatch(argument)
        if found:
            drop_value = found[1] is None
        else:
            kept.append(argument)
    return kept


def refusal_of_multirun(outer: Outer) -> str:
    """The words that refuse ``--multirun`` under a launcher, with the form to use."""
    return (
        f"--multirun under {outer.name}: a sweep starts fresh processes for every trial itself.\n"
        f"Run `python -m glmexp --multirun ...` without {outer.name}; "
        f"launch.ranks={outer.local_world_size} gives the number of processes."
    )


def cleaned(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a launcher, alive or long gone, has set for its own ranks."""
    gone = {*RANK_VARIABLES, *OTHER_VARIABLES, "LOCAL_SIZE"}
    return {name: value for name, value in environ.items() if name not in gone and not name.startswith("TORCHELASTIC_")}
