"""``optimizer`` and ``scheduler``: read with ``dict.get``; their ``params`` go to a constructor when the engine is built.

Constructors: deepspeed/ops/adam, adagrad, lion, lamb, runtime/lr_schedules.py; what is popped from the parameters before, and
Muon's groups: runtime/engine.py, _configure_basic_optimizer, get_optimizer_configuration and _muon_param_groups. Any other type
is a class of torch.optim (or torch.optim.lr_scheduler), whose parameters are its own.
"""

from collections.abc import Mapping

from glmexp.dsconfig.table.shape import Key, Removed, Section, Variants, anything, choice, flag, listing, number, whole

_LR = number(0.001, least=0)
_BETAS = listing([0.9, 0.999], items="number", null=False)
_DECAY = number(0.0, least=0)
_EPS = number(1e-8, least=0)


def _params(keys: Mapping[str, Key]) -> Section:
    # The engine refuses max_grad_norm for each of them, and in words: a rule tells what to write instead.
    return Section(checked=False, null=True, keys={**keys, "max_grad_norm": anything()})


ADAM: Mapping[str, Key] = {
    "lr": _LR,
    "betas": _BETAS,
    "eps": _EPS,
    "weight_decay": _DECAY,
    "bias_correction": flag(True),
    "amsgrad": flag(),
    "adam_w_mode": flag(True),
    "torch_adam": flag(),
    "fp32_optimizer_states": flag(True),
    # FusedAdam's, and torch.optim.AdamW's with torch_adam.
    "set_grad_none": flag(True),
    "fused": flag(None),
    "foreach": flag(None),
    "capturable": flag(),
    "maximize": flag(),
    "differentiable": flag(),
    "decoupled_weight_decay": flag(),
}

PARAMS: Mapping[str, Section] = {
    "adam": _params(ADAM),
    "adamw": _params(ADAM),
    "adagrad": _params(
        {
            "lr": number(0.01, least=0),
            "eps": number(1e-10, least=0),
            "weight_decay": _DECAY,
            # DeepSpeedCPUAdagrad's, with offload.
            "amsgrad": flag(),
            "fp32_optimizer_states": flag(True),
            # torch.optim.Adagrad's, without.
            "lr_decay": number(0.0, least=0),
            "initial_accumulator_value": number(0.0, least=0),
            "foreach": flag(None),
            "fused": flag(None),
            "maximize": flag(),
            "differentiable": flag(),
        }
    ),
    "lamb": _params(
        {
            "lr": _LR,
            "bias_correction": flag(True),
            "betas": _BETAS,
            "eps": _EPS,
            "eps_inside_sqrt": flag(),
            "weight_decay": _DECAY,
            "max_coeff": number(10.0),
            "min_coeff": number(0.01),
            "amsgrad": flag(),
        }
    ),
    "lion": _params(
        {
            "lr": _LR,
            "betas": _BETAS,
            "weight_decay": _DECAY,
            "set_grad_none": flag(True),
            "fp32_optimizer_states": flag(True),
        }
    ),
    "muon": _params(
        {
            "lr": _LR,
            "muon_lr": number(None, least=0),
            "adam_lr": number(None, least=0),
            "momentum": number(0.95, least=0),
            "ns_method": choice("gram", "gram", "standard"),
            "per_head_muon": flag(),
            "betas": _BETAS,
            "eps": _EPS,
            "weight_decay": _DECAY,
            "adam_w_mode": flag(True),
            "torch_adam": flag(),
            "fp32_optimizer_states": flag(True),
            "foreach": flag(None),
        }
    ),
}

_ONE_BIT = "the 1-bit optimizers are gone; write AdamW or Lamb, and ZeRO++ where the traffic is the matter"

REMOVED_TYPES: Mapping[str, Removed] = {
    name: Removed(_ONE_BIT, "0.19.7") for name in ("onebitadam", "zerooneadam", "onebitlamb")
}
"""Lower-case ``optimizer.type`` of older releases."""

_TORCH_OPTIMIZERS = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam"),
)
TORCH_SCHEDULES = (
    *("ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR"),
    *("LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau"),
    *("SequentialLR", "StepLR"),
)

OPTIMIZER = Section(
    checked=False,
    keys={
        "type": choice(None, *_TORCH_OPTIMIZERS, folded=(*PARAMS, "muadam", "muadamw", "musgd")),
        "params": Variants("type", PARAMS, other=Section(checked=False, null=True, open=True, keys={}), fold=True, null=True),
        "legacy_fusion": flag(),
    },
)

_WARMUP: Mapping[str, Key] = {
    "warmup_num_steps": whole(1000, above=0),
    "warmup_type": choice("log", "log", "linear"),
    "last_batch_iteration": whole(-1),
}


def _lr(default: float | None) -> Key:
    """A learning rate, or a list of one each parameter group."""
    return anything(default)


SCHEDULES: Mapping[str, Section] = {
    name: Section(checked=False, keys=keys)
    for name, keys in {
        "LRRangeTest": {
            "lr_range_test_min_lr": _lr(0.001),
            "lr_range_test_step_size": whole(2000, above=0),
            "lr_range_test_step_rate": number(1.0),
            "lr_range_test_staircase": flag(),
            "last_batch_iteration": whole(-1),
        },
        "OneCycle": {
            "cycle_min_lr": _lr(None),
            "cycle_max_lr": _lr(None),
            "decay_lr_rate": number(0.0),
            "cycle_first_step_size": number(2000, above=0),
            "cycle_second_step_size": number(None, least=0),
            "cycle_first_stair_count": number(0),
            "cycle_second_stair_count": number(None),
            "decay_step_size": number(0),
            "cycle_momentum": flag(True),
            "cycle_min_mom": number(0.8),
            "cycle_max_mom": number(0.9),
            "decay_mom_rate": number(0.0),
            "last_batch_iteration": whole(-1),
        },
        "WarmupLR": {"warmup_min_lr": _lr(0.0), "warmup_max_lr": _lr(None), **_WARMUP},
        "WarmupDecayLR": {
            "total_num_steps": whole(None, null=False),
            "warmup_min_lr": _lr(0.0),
            "warmup_max_lr": _lr(0.001),
            **_WARMUP,
        },
        "WarmupCosineLR": {
            "total_num_steps": whole(None, null=False),
            "warmup_min_ratio": number(0.0),
            "cos_min_ratio": number(0.0001),
            **_WARMUP,
        },
    }.items()
}

SCHEDULER = Section(
    checked=False,
    keys={
        "type": choice(None, *SCHEDULES, *TORCH_SCHEDULES),
        "params": Variants("type", SCHEDULES, other=Section(checked=False, open=True, keys={})),
    },
)
