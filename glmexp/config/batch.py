"""The batch rule: total = micro x accumulation x world size, in one place."""

from dataclasses import dataclass

from glmexp.config.engine_schema import BatchConfig
from glmexp.config.errors import UserError


@dataclass(frozen=True)
class Batch:
    micro: int
    """Samples of one forward pass on one rank."""
    accumulation: int
    """Forward passes of one optimizer step."""
    total: int
    """Samples of one optimizer step over all ranks."""


def solve(batch: BatchConfig, world_size: int) -> Batch:
    """All three numbers from those that are set; raises UserError when they cannot hold together.

    ``total`` and ``micro`` give the accumulation; ``micro`` and ``accumulation`` (1 when both others are null) give the total;
    ``total`` and ``accumulation`` give the micro batch. All three set must agree.
    """
    micro, accumulation, total = batch.micro, batch.accumulation, batch.total
    if total is not None and total < world_size:
        raise UserError(
            f"batch.total={total} is smaller than the number of ranks ({world_size}): each rank needs a sample a step\n"
            f"the least global batch for {world_size} ranks is batch.total={world_size}"
        )
    if micro is None:
        return _micro_from(accumulation, total, world_size)
    if total is None:
        accumulation = 1 if accumulation is None else accumulation
        return Batch(micro, accumulation, micro * accumulation * world_size)
    if accumulation is not None:
        if micro * accumulation * world_size != total:
            raise UserError(
                f"batch.total={total} is not batch.micro={micro} x batch.accumulation={accumulation} x {_ranks(world_size)} "
                f"= {micro * accumulation * world_size}\n"
                f"set batch.total={micro * accumulation * world_size}, or leave batch.accumulation=null to have it derived"
            )
        return Batch(micro, accumulation, total)
    if total % (micro * world_size):
        step = micro * world_size
        raise UserError(
            f"batch.total={total} cannot be divided by batch.micro={micro} x {_ranks(world_size)} = {step}\n"
            f"set batch.total={max(step, total // step * step)} or {(total // step + 1) * step}, or another batch.micro"
        )
    return Batch(micro, total // (micro * world_size), total)


def _micro_from(accumulation: int | None, total: int | None, world_size: int) -> Batch:
    if total is None:
        raise UserError(
            "batch.micro, batch.accumulation and batch.total are not enough to tell the batch: "
            f"got micro=null, accumulation={accumulation if accumulation else 'null'}, total=null\nset batch.micro=1 or more"
        )
    accumulation = 1 if accumulation is None else accumulation
    if total % (accumulation * world_size):
        step = accumulation * world_size
        raise UserError(
            f"batch.total={total} cannot be divided by batch.accumulation={accumulation} x {_ranks(world_size)} = {step}\n"
            f"set batch.total={(total // step + 1) * step}, or another batch.accumulation"
        )
    return Batch(total // (accumulation * world_size), accumulation, total)


def _ranks(world_size: int) -> str:
    return f"{world_size} rank{'s' if world_size > 1 else ''} (launch.ranks x launch.nodes)"
