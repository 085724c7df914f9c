"""Parallelism besides that of the data.

``sequence_parallel_size``: deepspeed/__init__.py initialize, runtime/config.py. ``tensor_parallel.autotp_size``:
runtime/engine.py _configure_tensor_parallel_states, utils/groups.py _init_tp_mesh_device.
"""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, error, warning

SIZE = "sequence_parallel_size"
TENSOR = "tensor_parallel.autotp_size"


def findings(asked: Asked) -> Iterator[Finding]:
    yield from _sequences(asked)
    yield from _tensors(asked)


def _sequences(asked: Asked) -> Iterator[Finding]:
    size, world = asked.count(SIZE), asked.situation.world_size
    if size is None or size == 1:
        return
    if world and world % size:
        message = f"{size} does not divide the {world} ranks, and DeepSpeed then counts {world / size:.2f} of them"
        yield error(SIZE, Kind.contradiction, f"{message}; use a divisor of {world}")
    if asked.stage in (0, 1, 2):
        message = f"needs stage 3: at stage {asked.stage} gradients of Hugging Face models come out {size} times too large"
        yield error(SIZE, Kind.contradiction, message)
    if not asked.situation.splits_sequences and asked.count("data_parallel_size") is None:
        message = (
            "alone only divides the batch arithmetic: no sequence is split unless the program passes "
            "UlyssesSPAttentionHF's mpu to deepspeed.initialize"
        )
        yield warning(SIZE, Kind.no_effect, message)
    other = asked.count("data_parallel_size")
    if world and other and other * size != world:
        message = f"{other} x {SIZE} {size} is not the {world} ranks; use {world // size}"
        yield error("data_parallel_size", Kind.contradiction, message)
    if asked.asks("communication_data_type") and asked.dtype_of("communication_data_type") != _reduces_in(asked):
        message = "is overruled by seq_parallel_communication_data_type, which is fp32 unless set; use that key"
        yield error("communication_data_type", Kind.no_effect, message)


def _tensors(asked: Asked) -> Iterator[Finding]:
    size, world, total = asked.count(TENSOR), asked.situation.world_size, asked.count("train_batch_size")
    if size is None or size == 1:
        return
    if world and world % size:
        message = f"{size} does not divide the {world} ranks, which keeps DeepSpeed from starting; use a divisor of {world}"
        yield error(TENSOR, Kind.contradiction, message)
    elif total:
        message = f"counts each rank's samples, and the {size} ranks of a tensor-parallel group share theirs: a step sees"
        yield warning("train_batch_size", Kind.contradiction, f"{message} {total / size:g}, not {total}")


def _reduces_in(asked: Asked) -> str | None:
    key = "seq_parallel_communication_data_type"
    return asked.dtype_of(key) if asked.has(key) else "fp32"
