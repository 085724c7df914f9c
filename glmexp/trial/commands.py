"""The command lines and environments that start the ranks of one node: directly, or through torchrun or deepspeed."""

import os
import random
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glmexp.config.choices import Backend
from glmexp.trial.launcher import cleaned
from glmexp.trial.orphan import TAG
from glmexp.trial.placement import Placement
from glmexp.trial.record import PARENT_PID
from glmexp.trial.redact import without_secrets

WORKER = "glmexp.train"
LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    environ: dict[str, str]
    rank: int | None
    """The rank that this command becomes; None for a launcher that starts all ranks of the node."""


def commands(
    placement: Placement, backend: Backend, folder: Path, environ: Mapping[str, str], worker: str = WORKER
) -> list[Command]:
    """One command a rank (``spawn``), or one that starts them all. ``environ`` comes from ``rank_environment``."""
    port = placement.port or free_port()
    if placement.outer is None and backend is Backend.torchrun:
        return [Command(_torchrun(placement, port, [worker, str(folder)]), dict(environ), None)]
    if placement.outer is None and backend is Backend.deepspeed:
        # DeepSpeed's launcher sets LOCAL_SIZE, but not the LOCAL_WORLD_SIZE that torchrun's users know.
        node = {"LOCAL_WORLD_SIZE": str(placement.ranks)}
        return [Command(_deepspeed(placement, port, [worker, str(folder)], environ), {**environ, **node}, None)]
    return [
        Command(
            [sys.executable, "-m", worker, str(folder)],
            {**environ, **_rank_variables(placement, local, port)},
            placement.first_rank + local,
        )
        for local in range(placement.ranks)
    ]


def _rank_variables(placement: Placement, local_rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(placement.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(placement.machine.world_size),
        "LOCAL_WORLD_SIZE": str(placement.ranks),
        "MASTER_ADDR": placement.address,
        "MASTER_PORT": str(port),
    }


def _torchrun(placement: Placement, port: int, target: list[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={placement.ranks}"),
        *(f"--master-addr={LOCALHOST}", f"--master-port={port}", "-m", *target),
    ]


def _deepspeed(placement: Placement, port: int, target: list[str], environ: Mapping[str, str]) -> list[str]:
    # A file that is none, so that a cluster's /job/hostfile does not turn a run on this node into one on many.
    runner = [sys.executable, "-m", "deepspeed.launcher.runner", f"--hostfile={os.devnull}", f"--master_port={port}"]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if placement.machine.device == "gpu" and visible:
        # This launcher sets CUDA_VISIBLE_DEVICES itself, to the first GPUs of the machine unless it is told which.
        entries = visible.split(",") if re.fullmatch(r"[\d,\s]+", visible) else [str(gpu.index) for gpu in placement.gpus]
        chosen = ",".join(entry.strip() for entry in entries[: placement.ranks])
        runner.append(f"--include=localhost:{chosen}")
    else:
        runner.append(f"--num_gpus={placement.ranks}")
    return [*runner, "--no_local_rank", "--module", *target]


def free_port() -> int:
    """A free TCP port below the range that the kernel gives to outgoing connections, one of which could take it meanwhile."""
    for _ in range(100):
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((LOCALHOST, port))
                return port
            except OSError:
                continue
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        return int(probe.getsockname()[1])


def rank_environment(
    environ: Mapping[str, str], placement: Placement, tag: str, parent: int
) -> tuple[dict[str, str], list[str]]:
    """What all ranks of a node find in their environment, and lines for the log about what was changed there."""
    # Under an outer launcher its variables stay, so that torchrun's ranks find the store that its agent keeps.
    kept = dict(environ) if placement.outer is not None else cleaned(environ)
    child = without_secrets(kept)
    notes = []
    archs = child.get("TORCH_CUDA_ARCH_LIST")
    if archs and (plain := plain_architectures(archs)) != archs:
        child["TORCH_CUDA_ARCH_LIST"] = plain
        notes.append(f"TORCH_CUDA_ARCH_LIST={archs} read as {plain}: DeepSpeed's op builder knows numbers only")
    package_root = str(Path(__file__).resolve().parents[2])
    # Last, so that it shadows nothing: it only matters where the working directory is all that makes glmexp importable.
    child["PYTHONPATH"] = os.pathsep.join(part for part in (child.get("PYTHONPATH"), package_root) if part)
    child.setdefault("OMP_NUM_THREADS", str(max(1, placement.cpus // placement.ranks)))
    child.setdefault("TOKENIZERS_PARALLELISM", "true" if placement.ranks == 1 else "false")
    child.setdefault("PYTHONFAULTHANDLER", "1")
    if placement.nodes == 1 and Path("/sys/class/net/lo").exists():
        # Gloo otherwise asks for the address of the host's name, which a laptop or a container may not resolve.
        child.setdefault("GLOO_SOCKET_IFNAME", "lo")
    child["DS_ACCELERATOR"] = "cuda" if placement.machine.device == "gpu" else "cpu"
    child["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # DeepSpeed unpickles checkpoints with weights_only=False; this overrules it.
    child["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    child.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    child["PYTHONUNBUFFERED"] = "1"
    child[TAG] = tag
    child[PARENT_PID] = str(parent)
    return child, notes


def plain_architectures(listed: str) -> str:
    """TORCH_CUDA_ARCH_LIST without the letters of ``9.0a`` or ``10.0f``, each architecture once, in the order given."""
    entries = [re.sub(r"^(\d+\.\d+)[a-z](?=$|\+)", r"\1", entry) for entry in re.split(r"[;\s]+", listed) if entry]
    return ";".join(dict.fromkeys(entries))
