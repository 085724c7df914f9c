import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmexp.config.batch import Batch, solve
from glmexp.config.engine_schema import BatchConfig
from glmexp.config.errors import UserError


def batch(micro=None, accumulation=None, total=None):
    return BatchConfig(micro=micro, accumulation=accumulation, total=total)


@pytest.mark.parametrize(
    ("given_", "world_size", "solved"),
    [
        (batch(micro=8), 1, Batch(8, 1, 8)),
        (batch(micro=8), 2, Batch(8, 1, 16)),
        (batch(micro=2, total=8), 1, Batch(2, 4, 8)),
        (batch(micro=1, total=8), 2, Batch(1, 4, 8)),
        (batch(micro=2, accumulation=3), 2, Batch(2, 3, 12)),
        (batch(accumulation=2, total=8), 2, Batch(2, 2, 8)),
        (batch(total=8), 4, Batch(2, 1, 8)),
        (batch(micro=2, accumulation=2, total=8), 2, Batch(2, 2, 8)),
    ],
)
def test_the_missing_numbers_are_derived(given_, world_size, solved):
    assert solve(given_, world_size) == solved


@pytest.mark.parametrize(
    ("given_", "world_size", "words"),
    [
        (
            batch(micro=2, accumulation=2, total=7),
            1,
            ["batch.total=7", "batch.micro=2", "batch.accumulation=2", "1 rank", "batch.total=4"],
        ),
        (batch(micro=2, total=7), 1, ["batch.total=7", "batch.total=6 or 8"]),
        (batch(micro=1, total=1), 2, ["batch.total=1", "2 ranks", "batch.total=2"]),
        (batch(), 1, ["batch.micro", "null"]),
        (batch(accumulation=4), 1, ["accumulation=4", "batch.micro=1"]),
        (batch(accumulation=4, total=6), 1, ["batch.total=6", "batch.total=8"]),
        (batch(micro=8, total=4), 2, ["batch.total=4", "batch.total=16"]),
    ],
)
def test_what_cannot_hold_names_the_keys_and_a_value_that_would(given_, world_size, words):
    with pytest.raises(UserError) as error:
        solve(given_, world_size)
    for word in words:
        assert word in str(error.value)


counts = st.none() | st.integers(1, 64)


@given(micro=counts, accumulation=counts, total=counts, world_size=st.integers(1, 9))
def test_a_solution_always_multiplies_up_and_keeps_what_was_set(micro, accumulation, total, world_size):
    try:
        solved = solve(batch(micro, accumulation, total), world_size)
    except UserError:
        return
    assert solved.micro * solved.accumulation * world_size == solved.total
    assert micro in (None, solved.micro)
    assert accumulation in (None, solved.accumulation)
    assert total in (None, solved.total)


@pytest.mark.parametrize(
    ("given_", "world_size", "solved"),
    [
        (batch(micro=2), 2, Batch(2, 1, 2)),
        (batch(micro=2, total=8), 4, Batch(2, 2, 8)),
        (batch(accumulation=2, total=8), 8, Batch(1, 2, 8)),
        (batch(micro=2, accumulation=2, total=8), 4, Batch(2, 2, 8)),
    ],
)
def test_two_ranks_that_share_samples_count_as_one(given_, world_size, solved):
    assert solve(given_, world_size, 2) == solved
    assert solved == solve(given_, world_size // 2)
    assert f"ranks {world_size} / 2 that share a sample = {solved.total} samples" in solved.arithmetic(world_size, 2)
    assert "share" not in solved.arithmetic(world_size // 2)


@pytest.mark.parametrize(
    ("given_", "world_size", "size", "words"),
    [
        (batch(micro=1), 1, 2, ["comm.sequence_parallel_size=2", "(1)", "start 2 ranks"]),
        (batch(micro=1), 6, 4, ["comm.sequence_parallel_size=4", "(6)", "start 8 ranks", "to 2 or 3 or 6"]),
        (batch(micro=1, total=1), 4, 2, ["batch.total=1", "groups of 2 ranks (2)", "batch.total=2"]),
        (
            batch(micro=2, total=7),
            4,
            2,
            ["batch.total=7", "2 groups of ranks", "comm.sequence_parallel_size", "batch.total=4 or 8"],
        ),
    ],
)
def test_groups_that_do_not_come_out_even(given_, world_size, size, words):
    with pytest.raises(UserError) as error:
        solve(given_, world_size, size)
    for word in words:
        assert word in str(error.value)
