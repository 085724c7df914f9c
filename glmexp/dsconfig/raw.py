"""Raw DeepSpeed keys (``+deepspeed.KEY=value``) that glmexp's worker would not honour, and where to ask for it instead."""

from collections.abc import Iterator, Mapping
from typing import Any

from glmexp.dsconfig.findings import View
from glmexp.dsconfig.rules.asked import asks

OWNED = {
    "scheduler": "glmexp steps its own schedule; use scheduler=cosine, linear or constant and scheduler.warmup_steps",
    "activation_checkpointing": "Hugging Face models never ask DeepSpeed to checkpoint; use activation=checkpoint",
    "bf16": "the model is loaded in precision.dtype; use precision=bf16",
    "bfloat16": "the model is loaded in precision.dtype; use precision=bf16",
    "fp16": "the model is loaded in precision.dtype; use precision=fp16",
    "torch_autocast": "the model is loaded in precision.dtype; use precision=autocast",
    "zero_optimization.offload_optimizer": "the optimizer depends on it; use offload=cpu",
    "zero_optimization.offload_param": "the optimizer depends on it; use offload=cpu_all",
    "zero_optimization.cpu_offload": "an old name of offload_optimizer; use offload=cpu",
    "zero_optimization.cpu_offload_param": "an old name of offload_param; use offload=cpu_all",
    "zero_optimization.zenflow": "the accumulation depends on it; use offload=zenflow",
    "aio": "nothing reads it without NVMe; use offload=nvme",
    "compile": "the engine has to be compiled; use kernels=deepcompile",
    "sequence_parallel_size": "the model and the data have to be split too; use comm=ulysses",
    "tensor_parallel": "glmexp gives each rank its own samples, and ranks of one tensor-parallel group need the same",
    "managed_gradient_accumulation": "the loop steps once a micro batch, as true wants it",
    "gradient_allreduce_op": "the loss is already weighed for a mean over ranks",
    "dataloader_drop_last": "glmexp has its own data loader",
    "data_efficiency": "it works on DeepSpeed's data loader, and glmexp has its own",
    "pipeline": "it needs a model cut into pipeline stages",
    "autotuning": "it needs DeepSpeed's launcher and a script of its own",
    "hybrid_engine": "it is made for generation inside RLHF training",
    "wandb": "ranks do not see the key of an account; use tracker=wandb",
    "comet": "ranks do not see the key of an account; use tracker=wandb",
}
"""DeepSpeed key -> why setting it raw would not do what it says, and the override that does where there is one."""

ON_UNLESS_SET = ("managed_gradient_accumulation",)


def unheeded(raw: Mapping[str, Any], derived: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, why) of the raw keys in ``OWNED`` that ask for something and that the config itself does not emit."""
    for key, why in OWNED.items():
        value = View(raw).raw(key)
        wanted = value is False if key in ON_UNLESS_SET else asks(value)
        if wanted and View(derived).raw(key) is None:
            yield key, why
