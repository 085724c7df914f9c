"""train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks (runtime/config.py)."""

import math
from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error

TOTAL, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def findings(asked: Asked) -> Iterator[Finding]:
    present = {key: asked.view.raw(key) is not None for key in (TOTAL, MICRO, ACCUMULATION)}
    if not present[TOTAL] and not present[MICRO]:
        message = "is left out and so is train_batch_size: DeepSpeed needs one of them; set the samples of a forward pass"
        yield error(MICRO, Kind.contradiction, message)
        return
    total, micro, accumulation = (asked.count(key) for key in (TOTAL, MICRO, ACCUMULATION))
    if not present[ACCUMULATION] and asked.trainer:
        accumulation = 1  # what accelerate writes where the key is left out
    ranks = replicas(asked)
    unknown = any(present[key] and asked.count(key) is None for key in present)
    if total is None or unknown:
        return
    known = [factor for factor in (micro, accumulation, ranks) if factor is not None]
    product = math.prod(known)
    words = " x ".join(
        [
            *([f"micro batch {micro}"] if micro else []),
            *([f"accumulation {accumulation}"] if accumulation else []),
            *([f"{ranks} rank{'s' if ranks > 1 else ''}"] if ranks else []),
        ]
    )
    if micro and accumulation and ranks and total != product:
        fitting = f"{ACCUMULATION} {total // (micro * ranks)}, or " if total % (micro * ranks) == 0 else ""
        message = f"{total} is not {words} = {product}; set {fitting}{TOTAL} {product}"
        yield error(TOTAL, Kind.contradiction, message)
    elif total % product:
        whole = f"{product} ({words})" if len(known) > 1 else words
        yield error(TOTAL, Kind.contradiction, f"{total} is no multiple of {whole}; use {_nearest_multiples(total, product)}")


def replicas(asked: Asked) -> int | None:
    """Ranks that get samples of their own; None if the world size is unknown or sequence parallelism does not divide it."""
    world, sharing = asked.situation.world_size, asked.count("sequence_parallel_size") or 1
    return world // sharing if world and world % sharing == 0 else None


def accumulation_of(asked: Asked) -> int | None:
    """The accumulation that DeepSpeed starts with, None if it cannot be told."""
    given = asked.count(ACCUMULATION)
    if given is not None or asked.view.raw(ACCUMULATION) is not None:
        return given
    total, micro, ranks = asked.count(TOTAL), asked.count(MICRO), replicas(asked)
    if asked.view.raw(TOTAL) is None or asked.view.raw(MICRO) is None:
        return 1
    return total // micro // ranks if total and micro and ranks else None


def _nearest_multiples(total: int, product: int) -> str:
    below = total // product * product
    return f"{below} or {below + product}" if below else str(product)
