"""The batch, clipping, communication and compilation of a DeepSpeed config as fields of glmexp."""

from glmexp.dsconfig.convert.options import Wanted, choose, override
from glmexp.dsconfig.convert.precision import dtype_of
from glmexp.dsconfig.convert.reader import Reader


def batch(reader: Reader) -> list[str]:
    """The batch as far as it is given. A micro batch that nobody gives is derived, as in DeepSpeed."""
    keys = {
        "train_batch_size": "batch.total",
        "train_micro_batch_size_per_gpu": "batch.micro",
        "gradient_accumulation_steps": "batch.accumulation",
    }
    given = {field: reader.take(key, int) for key, field in keys.items()}
    overrides = [override(field, value) for field, value in given.items() if value is not None]
    if given["batch.micro"] is None and "train_micro_batch_size_per_gpu" not in reader.auto:
        if given["batch.total"] is not None:
            overrides.append("batch.micro=null")
        elif "train_batch_size" not in reader.auto:
            reader.notes.append("no batch size: batch.micro is as composed")
    return overrides


def clipping(reader: Reader) -> list[str]:
    """``train.grad_clip``: DeepSpeed 0.19 clips at 1.0 when the key is left out (runtime/constants.py)."""
    value = reader.take("gradient_clipping", float)
    if value is None and "gradient_clipping" in reader.auto:
        return []
    if value is None:
        reader.notes.append(
            "gradient_clipping is left out: DeepSpeed clips at 1.0 since 0.19.3 and did not before; train.grad_clip=0 is off"
        )
    return [override("train.grad_clip", 1.0 if value is None else max(value, 0))]


def communication(reader: Reader, dtype: str | None) -> list[str]:
    """Overrides of ``comm``.

    With sequence parallelism DeepSpeed reduces in ``seq_parallel_communication_data_type``, fp32 when it is left out
    (runtime/constants.py), and does not look at ``communication_data_type``.
    """
    size = reader.take("sequence_parallel_size", int) or 1
    reduce = dtype_of(reader, "communication_data_type")
    wanted = Wanted(said={"sequence_parallel_size": size} if size > 1 else {}, left_out={"sequence_parallel_size": None})
    if size > 1:
        reduce = dtype_of(reader, "seq_parallel_communication_data_type") or "fp32"
    if reduce not in (None, dtype):
        wanted.said["communication_data_type"] = reduce
    chosen = choose("comm", wanted)
    return chosen if wanted.said else []


def kernels(reader: Reader) -> list[str]:
    """``kernels=deepcompile`` where the file compiles."""
    if reader.take("compile.deepcompile", bool):
        reader.emitted.add("compile")
        return choose("kernels", Wanted(said={"deepcompile": True}), "deepcompile")
    reader.drop("compile")  # nothing else of it is read without
    return []
