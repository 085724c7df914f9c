"""The batch rule: total = micro x accumulation x (world size / sequence_parallel_size), in one place."""

from dataclasses import dataclass

from glmexp.config.engine_schema import BatchConfig
from glmexp.config.errors import UserError


@dataclass(frozen=True)
class Batch:
    micro: int
    """Samples of one forward pass on one rank, or on the ranks that share them."""
    accumulation: int
    """Forward passes of one optimizer step."""
    total: int
    """Samples of one optimizer step over all ranks."""

    def arithmetic(self, world_size: int, sequence_parallel_size: int = 1, packed: bool = False) -> str:
        """``batch: micro 2 x accumulation 4 x ranks 1 = 8 samples a step``; with ``packed`` rows of several samples count."""
        shared = f" / {sequence_parallel_size} that share a sample" if sequence_parallel_size > 1 else ""
        return (
            f"batch: micro {self.micro} x accumulation {self.accumulation} x ranks {world_size}{shared} "
            f"= {self.total} {'row' if packed else 'sample'}{'s' if self.total > 1 else ''} a step"
        )


def data_parallel_size(world_size: int, sequence_parallel_size: int) -> int:
    """Ranks with samples of their own, or groups of ranks that share samples.

    Raises UserError when the groups do not come out even.
    """
    if world_size % sequence_parallel_size:
        fits = [size for size in range(2, world_size + 1) if world_size % size == 0]
        ranks = max(1, round(world_size / sequence_parallel_size)) * sequence_parallel_size
        way = f"start {ranks} ranks (launch.ranks x launch.nodes)"
        raise UserError(
            f"comm.sequence_parallel_size={sequence_parallel_size} does not divide the number of ranks ({world_size})\n"
            + (f"{way}, or set comm.sequence_parallel_size to {' or '.join(map(str, fits))}" if fits else way)
        )
    return world_size // sequence_parallel_size


def solve(batch: BatchConfig, world_size: int, sequence_parallel_size: int = 1) -> Batch:
    """All three numbers from those that are set; raises UserError when they cannot hold together.

    ``total`` and ``micro`` give the accumulation; ``micro`` and ``accumulation`` (1 when both others are null) give the total;
    ``total`` and ``accumulation`` give the micro batch. All three set must agree. Ranks that share samples count as one.
    """
    ranks = data_parallel_size(world_size, sequence_parallel_size)
    named = _named(ranks, sequence_parallel_size)
    micro, accumulation, total = batch.micro, batch.accumulation, batch.total
    if total is not None and total < ranks:
        who = "ranks" if sequence_parallel_size == 1 else f"groups of {sequence_parallel_size} ranks"
        raise UserError(
            f"batch.total={total} is smaller than the number of {who} ({ranks}): each needs a sample a step\n"
            f"the least global batch for {ranks} {who} is batch.total={ranks}"
        )
    if micro is None:
        return _micro_from(accumulation, total, ranks, named)
    if total is None:
        accumulation = 1 if accumulation is None else accumulation
        return Batch(micro, accumulation, micro * accumulation * ranks)
    if accumulation is not None:
        if micro * accumulation * ranks != total:
            raise UserError(
                f"batch.total={total} is not batch.micro={micro} x batch.accumulation={accumulation} x {named} "
                f"= {micro * accumulation * ranks}\n"
                f"set batch.total={micro * accumulation * ranks}, or {_another(total, micro, ranks)}"
            )
        return Batch(micro, accumulation, total)
    if total % (micro * ranks):
        step = micro * ranks
        raise UserError(
            f"batch.total={total} cannot be divided by batch.micro={micro} x {named} = {step}\n"
            f"set batch.total={max(step, total // step * step)} or {(total // step + 1) * step}, or another batch.micro"
        )
    return Batch(micro, total // (micro * ranks), total)


def _another(total: int, micro: int, ranks: int) -> str:
    """What to change instead of the total."""
    if total % (micro * ranks):
        return "another batch.micro or batch.accumulation"
    return f"batch.accumulation={total // (micro * ranks)}"


def _micro_from(accumulation: int | None, total: int | None, ranks: int, named: str) -> Batch:
    if total is None:
        raise UserError(
            "batch.micro, batch.accumulation and batch.total are not enough to tell the batch: "
            f"got micro=null, accumulation={accumulation if accumulation else 'null'}, total=null\nset batch.micro=1 or more"
        )
    accumulation = 1 if accumulation is None else accumulation
    if total % (accumulation * ranks):
        step = accumulation * ranks
        raise UserError(
            f"batch.total={total} cannot be divided by batch.accumulation={accumulation} x {named} = {step}\n"
            f"set batch.total={(total // step + 1) * step}, or another batch.accumulation"
        )
    return Batch(total // (accumulation * ranks), accumulation, total)


def _named(ranks: int, sequence_parallel_size: int) -> str:
    plural = "s" if ranks > 1 else ""
    if sequence_parallel_size == 1:
        return f"{ranks} rank{plural} (launch.ranks x launch.nodes)"
    return f"{ranks} group{plural} of ranks (launch.ranks x launch.nodes / comm.sequence_parallel_size)"
