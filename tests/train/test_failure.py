import pytest
import torch

from glmexp.config import UserError, compose
from glmexp.train.failure import DivergedError, Where, describe
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
    where = Where(Phase.training, step=4, length=128, peak_allocated_gib=21.5)
    message = describe(torch.OutOfMemoryError("CUDA out of memory."), everything.config, where)[1]
    assert "training, step 4" in message
    assert "batch.micro=1, 128 tokens a sample, peak 21.50 GiB" in message
    assert message.splitlines()[-1].startswith("try a smaller data.max_length")


def test_a_failure_is_one_line_with_its_place() -> None:
    message = describe(ValueError("\nfirst\nsecond"), None, Where(Phase.loading))[1]
    assert message == "loading: ValueError: first"


def test_user_errors_are_passed_on_unchanged() -> None:
    assert describe(UserError("one\ntwo"), None, Where())[1] == "one\ntwo"
