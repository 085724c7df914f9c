"""DeepSpeed's ``zero_optimization`` and ``aio`` as the groups ``zero`` and ``offload``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glmexp.config.errors import UserError
from glmexp.config.zero import STAGES
from glmexp.dsconfig.convert.options import Wanted, choose
from glmexp.dsconfig.convert.reader import Reader, default
from glmexp.dsconfig.table.services import AIO
from glmexp.dsconfig.table.zero import OFFLOAD_OPTIMIZER, OFFLOAD_PARAM, ZENFLOW
from glmexp.dsconfig.table.zero import ZERO as TABLE

ZERO = "zero_optimization"
OPTIMIZER, PARAMETERS = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
NVME_ALONE = ("pipeline_read", "pipeline_write", "fast_init")
IN_CPU = ("max_in_cpu", "buffer_size", "buffer_count")
AIO_FIELDS = ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")
ZENFLOW_FIELDS = ("topk_ratio", "overlap_step", "full_warm_up_rounds")
ZENFLOW_AUTO: dict[str, type] = {"select_strategy": str, "select_interval": int, "update_interval": int}
"""Keys for which DeepSpeed itself has an "auto", which glmexp has not."""


@dataclass(frozen=True)
class HiddenSizeRule:
    """What the HF Trainer writes for "auto" (transformers 5.24, integrations/deepspeed.py, ``trainer_config_finalize``)."""

    words: str
    stages: tuple[int, ...]
    """Where the key has an effect; the Trainer fills the stage3_* keys at stage 3 alone."""
    number: Callable[[int], int]
    """Hidden size of the model -> elements."""


HIDDEN_SIZE_RULES = {
    "reduce_bucket_size": HiddenSizeRule("hidden_size squared", (1, 2, 3), lambda hidden: hidden * hidden),
    "stage3_prefetch_bucket_size": HiddenSizeRule("0.9 hidden_size squared", (3,), lambda hidden: int(0.9 * hidden * hidden)),
    "stage3_param_persistence_threshold": HiddenSizeRule("10 hidden_size", (3,), lambda hidden: 10 * hidden),
}


def zero(reader: Reader, stage: int, hidden_size: int | None) -> list[str]:
    """Overrides of the ``zero`` group; ``hidden_size`` resolves what the HF Trainer computes from the model, if it is known."""
    wanted = Wanted(said={"stage": stage})
    for key, stages in STAGES.items():
        # DeepSpeed overlaps at stage 3 alone if it is not told (runtime/zero/config.py, overlap_comm_valid).
        left_out = stage == 3 if key == "overlap_comm" else default(TABLE, key)
        value = reader.take(f"{ZERO}.{key}", type(left_out))
        if stage not in stages:
            continue  # what asks for something there was an error of the linter's
        if f"{ZERO}.{key}" in reader.auto:
            if hidden_size and key in HIDDEN_SIZE_RULES:
                wanted.said[key] = HIDDEN_SIZE_RULES[key].number(hidden_size)
        elif value is not None:
            wanted.said[key] = value
        else:
            wanted.left_out[key] = left_out
    return choose("zero", wanted, "stage")


def offload(reader: Reader) -> list[str]:
    """Overrides of the ``offload`` group, none where "auto" leaves it open. Raises UserError for what it cannot say."""
    device, other = (reader.take(f"{section}.device", str) or "none" for section in (OPTIMIZER, PARAMETERS))
    if other not in ("none", device):
        raise UserError(
            f"offload_optimizer.device={device} and offload_param.device={other}: glmexp moves the parameters only together "
            f"with the optimizer, to one device\nset both to {other}, or leave offload_param out"
        )
    if device == "none":
        for section in (OPTIMIZER, PARAMETERS, f"{ZERO}.zenflow", "aio"):
            reader.drop(section)  # nothing is offloaded, so nothing reads them
        return [] if f"{OPTIMIZER}.device" in reader.auto else ["offload=none"]
    # Null in the options that have no use for them, and refused there.
    wanted = Wanted(left_out=dict.fromkeys(("ratio", "super_offload", "cpuadam_cores_perc", "nvme_path", *IN_CPU)))
    wanted.said |= {"device": device, "parameters": other != "none"}
    reader.emitted.add(OPTIMIZER)
    _both_sections(reader, wanted)
    ratio, cores = (reader.take(f"{OPTIMIZER}.{name}", float) for name in ("ratio", "cpuadam_cores_perc"))
    if ratio is not None and ratio < 1:
        wanted.said["ratio"] = ratio
    if reader.take(f"{OPTIMIZER}.super_offload", bool):
        share = default(OFFLOAD_OPTIMIZER, "cpuadam_cores_perc") if cores is None else cores
        wanted.said |= {"super_offload": True, "cpuadam_cores_perc": share}
    _nvme(reader, wanted)
    _zenflow(reader, wanted)
    return choose("offload", wanted, "device")


def _both_sections(reader: Reader, wanted: Wanted) -> None:
    """What DeepSpeed has for the optimizer and for the parameters, and glmexp once."""
    pinned, path = reader.take(f"{OPTIMIZER}.pin_memory", bool), reader.take(f"{OPTIMIZER}.nvme_path", str)
    wanted.said["pin_memory"] = default(OFFLOAD_OPTIMIZER, "pin_memory") if pinned is None else pinned
    if wanted.said["device"] == "nvme":
        wanted.said["nvme_path"] = path
    if not wanted.said["parameters"]:
        reader.drop(PARAMETERS)
        return
    reader.emitted.add(PARAMETERS)
    pinned, other = reader.take(f"{PARAMETERS}.pin_memory", bool), reader.take(f"{PARAMETERS}.nvme_path", str)
    if (default(OFFLOAD_PARAM, "pin_memory") if pinned is None else pinned) is not wanted.said["pin_memory"]:
        shown = str(wanted.said["pin_memory"]).lower()
        reader.notes.append(f"offload_param.pin_memory is not offload_optimizer's: offload.pin_memory={shown} holds for both")
    if wanted.said["device"] == "nvme" and other != path:
        raise UserError(
            f"offload_optimizer.nvme_path={path} and offload_param.nvme_path={other}: glmexp takes one folder for both"
        )


def _nvme(reader: Reader, wanted: Wanted) -> None:
    on_nvme = wanted.said["device"] == "nvme"
    found: dict[str, tuple[Any, Any]] = {
        name: (reader.take(f"{OPTIMIZER}.{name}", bool), default(OFFLOAD_OPTIMIZER, name)) for name in NVME_ALONE
    }
    for name in AIO_FIELDS:
        left_out = default(AIO, name)
        found[f"aio.{name}"] = (reader.take(f"aio.{name}", type(left_out)), left_out)
    in_cpu = {name: (reader.take(f"{PARAMETERS}.{name}", int), default(OFFLOAD_PARAM, name)) for name in IN_CPU}
    if not on_nvme:
        reader.drop("aio")
        return
    reader.emitted.add("aio")
    if wanted.said["parameters"]:
        found |= in_cpu
    wanted.said |= {name: left_out if value is None else value for name, (value, left_out) in found.items()}


def _zenflow(reader: Reader, wanted: Wanted) -> None:
    section = f"{ZERO}.zenflow"
    if not reader.has(section):
        wanted.left_out |= dict.fromkeys(f"zenflow.{name}" for name in (*ZENFLOW_FIELDS, *ZENFLOW_AUTO))
        return
    reader.emitted.add(section)
    for name in ZENFLOW_FIELDS:
        left_out = default(ZENFLOW, name)
        value = reader.take(f"{section}.{name}", type(left_out))
        wanted.said[f"zenflow.{name}"] = left_out if value is None else value
    for name, kind in ZENFLOW_AUTO.items():
        value = reader.take(f"{section}.{name}", kind)
        if value is not None:
            wanted.said[f"zenflow.{name}"] = value
        elif f"{section}.{name}" not in reader.auto:
            reader.auto.append(f"{section}.{name}")  # what DeepSpeed takes when it is left out
