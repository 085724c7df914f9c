"""``fp16``, ``bf16`` (deepspeed/runtime/precision_config.py), ``torch_autocast`` and ``data_types`` (runtime/config.py)."""

from glmexp.dsconfig.table.shape import Section, choice, flag, listing, number, whole

FP16 = Section(
    keys={
        "enabled": flag(),
        "auto_cast": flag(),
        "loss_scale": number(0.0, least=0),
        "initial_scale_power": whole(16),
        "loss_scale_window": whole(1000, above=0),
        "hysteresis": whole(2),
        "consecutive_hysteresis": flag(),
        "min_loss_scale": whole(1, above=0),
        "fp16_master_weights_and_grads": flag(),
    }
)

BF16 = Section(
    null=True,  # it then looks for "bfloat16"
    keys={
        "enabled": flag(),
        "immediate_grad_update": flag(),
        "check_grad_overflow": flag(True),
        "bf16_master_weights_and_grads": flag(),
        "bf16_optimizer_states": flag(),
    },
)

DTYPES = ("fp16", "bf16", "fp32", "float16", "bfloat16", "float32", "half", "float")
_NAMES = (*DTYPES, "torch.float16", "torch.bfloat16", "torch.float32", "int8", "torch.int8")
"""What ``DtypeEnum`` of runtime/config.py knows; int8 passes it and nothing can train in it."""

TORCH_AUTOCAST = Section(
    checked=False,
    keys={
        "enabled": flag(),
        "dtype": choice(None, *_NAMES[:-2], null=False),
        "lower_precision_safe_modules": listing(None, items="text", null=False),
    },
)

DATA_TYPES = Section(
    checked=False,
    keys={
        "grad_accum_dtype": choice(None, *_NAMES[:-2]),
        "param_dtype": choice(None, *_NAMES[:-2]),
        "buffer_dtype": choice(None, *_NAMES[:-2]),
        "keep_in_fp32_modules": listing("auto", items="text", words=("auto",), null=False),
    },
)
