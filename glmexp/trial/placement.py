"""Config + environment + machine -> how many ranks run where."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from glmexp.config.choices import Backend, Device
from glmexp.config.errors import UserError
from glmexp.config.schema import Config, LaunchConfig
from glmexp.dsconfig.machine import Machine
from glmexp.trial.lacking import lacking, lacking_nvme
from glmexp.trial.launcher import Outer, detect
from glmexp.trial.machine import Gpu, Probe, loopback_answers, probe


@dataclass(frozen=True)
class Placement:
    """The ranks of one run, as seen from this node."""

    machine: Machine
    """World size over all nodes and the kind of device: what the DeepSpeed dict depends on."""
    ranks: int
    """Ranks on this node."""
    first_rank: int = 0
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int | None = None
    """Rendezvous port; None chooses a free one at the start."""
    outer: Outer | None = None
    gpus: tuple[Gpu, ...] = ()
    """Visible GPUs; local rank k uses the k-th."""
    cpus: int = 1
    device_name: str = ""
    notes: list[str] = field(default_factory=list)
    """What the user should be told at the start."""

    def lines(self, visible: str | None) -> list[str]:
        """A line a rank of this node: rank -> device, with the PCI bus id and what CUDA_VISIBLE_DEVICES says."""
        if self.machine.device == "cpu":
            last = self.first_rank + self.ranks - 1
            which = f"rank {last}" if self.ranks == 1 else f"ranks {self.first_rank}-{last}"
            return [f"{which} -> CPU, {self.device_name}, {self.cpus} cores"]
        shown = "all" if visible is None else visible
        return [
            f"rank {self.first_rank + local} -> cuda:{local} {gpu.name}, {gpu.memory_gib:.0f} GiB, "
            f"PCI {gpu.bus_id}, CUDA_VISIBLE_DEVICES={shown}"
            for local, gpu in enumerate(self.gpus[: self.ranks])
        ]


def resolve(config: Config, environ: Mapping[str, str], found: Probe | None = None, *, launching: bool = True) -> Placement:
    """Decides device, ranks and rendezvous.

    Args:
        found: a look at the machine; None looks now.
        launching: False for verbs that start nothing: then device and ranks are taken as they are set, whatever this
            machine has, and only what is not set follows from the machine.

    Raises:
        UserError: what was asked for is not there, or contradicts the outer launcher.
    """
    found = found or probe(environ)
    launch, outer = config.launch, detect(environ)
    device = _device(launch, found, launching)
    _check_launcher(launch, outer, launching)
    # Under srun with one task a node, Slurm only places the parents: the ranks are ours to count.
    counts_ours = outer is None or (outer.name == "srun" and outer.local_world_size == 1)
    if counts_ours:
        nodes = outer.nodes if outer else launch.nodes
        ranks = launch.ranks or (max(1, len(found.gpus)) if device == "gpu" else 1)
        world_size, first_rank = ranks * nodes, ranks * (outer.node if outer else 0)
    else:
        assert outer is not None
        nodes, ranks, world_size = outer.nodes, outer.local_world_size, outer.world_size
        first_rank = outer.rank - outer.local_rank
    if launching and device == "gpu":
        _check_ranks(ranks, found, environ, outer)
    placement = Placement(
        machine=Machine(world_size, device),
        ranks=ranks,
        first_rank=first_rank,
        node=outer.node if outer else 0,
        nodes=nodes,
        address=outer.address if outer else "127.0.0.1",
        port=outer.port if outer else None,
        outer=outer,
        gpus=found.gpus if device == "gpu" else (),
        cpus=found.cpus,
        device_name=(found.gpus[0].name if found.gpus else "GPU") if device == "gpu" else found.cpu_name,
        notes=_notes(launch, found, device),
    )
    if launching:
        check_device(config, placement, here=True)
        if outer is None and not loopback_answers():
            raise UserError(
                "the loopback interface does not answer, and the ranks of a run meet at 127.0.0.1.\n"
                "Bring it up: `ip link set lo up`."
            )
    return placement


def _device(launch: LaunchConfig, found: Probe, launching: bool) -> Literal["gpu", "cpu"]:
    if launch.device is Device.auto:
        return "gpu" if found.gpus else "cpu"
    if launch.device is Device.gpu and launching and not found.gpus:
        raise UserError(
            f"launch.device=gpu: no GPU can be used here: {found.gpu_problem}.\n"
            "Choose launch.device=cpu, or launch.device=auto to take what there is."
        )
    return "gpu" if launch.device is Device.gpu else "cpu"


def _check_launcher(launch: LaunchConfig, outer: Outer | None, launching: bool) -> None:
    if outer is None:
        if launch.nodes > 1 and launching:
            raise UserError(
                f"launch.nodes={launch.nodes}: several nodes need a launcher that starts glmexp on each, such as\n"
                f"  torchrun --nnodes {launch.nodes} --nproc-per-node {launch.ranks or 'gpu'} --rdzv-backend c10d "
                "--rdzv-endpoint <first host>:29400 -m glmexp ...\n"
                "on every node, or `srun` with one task a node. For one node leave launch.nodes at 1."
            )
        return
    if launch.nodes > 1 and launch.nodes != outer.nodes:
        raise UserError(
            f"launch.nodes={launch.nodes}, but {outer.name} has started {outer.nodes} node(s).\n"
            "Leave launch.nodes out: the launcher's number holds."
        )
    if outer.local_world_size > 1 and launch.ranks not in (None, outer.local_world_size):
        raise UserError(
            f"launch.ranks={launch.ranks}, but {outer.name} has started {outer.local_world_size} processes here.\n"
            f"Leave launch.ranks out, or start glmexp without {outer.name}."
        )
    if outer.name != "srun" and outer.local_world_size == 1 and launch.ranks not in (None, 1):
        raise UserError(
            f"launch.ranks={launch.ranks}, but {outer.name} has started 1 process on this node.\n"
            f"Give {outer.name} the number of processes, or start glmexp without it."
        )
    if launch.backend is not Backend.spawn and launching:
        raise UserError(
            f"launch.backend={launch.backend.value} under {outer.name}: one launcher inside another.\n"
            "Leave launch.backend at spawn: glmexp uses the rendezvous of the launcher that is there."
        )


def _check_ranks(ranks: int, found: Probe, environ: Mapping[str, str], outer: Outer | None) -> None:
    if ranks <= len(found.gpus):
        return
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    told = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    if outer is not None and outer.local_world_size > 1:
        # srun --gpus-per-task shows each task its own GPU only, and one parent starts the ranks of all tasks.
        way = f"Let {outer.name} start at most {len(found.gpus)} a node, and show each of its processes all GPUs of the node."
    else:
        way = f"Set launch.ranks={len(found.gpus)} or fewer, or launch.device=cpu."
    raise UserError(f"launch.ranks: {ranks} ranks on this node, but {len(found.gpus)} GPU(s) can be seen{told}.\n{way}")


def check_device(config: Config, placement: Placement, *, here: bool) -> None:
    """Refuses what the device lacks, and with ``here`` what this machine lacks. Raises UserError with the first of them."""
    found = lacking(config, placement.machine, placement.gpus[: placement.ranks], placement.nodes)
    missing = next(found, None) or (next(lacking_nvme(config), None) if here else None)
    if missing:
        raise UserError(missing)


def _notes(launch: LaunchConfig, found: Probe, device: str) -> list[str]:
    if device == "cpu" and launch.device is Device.auto and found.gpu_problem and "without CUDA" in found.gpu_problem:
        return [f"training on the CPU: {found.gpu_problem}, although this machine has a GPU"]
    return []
