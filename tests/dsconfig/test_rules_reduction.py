"""Rules about ZenFlow and about how gradients are summed over the ranks."""

import pytest
from rule_cases import ABSENT, ADAMW, Case, holds, name

from glmexp.dsconfig.findings import Situation

ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"
OPTIMIZER = f"{ZERO}.offload_optimizer"
CPU = {"device": "cpu"}
WORLD2 = Situation(world_size=2)
ZENFLOW = {
    **ADAMW,
    OPTIMIZER: CPU,
    "gradient_accumulation_steps": 4,
    f"{ZERO}.zenflow": {"select_strategy": "step", "select_interval": 16, "update_interval": 4},
}

CASES = [
    # ZenFlow.
    Case(f"{ZERO}.zenflow", "contradiction", "error", {**ZENFLOW, OPTIMIZER: {"device": "none"}}, ZENFLOW),
    Case(f"{ZERO}.zenflow", "contradiction", "error", {**ZENFLOW, "optimizer": None}, ZENFLOW),
    Case(f"{ZERO}.zenflow.update_interval", "contradiction", "error", {**ZENFLOW, "gradient_accumulation_steps": 2}, ZENFLOW),
    Case(
        f"{ZERO}.zenflow.update_interval",
        "contradiction",
        "error",
        {**ZENFLOW, f"{ZERO}.zenflow.update_interval": "auto"},
        ZENFLOW,
    ),
    Case(
        f"{ZERO}.zenflow.select_interval", "contradiction", "error", {**ZENFLOW, f"{ZERO}.zenflow.select_interval": 2}, ZENFLOW
    ),
    Case(
        f"{ZERO}.zenflow.select_interval",
        "contradiction",
        "error",
        {**ZENFLOW, f"{ZERO}.zenflow.select_interval": ABSENT},
        ZENFLOW,
    ),
    Case(
        f"{ZERO}.zenflow.select_interval",
        "contradiction",
        "error",
        {**ZENFLOW, f"{ZERO}.zenflow.select_strategy": "auto"},
        ZENFLOW,
    ),
    Case("optimizer.params.torch_adam", "contradiction", "error", {**ZENFLOW, "optimizer.params.torch_adam": True}, ZENFLOW),
    Case(f"{ZERO}.zenflow.offload", "contradiction", "error", {**ZENFLOW, f"{ZERO}.zenflow.offload": True}, ZENFLOW),
    Case("gradient_allreduce_op", "contradiction", "error", {**ZENFLOW, "gradient_allreduce_op": "sum"}, ZENFLOW),
    Case(
        "optimizer.type", "contradiction", "error", {**ZENFLOW, "optimizer": {"type": "Lion", "params": {"lr": 1e-5}}}, ZENFLOW
    ),
    Case(
        f"{ZERO}.zenflow",
        "contradiction",
        "error",
        {**ZENFLOW, f"{ZERO}.compute_grad_norm": False, "gradient_clipping": 0.0},
        {**ZENFLOW, "gradient_clipping": 0.0},
    ),
    # Reduction.
    Case(
        "gradient_predivide_factor",
        "contradiction",
        "error",
        {"gradient_predivide_factor": 2.0},
        {"gradient_predivide_factor": 1.0},
    ),
    Case(
        "prescale_gradients",
        "contradiction",
        "error",
        {STAGE: 3, "prescale_gradients": True},
        {STAGE: 3, "prescale_gradients": True, f"{ZERO}.reduce_scatter": False},
    ),
    Case(
        "gradient_predivide_factor",
        "no_effect",
        "error",
        {STAGE: 1, "gradient_predivide_factor": 2.0},
        {STAGE: 1, "gradient_predivide_factor": 2.0, f"{ZERO}.reduce_scatter": False},
    ),
    Case(
        "gradient_predivide_factor",
        "value",
        "error",
        {STAGE: 3, "gradient_predivide_factor": 2.0, f"{ZERO}.reduce_scatter": False},
        {STAGE: 3, "gradient_predivide_factor": 4.0, f"{ZERO}.reduce_scatter": False},
        WORLD2,
    ),
    Case(
        "gradient_predivide_factor",
        "no_effect",
        "error",
        {STAGE: 0, "gradient_predivide_factor": 2.0, "prescale_gradients": True},
        {STAGE: 0, "gradient_predivide_factor": 2.0},
    ),
    Case(
        "prescale_gradients",
        "no_effect",
        "error",
        {"prescale_gradients": True, "gradient_allreduce_op": "sum"},
        {"gradient_allreduce_op": "sum"},
    ),
    Case(
        "gradient_allreduce_op",
        "contradiction",
        "error",
        {STAGE: 3, "gradient_allreduce_op": "SUM"},
        {STAGE: 0, "gradient_allreduce_op": "sum"},
    ),
    Case(
        f"{ZERO}.reduce_scatter",
        "contradiction",
        "error",
        {STAGE: 3, "optimizer": {"type": "Muon", "params": {"lr": 1e-3}}},
        {STAGE: 3, "optimizer": {"type": "Muon", "params": {"lr": 1e-3}}, f"{ZERO}.reduce_scatter": False},
    ),
    Case(
        "communication_data_type",
        "no_effect",
        "error",
        {"bf16": None, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}, "communication_data_type": "fp32"},
        {"bf16": None, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_rule(case):
    holds(case)
