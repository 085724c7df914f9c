"""The DeepSpeed engine, from ``ds_config.json`` to the letter."""

import copy
import logging
from types import ModuleType
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from transformers import PreTrainedModel
from transformers.integrations import HfDeepSpeedConfig

from glmexp.config.batch import Batch
from glmexp.config.errors import UserError
from glmexp.config.schema import Config
from glmexp.train.schedule import lr_scheduler
from glmexp.train.zenflow import keep_weights_in_place

LOGGER = logging.getLogger(__name__)


def batch_numbers(ds_config: dict[str, Any], world_size: int) -> Batch:
    """The batch of the DeepSpeed config, checked against the number of ranks.

    Raises:
        UserError: the folder was written for another number of ranks.
    """
    micro = ds_config["train_micro_batch_size_per_gpu"]
    accumulation = ds_config["gradient_accumulation_steps"]
    total = ds_config["train_batch_size"]
    sharing = ds_config.get("sequence_parallel_size", 1)
    if micro * accumulation * world_size != total * sharing:
        shared = f" / comm.sequence_parallel_size {sharing}" if sharing > 1 else ""
        raise UserError(
            f"ds_config.json was written for {total * sharing / (micro * accumulation):g} ranks, and there are {world_size}: "
            f"batch.micro {micro} x batch.accumulation {accumulation} x {world_size} ranks{shared} is not batch.total {total}\n"
            f"compose it again with launch.ranks, or start it with as many ranks"
        )
    return Batch(micro, accumulation, total)


def partition_on_load(ds_config: dict[str, Any]) -> HfDeepSpeedConfig | None:
    """At stage 3, what makes transformers partition each weight as it is read; to be kept alive until the engine is built."""
    if ds_config.get("zero_optimization", {}).get("stage") != 3:
        return None
    return HfDeepSpeedConfig(copy.deepcopy(ds_config))


def start(
    model: PreTrainedModel, config: Config, ds_config: dict[str, Any], steps: int, mpu: ModuleType | None = None
) -> deepspeed.DeepSpeedEngine:
    """Hands the model and ``ds_config`` to DeepSpeed.

    Args:
        model: with the tuning method applied; only parameters that require a gradient are optimized.
        ds_config: the content of ``ds_config.json``.
        steps: optimizer steps of the run, for the schedule.
        mpu: the groups of ranks that share samples (``train.sequence_parallel``), if any do.
    """
    if config.activation.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    zenflow = ds_config.get("zero_optimization", {}).get("zenflow")
    if zenflow:
        keep_weights_in_place()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
        config=copy.deepcopy(ds_config),
        lr_scheduler=lr_scheduler(steps, config.scheduler, zenflow["update_interval"] if zenflow else 1),
        mpu=mpu,
        dist_init_required=False,
    )
    _undo_first_step(engine)
    if ds_config.get("compile", {}).get("deepcompile"):
        engine.compile()  # without this call DeepSpeed trains on as if the key were not there
    LOGGER.info(
        "optimizer: %s under %s, ZeRO stage %d", optimizer_name(engine), type(engine.optimizer).__name__, zero_stage(engine)
    )
    return engine


def _undo_first_step(engine: deepspeed.DeepSpeedEngine) -> None:
    """Takes back the step on zero gradients by which DeepSpeed allocates the states of bf16 at stage 0.

    That step counts in Adam's bias correction and decays the weights: the first update would be 0.74 of what it should be
    (FP16_UnfusedOptimizer and FP16_Optimizer, initialize_optimizer_states). The states are made anew at the first real step.
    """
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer | FP16_Optimizer):
        engine.optimizer.optimizer.state.clear()
        engine.optimizer.refresh_fp32_params()


def optimizer_name(engine: deepspeed.DeepSpeedEngine) -> str:
    """Class of the optimizer that does the arithmetic, such as DeepSpeedCPUAdam."""
    return type(engine.basic_optimizer).__name__


def zero_stage(engine: deepspeed.DeepSpeedEngine) -> int:
    return int(engine.zero_optimization_stage())


def loss_scale(engine: deepspeed.DeepSpeedEngine) -> float:
    """The scale that the next backward pass uses; 1.0 where nothing is scaled.

    ``engine.loss_scale()`` is the configured value (0 for a dynamic scaler) and not the one in use.
    """
    if not engine.fp16_enabled():
        return 1.0
    scale = engine._get_optimizer_loss_scale()
    return float(engine.optimizer.loss_scale if scale is None else scale)


def gradient_norm(engine: deepspeed.DeepSpeedEngine) -> float:
    """L2 norm of the averaged gradients before clipping, from ``.grad``; for stage 0, before ``engine.step()``.

    There every rank holds all gradients, and DeepSpeed exposes no norm for fp32 and has no overflow check.
    """
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    return float(torch.linalg.vector_norm(torch.stack(list(norms)).double()))
