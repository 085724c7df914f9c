"""Any overrides compose into a dict that DeepSpeed and the linter accept, or are refused by name; never a traceback."""

import contextlib
import random
import time
from types import SimpleNamespace
from typing import get_type_hints

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from glmexp.config import UserError, compose
from glmexp.config.compose import VERSION_BASE, conf_dir, from_composition, register
from glmexp.config.schema import Config
from glmexp.dsconfig import Machine
from glmexp.dsconfig.examine import examine
from glmexp.dsconfig.findings import Severity, Situation
from glmexp.dsconfig.lint import lint

GROUPS = {
    "zero": ["stage0", "stage1", "stage2", "stage3", "stage3_zeropp"],
    "offload": ["none", "cpu", "cpu_all", "nvme", "super_offload", "zenflow"],
    "precision": ["bf16", "fp16", "fp32", "bf16_states", "autocast"],
    "scaler": ["dynamic", "static"],
    "method": ["full", "lora", "ptuning_v2"],
    "optimizer": ["adamw", "muon"],
    "scheduler": ["cosine", "linear", "constant"],
    "activation": ["none", "checkpoint"],
    "comm": ["default", "ulysses"],
    "kernels": ["eager", "deepcompile"],
}
SET_IN = ("zero", "offload", "precision", "scaler", "batch", "optimizer", "comm", "kernels", "activation", "train")
VALUES = ("null", "true", "false", "0", "1", "2", "3", "4", "8", "16", "0.5", "-1", "1e-4", "5e8", "1e20", "bf16", "fp32",
          "cpu", "auto", "[]", "[0.9,0.95]", "/tmp", "nan", "x")  # fmt: skip
RAW = (
    "gradient_clipping", "gradient_cliping", "steps_per_print", "wall_clock_breakdown", "prescale_gradients", "elasticity",
    "zero_optimization.stage", "zero_optimization.round_robin_gradients", "zero_optimization.offload_param.device",
    "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.zero_quantized_weights", "zero_optimisation.stage",
    "fp16.hysteresis", "bf16.enabled", "scheduler.type", "optimizer.params.lr", "optimizer.params.learning_rate",
    "comms_logger.enabled", "flops_profiler.enabled", "activation_checkpointing.partition_activations", "aio.queue_depth",
    "data_types.grad_accum_dtype", "train_batch_size", "sequence_parallel_size", "log_level", "compile.deepcompile",
    "gradient_predivide_factor", "gradient_allreduce_op", "zero_optimization.ignore_unused_parameters", "new_key",
)  # fmt: skip
MACHINES = [Machine(ranks, device) for ranks in (1, 2, 4, 8) for device in ("gpu", "cpu")]


def fields():
    hints = get_type_hints(Config)
    return [f"{group}.{name}" for group in SET_IN for name in get_type_hints(hints[group])]


def drawn(seed):
    """One to six random overrides and a machine."""
    draw = random.Random(seed)
    groups = draw.sample(sorted(GROUPS), draw.randint(0, 2))
    overrides = [f"{group}={draw.choice(GROUPS[group])}" for group in groups]
    overrides += [f"{key}={draw.choice(VALUES)}" for key in draw.sample(fields(), draw.choice((0, 0, 0, 0, 1, 2)))]
    overrides += [f"+deepspeed.{key}={draw.choice(VALUES)}" for key in draw.sample(RAW, draw.choice((0, 0, 0, 0, 1, 2)))]
    return overrides, draw.choice(MACHINES)


@pytest.fixture(scope="module")
def parse():
    """DeepSpeed's own parser, told a number of ranks."""
    import deepspeed.runtime.config as module

    def parse(ds_config, ranks):
        with contextlib.redirect_stdout(None), pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "dist", SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: ranks))
            return module.DeepSpeedConfig(ds_config)

    return parse


def holds(seed, parse):
    """Whether the overrides composed; fails if neither outcome is a proper one."""
    overrides, machine = drawn(seed)
    try:
        ds_config, _ = examine(compose(overrides).config, machine)
    except UserError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        keys = [override.lstrip("+").partition("=")[0] for override in overrides]
        named = [key for key in keys if key.removeprefix("deepspeed.") in refusal or key.split(".")[0] in refusal]
        assert named, f"{overrides} on {machine}: no key is named in: {refusal}"
        assert 0 < len(refusal.splitlines()) <= 6, refusal
        return False
    assert '"auto"' not in str(ds_config)
    parsed = parse(ds_config, machine.world_size)
    assert parsed.train_batch_size == ds_config["train_batch_size"]
    situation = Situation(world_size=machine.world_size, device=machine.device)
    assert not [finding for finding in lint(ds_config, situation) if finding.severity is Severity.error], overrides
    return True


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_random_overrides(part, parse):
    composed = sum(holds(seed, parse) for seed in range(50 * part, 50 * part + 50))
    assert 10 <= composed <= 45, "a property over refusals alone, or over no refusal, says nothing"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_overrides(parse):
    assert sum(holds(seed, parse) for seed in range(1000, 3000)) > 400


def test_checks_and_build_take_less_than_20_ms():
    """On top of Hydra's own composition, in CPU time so that a busy machine does not matter."""
    register()
    with initialize_config_dir(version_base=VERSION_BASE, config_dir=conf_dir(), job_name="glmexp"):
        task = hydra_compose("config", ["zero=stage3", "offload=cpu_all", "method=lora"], return_hydra_config=True)
    taken = []
    for _ in range(10):
        started = time.process_time()
        examine(from_composition(task, task.hydra).config, Machine(2, "gpu"))
        taken.append(time.process_time() - started)
    assert min(taken) < 0.020
