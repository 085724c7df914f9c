"""Which rank this process is, from the environment that a launcher sets."""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process's place in the run."""

    rank: int
    local_rank: int
    """Place on this node; also the index of the GPU."""
    world_size: int
    local_world_size: int
    """Ranks on this node."""

    @property
    def leads_node(self) -> bool:
        """Whether this rank does what is done once a node, such as tokenising."""
        return self.local_rank == 0


def from_environment(environ: MutableMapping[str, str] = os.environ) -> Ranks:
    """Reads the launcher's variables; if one is missing the process is a run of its own.

    In that case all of them are set for one rank with a free port, since DeepSpeed would otherwise look for mpi4py.
    """
    if not all(environ.get(name) for name in VARIABLES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    world_size = int(environ["WORLD_SIZE"])
    return Ranks(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        world_size=world_size,
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE") or world_size),
    )
