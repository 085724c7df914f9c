"""DeepSpeed's ``optimizer`` and ``scheduler`` as the groups of the same name."""

from typing import Any

from glmexp.config.errors import UserError
from glmexp.dsconfig.convert.options import Wanted, choose, override
from glmexp.dsconfig.convert.reader import Reader, default
from glmexp.dsconfig.table.optimizer import PARAMS as TABLES
from glmexp.dsconfig.table.optimizer import SCHEDULES

PARAMS = "optimizer.params"
ADAMW = ("lr", "betas", "eps", "weight_decay")
MUON: dict[str, Any] = {"lr": 0.02, "betas": [0.9, 0.95], "eps": 1e-10, "weight_decay": 0.0, "momentum": 0.95}
MUON_ADAM_LR = 3e-4
"""What Muon's own code takes for what is left out (runtime/zero/muon/original_muon.py, MuonWithAuxAdam)."""

FUSED_ONLY = {"bias_correction": True, "set_grad_none": True}
"""Parameters of DeepSpeed's FusedAdam that torch's AdamW lacks -> what the latter does in any case."""

OPTIONS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""``scheduler.type`` -> option of ``scheduler``."""


def scheduler(reader: Reader) -> tuple[list[str], float | None]:
    """Overrides of ``scheduler``, and the peak learning rate where the schedule has its own.

    WarmupLR and WarmupDecayLR put ``warmup_max_lr`` in the place of the optimizer's lr; left out, it is the latter in WarmupLR
    and 0.001 in WarmupDecayLR (runtime/lr_schedules.py).
    """
    kind = reader.take("scheduler.type", str)
    if kind not in OPTIONS:
        reader.drop("scheduler")
        if kind is not None:
            known = ", ".join(OPTIONS)
            reader.notes.append(f"scheduler.type={kind} has no counterpart ({known} have one): scheduler=... is as composed")
        return [], None
    wanted = Wanted(said={"name": OPTIONS[kind]})
    wanted.said |= _parameter(reader, kind, "warmup_num_steps", "warmup_steps")
    peak = None
    if kind == "WarmupCosineLR":
        wanted.said |= _parameter(reader, kind, "cos_min_ratio", "min_lr_ratio")
    else:
        peak = _parameter(reader, kind, "warmup_max_lr", "peak", float).get("peak")
    if kind == "WarmupDecayLR":
        wanted.said["min_lr_ratio"] = 0.0
    _note_differences(reader, kind)
    return choose("scheduler", wanted, "name"), peak


def _parameter(reader: Reader, kind: str, name: str, field: str, type_: type | None = None) -> dict[str, Any]:
    """field -> value of a schedule's parameter, DeepSpeed's default if it is left out; empty if it is "auto"."""
    left_out = default(SCHEDULES[kind], name)
    value = reader.take(f"scheduler.params.{name}", type_ or type(left_out))
    return {} if f"scheduler.params.{name}" in reader.auto else {field: left_out if value is None else value}


def _note_differences(reader: Reader, kind: str) -> None:
    """glmexp steps its own schedule: says where it is another one."""
    differs = []
    rise = reader.take("scheduler.params.warmup_type", str)
    if rise != "linear":
        default_ = "" if rise else " by default"
        differs.append(f"it warms up linearly, where DeepSpeed's {kind} does so logarithmically{default_}")
    start = reader.take("scheduler.params.warmup_min_lr", float) or reader.take("scheduler.params.warmup_min_ratio", float)
    if start:
        differs.append(f"its warm-up does not start from {start:g}")
    steps = reader.take("scheduler.params.total_num_steps", int)
    if steps is not None:
        differs.append(f"it ends with the run (train.max_steps={steps} makes that the file's {steps})")
    reader.drop("scheduler")
    if differs:
        reader.notes.append(f"{kind}: glmexp steps a schedule of its own: {'; '.join(differs)}")


def optimizer(reader: Reader, peak: float | None, offloaded: bool) -> list[str]:
    """Overrides of ``optimizer``; ``peak`` is the schedule's learning rate, which replaces the optimizer's."""
    kind = reader.take("optimizer.type", str)
    if kind is None:
        reader.drop("optimizer")
        reader.notes.append("no optimizer: the file leaves it to a script; optimizer=... is as composed")
        if peak is None:
            return []
        _note_peak(reader, peak)
        return [override("optimizer.lr", peak)]
    w_mode = reader.take(f"{PARAMS}.adam_w_mode", bool)
    name = kind.lower()
    if name not in ("adamw", "adam", "muon") or (w_mode is False and name != "adamw"):
        what = f"{kind} with adam_w_mode false (Adam with L2 decay)" if w_mode is False else kind
        raise UserError(f"optimizer.type={what}: glmexp has AdamW (Adam is the same in DeepSpeed) and Muon\nset one of them")
    wanted = Wanted(said={"type": "Muon" if name == "muon" else "AdamW"})
    torch_adam = _implementation(reader, offloaded)
    if name == "muon":
        _parameters(reader, wanted, MUON)
        _muon_rates(reader, wanted)
    else:
        # DeepSpeed's own Adam does not decay unless it is told to; torch's AdamW decays by 0.01 (torch/optim/adamw.py).
        decay = {"weight_decay": 0.01} if torch_adam else {}
        _parameters(reader, wanted, {name: default(TABLES["adamw"], name) for name in ADAMW} | decay)
        wanted.left_out |= {"momentum": None, "adam_lr": None}
    if peak is not None:
        _peak(reader, wanted, peak)
    return choose("optimizer", wanted, "type")


def _implementation(reader: Reader, offloaded: bool) -> bool:
    """Takes the parameters that say whose Adam runs; whether the file asks for torch's.

    glmexp runs DeepSpeed's CPU Adam with offload and torch's AdamW without: the same update.
    """
    torch_adam = reader.take(f"{PARAMS}.torch_adam", bool)
    reader.take(f"{PARAMS}.fused", bool)
    if torch_adam is offloaded:
        runs = "DeepSpeed's CPU Adam with" if offloaded else "torch's AdamW without"
        reader.notes.append(f"{PARAMS}.torch_adam={str(torch_adam).lower()} is left out: glmexp runs {runs} offload")
    for name, always in FUSED_ONLY.items():
        value = None if offloaded and name == "bias_correction" else reader.take(f"{PARAMS}.{name}", bool)
        if value not in (None, always):
            reader.notes.append(f"{PARAMS}.{name}={str(value).lower()} is left out: torch's AdamW has no such parameter")
    return bool(torch_adam)


def _parameters(reader: Reader, wanted: Wanted, defaults: dict[str, Any]) -> None:
    for name, left_out in defaults.items():
        value = reader.take(f"{PARAMS}.{name}", type(left_out))
        if value is not None:
            wanted.said[name] = value
        elif f"{PARAMS}.{name}" not in reader.auto:
            wanted.left_out[name] = left_out


def _muon_rates(reader: Reader, wanted: Wanted) -> None:
    """``lr`` is the matrices' here and ``adam_lr`` that of the rest; DeepSpeed's ``lr`` is both unless ``muon_lr`` or
    ``adam_lr`` says otherwise (engine.py, _muon_param_groups)."""
    shared = wanted.said.get("lr")
    own, adam = (reader.take(f"{PARAMS}.{name}", float) for name in ("muon_lr", "adam_lr"))
    if own is not None:
        wanted.said["lr"] = own
    if adam is None:
        adam = MUON_ADAM_LR if shared is None and f"{PARAMS}.lr" not in reader.auto else shared
    if adam in (None, wanted.said.get("lr")):
        wanted.left_out["adam_lr"] = None
    else:
        wanted.said["adam_lr"] = adam


def _peak(reader: Reader, wanted: Wanted, peak: float) -> None:
    """Puts the schedule's learning rate in the place of the optimizer's, for all parameters."""
    written = wanted.said.get("lr")
    if written not in (None, peak):
        reader.notes.append(
            f"scheduler.params.warmup_max_lr={peak:g} is what DeepSpeed trains at, not {PARAMS}.lr={written:g}; "
            f"optimizer.lr={written:g} trains at the latter"
        )
    elif written is None:
        _note_peak(reader, peak)
    wanted.said["lr"] = peak
    wanted.said.pop("adam_lr", None)
    wanted.left_out["adam_lr"] = None


def _note_peak(reader: Reader, peak: float) -> None:
    """The peak goes before an lr of "auto", too, which is then not open any more."""
    reader.auto = [key for key in reader.auto if key != f"{PARAMS}.lr"]
    reader.notes.append(f"optimizer.lr={peak:g} is the scheduler's warmup_max_lr, which replaces {PARAMS}.lr in DeepSpeed")
