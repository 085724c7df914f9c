import pytest
import torch

from glmexp.config import UserError, compose
from glmexp.train.failure import EVALUATION, SAVING, DivergedError, Where, describe
from glmexp.trial.record import Phase, State

CUDA = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"


def pinned() -> Exception:
    class Tensor:
        def pin_memory(self) -> None:
            raise RuntimeError(CUDA)

    try:
        Tensor().pin_memory()
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (UserError("data.path"), State.invalid),
        (DivergedError("step 3"), State.diverged),
        (torch.OutOfMemoryError("CUDA out of memory."), State.oom),
        (RuntimeError(CUDA), State.oom),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), State.oom),
        (MemoryError(), State.oom_host),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            State.oom_host,
        ),
        (OSError(12, "Cannot allocate memory"), State.oom_host),
        (pinned(), State.oom_host),
        (KeyError("weight"), State.failed),
        (KeyboardInterrupt(), State.interrupted),
    ],
)
def test_state(error: BaseException, state: State) -> None:
    assert describe(error, None, Where())[0] is state


def test_out_of_memory_names_what_is_left_to_try() -> None:
    everything = compose(
        ["model=tiny", "zero=stage3", "offload=cpu_all", "method=lora", "activation=checkpoint", "batch.micro=1"]
    )
    where = Where(Phase.training, step=4, micro=1, length=128, peak_allocated_gib=21.5)
    message = describe(torch.OutOfMemoryError("CUDA out of memory."), everything.config, where)[1]
    assert "training, step 4" in message
    assert "batch.micro=1, 128 tokens a sample, peak 21.50 GiB" in message
    assert message.splitlines()[-1].startswith("try a smaller data.max_length")


@pytest.mark.parametrize(
    ("where", "place", "facts", "moves"),
    [
        (Where(Phase.loading, world_size=2), "loading", "peak 9.00 GiB", "zero=stage3, zero=stage3 offload=cpu_all"),
        (Where(Phase.building, world_size=2), "building", "peak 9.00 GiB", "zero=stage2, offload=cpu, method=lora"),
        (
            Where(Phase.training, 1, "forward", 4, 512),
            "training, step 1, first forward pass",
            "batch.micro=4, 512 tokens a sample, peak 9.00 GiB",
            "offload=cpu, batch.micro=2, activation=checkpoint, method=lora, a smaller data.max_length (now 512)",
        ),
        (
            Where(Phase.training, 7, "backward", 4, 96, world_size=4),
            "training, step 7, backward pass",
            "batch.micro=4, 96 tokens a sample, peak 9.00 GiB",
            "zero=stage2, offload=cpu, batch.micro=2, activation=checkpoint, method=lora",
        ),
        (
            Where(Phase.training, 1, "update", 4, 512),
            "training, step 1, first optimizer step",
            "batch.micro=4, 512 tokens a sample, peak 9.00 GiB",
            "offload=cpu, method=lora",
        ),
        (
            Where(Phase.training, 7, EVALUATION, 4, 96, world_size=2),
            "evaluation after step 7",
            "eval.micro=4, peak 9.00 GiB",
            "zero=stage3, zero=stage3 offload=cpu_all, eval.micro=2, a smaller eval.max_new_tokens (now 128)",
        ),
        (
            Where(Phase.training, 7, SAVING, 4, 96),
            "saving a checkpoint after step 7",
            "peak 9.00 GiB",
            "offload=cpu, method=lora",
        ),
        (Where(Phase.saving, 9, None, 4, 512), "saving", "peak 9.00 GiB", "offload=cpu, method=lora"),
    ],
)
def test_out_of_gpu_memory_says_where_and_what_would_help_there(where: Where, place: str, facts: str, moves: str) -> None:
    config = compose(["model=tiny", "zero=stage1", "batch.micro=4", "precision=fp16"]).config
    where.peak_allocated_gib = 9.0
    state, message = describe(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), config, where)
    assert state is State.oom
    assert message.splitlines() == [
        f"out of GPU memory ({place}): CUDA out of memory. Tried to allocate 2.00 GiB.",
        facts,
        f"try {moves}",
    ]


def test_a_failure_is_one_line_with_its_place() -> None:
    message = describe(ValueError("\nfirst\nsecond"), None, Where(Phase.loading))[1]
    assert message == "loading: ValueError: first"


def test_user_errors_are_passed_on_unchanged() -> None:
    assert describe(UserError("one\ntwo"), None, Where())[1] == "one\ntwo"
