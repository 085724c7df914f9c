"""One rank of ``doctor``'s all-reduce: ``python -m glmexp.train.all_reduce FOLDER`` with a launcher's variables.

``FOLDER/all_reduce<rank>.json`` tells the backend and what went wrong, if anything did.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

from glmexp.train.ranks import Ranks, from_environment
from glmexp.trial.orphan import die_with_parent
from glmexp.trial.record import write_json

TIMEOUT = timedelta(seconds=30)
NUMBERS = 2**20


def main(folder: Path) -> None:
    die_with_parent()
    ranks = from_environment()
    backend = "gloo" if os.environ.get("DS_ACCELERATOR") == "cpu" else "nccl"
    try:
        reduce(ranks, backend)
        error = None
    except Exception as raised:
        error = " ".join(str(raised).split())[:300] or type(raised).__name__
    write_json(folder / f"all_reduce{ranks.rank}.json", {"backend": backend, "error": error})
    # Taking down NCCL can hang while a peer sits in a collective.
    os._exit(0 if error is None else 1)


def reduce(ranks: Ranks, backend: str) -> None:
    """Sums a tensor over all ranks; raises if the sum is wrong or does not come about."""
    import torch
    import torch.distributed as dist

    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", ranks.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=TIMEOUT, rank=ranks.rank, world_size=ranks.world_size)
    numbers = torch.full((NUMBERS,), ranks.rank + 1.0, device=device)
    dist.all_reduce(numbers)
    expected = ranks.world_size * (ranks.world_size + 1) / 2
    if not bool((numbers == expected).all()):
        raise RuntimeError(f"the sum is wrong: {numbers[0].item()} instead of {expected}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
