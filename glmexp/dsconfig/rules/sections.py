"""Sections that nothing turns on, or that a Hugging Face model never asks for."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, asks, error, info, warning

SWITCHED = (
    "fp16",
    "bf16",
    "bfloat16",
    "torch_autocast",
    "flops_profiler",
    "comms_logger",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "hybrid_engine",
    "expert_parallel",
    "data_efficiency",
    "autotuning",
)
"""Sections that are off unless their ``enabled`` is true."""


def findings(asked: Asked) -> Iterator[Finding]:
    for name in SWITCHED:
        section = asked.section(name)
        if "enabled" not in section and asks(section):
            yield error(name, Kind.no_effect, f"is off, for it has no enabled; add {name}.enabled true, or leave it out")
    if asked.on("autotuning.enabled"):
        # runtime/engine.py, _take_model_step and _autotuning_exit
        last = asked.number("autotuning.end_profile_step", 5)
        when = "after a few steps" if last is None else f"at step {last + 1:.0f}"
        message = f"true ends the program {when}, as if all were well: it is for deepspeed --autotuning; leave it out otherwise"
        yield warning("autotuning.enabled", Kind.value, message)
    if asked.asks("activation_checkpointing"):
        message = "has no effect on Hugging Face models; use their gradient_checkpointing instead"
        if asked.trainer:
            yield error("activation_checkpointing", Kind.no_effect, message)
        else:
            message = "only models that call deepspeed.checkpointing use it; Hugging Face models do not"
            yield info("activation_checkpointing", Kind.no_effect, message)
