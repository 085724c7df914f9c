"""Every key that DeepSpeed's config knows, at every level (deepspeed/runtime/config.py and constants.py).

``tests/dsconfig/test_table.py`` compares this with the installed DeepSpeed, both ways.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from glmexp.dsconfig.table import parallel, services
from glmexp.dsconfig.table.optimizer import OPTIMIZER, SCHEDULER
from glmexp.dsconfig.table.precision import BF16, DATA_TYPES, FP16, TORCH_AUTOCAST
from glmexp.dsconfig.table.shape import (
    Key,
    Node,
    Removed,
    Section,
    Variants,
    anything,
    choice,
    flag,
    number,
    whole,
)
from glmexp.dsconfig.table.zero import ZERO

__all__ = ["DESCRIBES", "REMARK", "SYNONYMS", "TOP", "Key", "Node", "Removed", "Section", "Variants", "places", "walk"]

DESCRIBES = "0.19.8"
"""The DeepSpeed release that this table is of."""

_COMMUNICATION = ("fp16", "bf16", "fp32")

TOP = Section(
    checked=False,
    keys={
        "train_batch_size": whole(None, least=1),
        "train_micro_batch_size_per_gpu": whole(None, least=1),
        "gradient_accumulation_steps": whole(None, least=1),
        "managed_gradient_accumulation": flag(True),
        "steps_per_print": whole(None, least=1),
        "gradient_clipping": number(1.0),
        "optimizer": OPTIMIZER,
        "scheduler": SCHEDULER,
        "zero_optimization": ZERO,
        "zero_allow_untested_optimizer": flag(),
        "zero_force_ds_cpu_optimizer": flag(True),
        "fp16": FP16,
        "bf16": BF16,
        "torch_autocast": TORCH_AUTOCAST,
        "data_types": DATA_TYPES,
        "communication_data_type": choice(None, folded=_COMMUNICATION),
        "seq_parallel_communication_data_type": choice("fp32", folded=_COMMUNICATION, null=True),
        "prescale_gradients": flag(),
        "gradient_predivide_factor": number(1.0, above=0),
        "gradient_allreduce_op": choice("mean", folded=("mean", "sum")),
        "disable_allgather": flag(unused="it is read and used nowhere"),
        "dump_state": flag(),
        "disable_python_gc": flag(),
        "wall_clock_breakdown": flag(null_is_false=False),  # runtime/config.py: get_wall_clock_breakdown(...) | enabled
        "memory_breakdown": flag(),
        "dataloader_drop_last": flag(),
        "log_level": choice(None, folded=("debug", "info", "warning", "error", "critical")),
        "vocabulary_size": whole(None),
        "sequence_parallel_size": whole(None, null=False, least=1),
        "data_parallel_size": whole(None, null=False, least=1),
        "use_data_before_expert_parallelism": flag(),
        "activation_checkpointing": services.ACTIVATION_CHECKPOINTING,
        "comms_logger": services.COMMS_LOGGER,
        "tensorboard": services.TENSORBOARD,
        "wandb": services.WANDB,
        "csv_monitor": services.CSV_MONITOR,
        "comet": services.COMET,
        "flops_profiler": services.FLOPS_PROFILER,
        "timers": services.TIMERS,
        "autotuning": services.AUTOTUNING,
        "data_efficiency": services.DATA_EFFICIENCY,
        "checkpoint": services.CHECKPOINT,
        "datastates_ckpt": anything(),  # handed whole to the datastates package
        "aio": services.AIO,
        "compile": parallel.COMPILE,
        "tensor_parallel": parallel.TENSOR_PARALLEL,
        "expert_parallel": parallel.EXPERT_PARALLEL,
        "hybrid_engine": parallel.HYBRID_ENGINE,
        "pipeline": parallel.PIPELINE,
        "weight_quantization": parallel.WEIGHT_QUANTIZATION,
    },
    removed={
        "bfloat16": Removed("write bf16", works=True),
        "fp32_allreduce": Removed('write "communication_data_type": "fp32"', "0.5.8"),
        "allgather_size": Removed("leave it out: it belonged to zero_optimization: true", "0.7.0"),
        "seq_parallel_comm_data_type": Removed("write seq_parallel_communication_data_type", "0.16.5"),
        "nebula": Removed("checkpoints go through torch.save, or through the checkpoint section", "0.19.7"),
        "compression_training": Removed("DeepSpeed no longer compresses models; leave it out", "0.19.7"),
        "quantize_training": Removed("DeepSpeed no longer quantises in training; leave it out", "0.19.7"),
        "sparse_attention": Removed("leave it out", "0.19.7"),
        "amp": Removed("Apex is gone; write bf16, fp16 or torch_autocast", "0.19.8"),
        "sparse_gradients": Removed("leave it out: torch.nn.Embedding(sparse=True) needs no flag", "0.19.8"),
        "eigenvalue": Removed("it served quantize_training, which is gone too; leave it out", "0.19.8"),
        "elasticity": Removed(
            "write train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps", "0.19.8"
        ),
        "graph_harvesting": Removed("leave it out", "0.19.8"),
        "curriculum_learning": Removed("write data_efficiency.data_sampling.curriculum_learning", "0.19.8"),
        "progressive_layer_drop": Removed("leave it out", "0.19.8"),
    },
)

SYNONYMS = {
    "learning_rate": "lr",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "global_batch_size": "train_batch_size",
    "warmup_steps": "warmup_num_steps",
    "max_steps": "total_num_steps",
    "gradient_checkpointing": "activation_checkpointing",
    "comms_config": "comms_logger",
    "entity": "team",
    "zero": "zero_optimization",
    "zero_stage": "stage",
}
"""Names of trainers -> the key of DeepSpeed's config."""

REMARK = re.compile(r"_*comments?|[_/#$].*", re.IGNORECASE | re.DOTALL)
"""Names at the top level by which people write a remark into JSON."""


def walk(section: Section = TOP, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Every dotted key of the table with its node, each parameter of each optimizer and schedule once."""
    for name, node in section.keys.items():
        yield f"{prefix}{name}", node
        if isinstance(node, Section):
            yield from walk(node, f"{prefix}{name}.")
        elif isinstance(node, Variants):
            merged = {key: found for variant in node.sections.values() for key, found in variant.keys.items()}
            yield from walk(Section(merged), f"{prefix}{name}.")


@lru_cache(maxsize=1)
def places() -> dict[str, list[str]]:
    """Name of a key -> the sections that hold it ("" is the top level)."""
    found: dict[str, list[str]] = {}
    for key, node in walk():
        section, _, name = key.rpartition(".")
        for known in (name, node.alias if isinstance(node, Key | Section) else ""):
            if known:
                found.setdefault(known, []).append(section)
    return found
