"""A DeepSpeed config for the Hugging Face Trainer, as LLaMA-Factory and ms-swift use it.

The word "auto" stands where the Trainer has an argument of its own, so that argument and file cannot contradict each other:
``dsconfig.table.trainer`` has the list. What was tuned, ZeRO's section above all, stays as it was measured. There is no
``scheduler``: without one the Trainer makes its own, by --lr_scheduler_type. The precision is the trial's and not "auto": the
Trainer refuses to start under another one instead of training in it.
"""

import copy
from collections.abc import Mapping
from typing import Any

AUTO = "auto"
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
OPTIMIZER = ("lr", "betas", "eps", "weight_decay")
PRECISIONS = ("bf16", "fp16")


def for_trainer(ds_config: Mapping[str, Any]) -> dict[str, Any]:
    """``ds_config`` with "auto" in the fields that the Trainer owns."""
    config = copy.deepcopy(dict(ds_config))
    config |= dict.fromkeys(BATCH, AUTO)
    params = config.get("optimizer", {}).get("params", {})
    params |= {name: AUTO for name in OPTIMIZER if name in params}
    return config


def arguments(ds_config: Mapping[str, Any]) -> str:
    """The Trainer's arguments that give back the trial's numbers."""
    params = ds_config.get("optimizer", {}).get("params", {})
    given = {
        "per_device_train_batch_size": ds_config.get("train_micro_batch_size_per_gpu"),
        "gradient_accumulation_steps": ds_config.get("gradient_accumulation_steps"),
        "max_grad_norm": ds_config.get("gradient_clipping"),
        "learning_rate": params.get("lr"),
        "adam_beta1": (params.get("betas") or [None])[0],
        "adam_beta2": (params.get("betas") or [None])[-1],
        "adam_epsilon": params.get("eps"),
        "weight_decay": params.get("weight_decay"),
        **{name: True for name in PRECISIONS if ds_config.get(name, {}).get("enabled")},
    }
    return " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
