"""Puts a checkpoint's tensors and counters into a new engine, which may have other ranks and another ZeRO stage.

DeepSpeed's own ``load_checkpoint`` unpickles what it finds, takes lr, weight decay and clipping from the file whatever the
configuration says now, and knows neither another number of ranks nor another stage. Here every rank copies its own part from
the mapped files. The state is equal to the bit: a skipped conversion, and the next step is that of the run that wrote it.
"""

import math
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.ops.adam import DeepSpeedCPUAdam

from glmexp.config.errors import UserError
from glmexp.train.checkpoint.files import Contents
from glmexp.train.checkpoint.layout import Flat, layout, trained
from glmexp.train.engine import zero_stage

SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What moves in DeepSpeed's DynamicLossScaler; the rest of it is configuration."""


def restore(engine: DeepSpeedEngine, contents: Contents) -> None:
    """Master weights, compute weights, moments, loss scale, schedule and counters; all ranks call it together.

    lr, betas, weight decay, clipping and the scaler's settings stay those of the present configuration. Before the first step.

    Raises:
        UserError: the checkpoint is of another model or method.
    """
    refuse_others(trained(engine.module), contents)
    at_stage_3 = zero_stage(engine) == 3
    with torch.no_grad():
        if at_stage_3:
            engine.optimizer.checkpoint_event_prologue()
        for flat in layout(engine):
            _fill(flat, contents, engine.basic_optimizer)
        _refresh_compute_weights(engine)
        if at_stage_3:
            engine.optimizer.checkpoint_event_epilogue()
    state = contents.saved.state
    engine.global_steps, engine.skipped_steps = state["step"], state["skipped"]
    engine.global_samples = state["step"] * engine.train_batch_size()
    _set_schedule(engine.lr_scheduler, state["applied"])
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is not None and state["loss_scaler"] and getattr(scaler, "dynamic", False):
        vars(scaler).update(state["loss_scaler"])


def scaler_state(engine: DeepSpeedEngine) -> dict[str, Any]:
    """What a dynamic loss scaler has found so far; empty without one."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    dynamic = scaler is not None and getattr(scaler, "dynamic", False)
    return {name: getattr(scaler, name) for name in SCALER_STATE} if dynamic else {}


def refuse_others(wanted: dict[str, tuple[int, ...]], contents: Contents) -> None:
    """Raises UserError where the parameters that are trained are not those of the checkpoint."""
    found = contents.shapes
    if found == wanted:
        return
    name = next(name for name in [*wanted, *found] if found.get(name) != wanted.get(name))
    here, there = (f"of shape {shapes[name]}" if name in shapes else "not trained" for shapes in (wanted, found))
    raise UserError(
        f"{contents.saved.path} is of another model or method: {name} is {there} there and {here} here\n"
        "resume with the model and method of that run, or leave train.resume out"
    )


def _fill(flat: Flat, contents: Contents, optimizer: torch.optim.Optimizer) -> None:
    """The master weights and the optimizer's state of one of its tensors; padding is zero."""
    if not flat.pieces:
        return
    state: dict[str, Any] = {key: _like(flat.master, key, flat, contents) for key in contents.keys(flat.pieces[0].name)}
    _copy(flat.master, None, flat, contents)
    for key, tensor in state.items():
        _copy(tensor, key, flat, contents)
    count = contents.count(flat.pieces[0].name)
    if count is not None:
        adam = getattr(optimizer, "aux_optimizer", None) or optimizer  # Muon has one for what is no matrix
        state["step"] = _counter(count, adam, flat.master.device)
        _count_up_to(count, adam)
    optimizer.state[flat.master] = state


def _counter(count: int, adam: torch.optim.Optimizer, device: torch.device) -> int | torch.Tensor:
    """A number of steps in the form that ``adam`` counts in: DeepSpeed's in a number, torch's in a tensor, which its fused
    kernel reads where the weights are (torch/optim/adam.py, ``_init_group``)."""
    if not isinstance(adam, torch.optim.Adam):
        return count
    group = adam.param_groups[0]
    return torch.tensor(float(count), device=device if group["fused"] or group["capturable"] else "cpu")


def _like(master: torch.Tensor, key: str, flat: Flat, contents: Contents) -> torch.Tensor:
    piece = flat.pieces[0]
    return torch.zeros_like(master, dtype=contents.read(piece.name, piece.start, piece.start + 1, key).dtype)


def _copy(target: torch.Tensor, key: str | None, flat: Flat, contents: Contents) -> None:
    values = target.data.view(-1)
    for piece in flat.pieces:
        part = values[piece.at : piece.at + piece.stop - piece.start]
        part.copy_(contents.read(piece.name, piece.start, piece.stop, key))


def _count_up_to(count: int, optimizer: torch.optim.Optimizer) -> None:
    """Lets DeepSpeedCPUAdam reach beta ** count as a run does, by one product a step.

    Its C++ side keeps these powers and no file holds them; a new one would take them from ``pow``, which rounds differently.
    """
    if not isinstance(optimizer, DeepSpeedCPUAdam) or getattr(optimizer, "_counted", 0) == count:
        return
    nothing = [torch.zeros(1) for _ in range(4)]
    beta1, beta2 = optimizer.param_groups[0]["betas"]
    for step in range(1, count + 1):
        optimizer.ds_opt_adam.adam_update(optimizer.opt_id, step, 0.0, beta1, beta2, 1e-8, 0.0, True, *nothing)
    optimizer._counted = count


def _refresh_compute_weights(engine: DeepSpeedEngine) -> None:
    """The weights that the model computes with, from the master weights, as an optimizer step leaves them."""
    optimizer = engine.optimizer
    stage = zero_stage(engine)
    if stage == 3:
        for low, master in zip(optimizer.fp16_partitioned_groups_flat, optimizer.fp32_partitioned_groups_flat, strict=True):
            low.data.copy_(master.data)
    elif stage:
        optimizer.update_lp_params()
    else:
        parameters = dict(engine.module.named_parameters())
        for flat in layout(engine):
            values = flat.master.data.view(-1)
            for piece in flat.pieces:
                low = parameters[piece.name].data
                low.copy_(values[piece.at : piece.at + math.prod(low.shape)].view(low.shape))


def _set_schedule(scheduler: Any, applied: int) -> None:
    """The present schedule at its place after ``applied`` updates."""
    scheduler.last_epoch = applied
    scheduler._step_count = applied + 1
    for group, base, factor in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = base * factor(applied)
    scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]
