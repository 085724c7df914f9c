"""Gradients with and without activation checkpoints agree, for every method at every ZeRO stage, dropout and all."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from worker_trials import ROOT, environments  # type: ignore[import-not-found]

METHODS = {
    "full": ["method=full"],
    "freeze": ["method=freeze", "method.last_layers=1"],  # the embedding and a layer below are frozen
    "freeze, the embedding alone": ["method=freeze", "method.last_layers=null", "method.trainable=['*.embed_tokens.*']"],
    "lora": ["method=lora"],
    "dora": ["method=lora", "method.dora=true"],
    "qlora": ["method=qlora"],
    "ptuning_v2": ["method=ptuning_v2"],
    "ptuning_v2, projected": ["method=ptuning_v2", "method.prefix_projection=true"],
}
STAGES = (0, 1, 2, 3)
WHOLE = ["zero.stage3_param_persistence_threshold=0"]  # tiny tensors would be left whole otherwise
Case = tuple[str, int]
"""A method and a ZeRO stage."""


def compared(cases: list[Case], ranks: int) -> dict[Case, list[Any]]:
    """Case -> trained tensors, the largest norm of a gradient, the largest difference, forward passes of a layer."""
    cases = [case for case in cases if case[0] != "qlora" or find_spec("bitsandbytes")]
    listed = [[*METHODS[method], f"zero=stage{stage}", *(WHOLE if stage == 3 else [])] for method, stage in cases]
    command = [sys.executable, str(Path(__file__).with_name("gradients_rank.py")), json.dumps(listed)]
    started = [
        subprocess.Popen(
            command, env={**os.environ, **environment, "PYTHONPATH": str(ROOT)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for environment in environments(ranks)
    ]  # fmt: skip
    told = [process.communicate(timeout=900) for process in started]
    assert all(process.returncode == 0 for process in started), told[0][1][-3000:]
    return dict(zip(cases, json.loads(told[0][0].splitlines()[-1]), strict=True))


def check(answers: dict[Case, list[Any]]) -> None:
    for case, (_, norm, difference, passes) in answers.items():
        assert norm > 1e-3, case
        assert difference < 1e-5 * norm, case
        assert passes == [1, 2], case  # without checkpoints, and with them once more in the backward pass


def test_gradients_agree() -> None:
    """Full, LoRA and P-tuning are compared with plain PyTorch in their own tests, with checkpoints at several stages."""
    check(compared([("freeze", 3), ("freeze, the embedding alone", 2), ("dora", 3), ("qlora", 1)], ranks=1))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gradients_agree_for_every_method_and_stage_on_two_ranks() -> None:
    answers = compared([(method, stage) for method in METHODS for stage in STAGES], ranks=2)
    check(answers)
    for (method, stage), (tensors, norm, *_) in answers.items():
        assert tensors == answers[method, 0][0]
        assert norm == pytest.approx(answers[method, 0][1], rel=1e-4), (method, stage)
