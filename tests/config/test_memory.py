"""What to try when the GPU's memory is full."""

import pytest

from glmexp.config import Config, compose
from glmexp.config.memory import Holds, less_gpu_memory


def config(*overrides: str) -> Config:
    return compose([*overrides]).config


def test_what_is_in_use_already_is_left_out() -> None:
    plain = config("zero=stage1", "batch.micro=4", "data.max_length=256")
    shorter = "a smaller data.max_length (now 256)"
    assert less_gpu_memory(plain, 2) == [
        *("zero=stage2", "offload=cpu", "batch.micro=2", "activation=checkpoint", "method=lora", shorter)
    ]
    far = config("zero=stage3", "offload=cpu_all", "batch.micro=1", "activation=checkpoint", "data.max_length=256")
    assert less_gpu_memory(far, 2) == ["method=lora", shorter]
    assert less_gpu_memory(config("method=lora", "zero=stage3", "offload=cpu_all"), 2, Holds.states) == [
        "more launch.ranks, or a GPU with more memory"
    ]


def test_one_rank_has_nobody_to_share_with() -> None:
    for holds in Holds:
        moves = less_gpu_memory(config("zero=stage1"), 1, holds)
        assert not [move for move in moves if move.startswith("zero=") and "offload" not in move]


@pytest.mark.parametrize("method", ["lora", "ptuning_v2"])
def test_small_states_are_not_worth_moving_but_the_weights_are(method: str) -> None:
    moves = less_gpu_memory(config(f"method={method}", "optimizer.lr=1e-2"), 2, Holds.states)
    assert moves[:2] == ["zero=stage3", "zero=stage3 offload=cpu_all"]


def test_four_bit_weights_stay_below_stage3() -> None:
    packed = config("method=qlora", "zero=stage2")
    assert less_gpu_memory(packed, 2, Holds.weights) == ["a GPU with more memory"]
    assert "method=qlora" not in less_gpu_memory(config("method=lora", "zero=stage3"), 2)
    assert "method=qlora" in less_gpu_memory(config("method=lora", "zero=stage2"), 2)


def test_weights_that_do_not_fit_need_no_smaller_batch() -> None:
    for holds in (Holds.weights, Holds.states):
        moves = less_gpu_memory(config("batch.micro=8"), 1, holds)
        assert not [move for move in moves if "micro" in move or "activation" in move or "max_length" in move]


def test_an_evaluation_has_a_batch_of_its_own() -> None:
    moves = less_gpu_memory(config("zero=stage3", "batch.micro=4", "eval.micro=8", "eval.max_new_tokens=64"), 1, Holds.answers)
    assert moves == ["offload=cpu_all", "eval.micro=4", "a smaller eval.max_new_tokens (now 64)"]


def test_what_is_advised_composes() -> None:
    tried = set()
    for chosen in ("zero=stage0", "zero=stage2 offload=cpu", "method=lora batch.micro=4 eval.micro=4"):
        here = config(*chosen.split())
        for move in {move for holds in Holds for move in less_gpu_memory(here, 2, holds) if "=" in move}:
            tried.add(tuple(sorted(dict(part.split("=") for part in [*chosen.split(), *move.split()]).items())))
    assert len(tried) > 10
    for overrides in tried:
        config(*(f"{group}={option}" for group, option in overrides))
