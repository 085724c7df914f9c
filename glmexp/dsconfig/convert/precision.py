"""DeepSpeed's ``bf16``, ``fp16``, ``torch_autocast`` and ``data_types`` as the groups ``precision`` and ``scaler``."""

from glmexp.config.errors import UserError
from glmexp.dsconfig.convert.options import Wanted, choose, override
from glmexp.dsconfig.convert.reader import Reader, default
from glmexp.dsconfig.table.precision import FP16

SPELLINGS = {
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
}
"""Dtype -> DeepSpeed's words for it (runtime/config.py, DtypeEnum)."""

FLAGS = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
"""Keys of the dynamic loss scaler; a static scale leaves them null."""


def precision(reader: Reader, composed: str | None) -> tuple[list[str], str | None]:
    """Overrides of ``precision`` and ``scaler``, and the compute dtype, None where "auto" leaves it to the composed config.

    ``composed`` is the dtype of the composed config, if it is known: it decides whether the scaler of an fp16 section that is
    "auto" applies.
    """
    flags = {name: reader.take(f"bf16.{name}", bool) or False for name in FLAGS}
    dtype = _dtype(reader, any(flags.values()))
    if reader.take("bf16.check_grad_overflow", bool) is False and dtype == "bf16":
        reader.notes.append("bf16.check_grad_overflow=false is left out: glmexp always skips a step whose gradients overflow")
    overrides = _option(reader, dtype, flags) if dtype else _accumulation(reader)
    may_be_fp16 = dtype == "fp16" or "fp16.enabled" in reader.auto
    scaler = _scaler(reader)
    in_effect = dtype or composed
    if in_effect == "fp16" and may_be_fp16:
        overrides += scaler
    elif may_be_fp16 and dtype is None and "bf16.enabled" not in reader.auto:
        added = " ".join(["precision=fp16", *(scaler if composed is None else [])])
        whose = f"{composed} here" if composed else "bf16 as shipped"
        reader.notes.append(f'fp16.enabled is "auto": the composed precision is used ({whose}); add {added} for fp16')
    elif in_effect is None and may_be_fp16 and (len(scaler) > 1 or reader.has("fp16")):
        reader.notes.append(f"fp16.enabled is auto: with precision=fp16 add {' '.join(scaler)}")
    for section in ("bf16", "fp16"):
        if section == in_effect:
            reader.emitted.add(section)
        else:
            reader.drop(section)  # switched off, so nothing reads it
    return overrides, dtype


def _dtype(reader: Reader, bf16_states: bool) -> str | None:
    """The compute dtype; None if "auto" leaves it open."""
    on = {dtype: reader.take(f"{dtype}.enabled", bool) for dtype in ("bf16", "fp16")}
    open_ = [dtype for dtype in on if f"{dtype}.enabled" in reader.auto]
    dtype = next((dtype for dtype in on if on[dtype]), None)
    if dtype is None and open_ == ["bf16"] and (bf16_states or on["fp16"] is False):
        dtype = "bf16"
    elif dtype is None and open_ == ["fp16"] and on["bf16"] is False:
        dtype = "fp16"
    elif dtype is None and not open_:
        dtype = "fp32"
    if dtype is not None:
        reader.auto = [key for key in reader.auto if key not in ("bf16.enabled", "fp16.enabled")]
        if dtype in open_:
            reader.notes.append(f"{dtype}.enabled is auto and the file has nothing else: precision={dtype}")
    return dtype


def _option(reader: Reader, dtype: str, flags: dict[str, bool]) -> list[str]:
    wanted = Wanted(said={"dtype": dtype}, left_out={"autocast_dtype": None, "grad_accum_dtype": None})
    for name, value in flags.items():
        if value and dtype == "bf16":
            wanted.said[name] = True
        else:
            wanted.left_out[name] = False
    accumulation = dtype_of(reader, "data_types.grad_accum_dtype")
    if accumulation not in (None, dtype):
        wanted.said["grad_accum_dtype"] = accumulation
    if dtype == "fp32" and reader.take("torch_autocast.enabled", bool):
        reader.emitted.add("torch_autocast")
        wanted.said["autocast_dtype"] = dtype_of(reader, "torch_autocast.dtype") or "bf16"
    return choose("precision", wanted, "dtype")


def _accumulation(reader: Reader) -> list[str]:
    accumulation = dtype_of(reader, "data_types.grad_accum_dtype")
    return [] if accumulation is None else [override("precision.grad_accum_dtype", accumulation)]


def dtype_of(reader: Reader, key: str) -> str | None:
    """Takes a dtype: bf16, fp16 or fp32, however it is spelt; None if it is left out."""
    value = reader.take(key, str)
    found = next((dtype for dtype, words in SPELLINGS.items() if value in words), None)
    if value is not None and found is None:
        raise UserError(f"{key}={value}: must be one of {', '.join(SPELLINGS)}")
    return found


def _scaler(reader: Reader) -> list[str]:
    scale = reader.take("fp16.loss_scale", float) or 0
    wanted = Wanted(said={"loss_scale": scale})
    for name in DYNAMIC:
        value = reader.take(f"fp16.{name}", int)
        if scale:
            wanted.left_out[name] = None
        elif value is not None:
            wanted.said[name] = value
        else:
            wanted.left_out[name] = default(FP16, name)
    return choose("scaler", wanted)
