import pytest

from glmexp.config import UserError, compose
from glmexp.config.sequence_parallel import sequence_parallel_size

ULYSSES = ["comm=ulysses", "zero=stage3"]


def test_the_option_is_two_ranks_a_sample():
    assert sequence_parallel_size(compose(ULYSSES).config) == 2
    assert sequence_parallel_size(compose([]).config) == 1


def test_one_rank_a_sample_asks_for_nothing():
    config = compose(["comm=ulysses", "comm.sequence_parallel_size=1", "zero=stage2", "kernels.attention=eager"]).config
    assert sequence_parallel_size(config) == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["comm=ulysses", "zero=stage2"], ["comm.sequence_parallel_size=2) needs zero=stage3, got stage2", "2 times"]),
        (["comm=ulysses", "zero=stage0"], ["needs zero=stage3, got stage0"]),
        ([*ULYSSES, "zero.reduce_scatter=false"], ["zero.reduce_scatter=true"]),
        ([*ULYSSES, "zero.zero_quantized_gradients=true"], ["zero.zero_quantized_gradients=false"]),
        ([*ULYSSES, "kernels.attention=eager"], ["kernels.attention=sdpa, got eager"]),
        ([*ULYSSES, "kernels=deepcompile"], ["kernels=deepcompile"]),
        ([*ULYSSES, "method=ptuning_v2"], ["method=ptuning_v2", "lora or full"]),
    ],
)
def test_what_does_not_go_with_it_is_refused(overrides, words):
    with pytest.raises(UserError) as error:
        compose(overrides)
    for word in ["comm.sequence_parallel_size=2", *words]:
        assert word in str(error.value)


def test_it_composes_with_adapters_offload_and_checkpoints():
    config = compose(
        [*ULYSSES, "method=lora", "offload=cpu_all", "activation=checkpoint", "comm.sequence_parallel_size=4"]
    ).config
    assert sequence_parallel_size(config) == 4
