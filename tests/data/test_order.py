from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.data.order import LengthOrder, Order, padding_share, total_steps

small = st.integers(1, 5)
GOLDEN = [3, 4, 2, 7, 6, 1, 5, 0, 0, 4, 6, 1]


@settings(max_examples=200, deadline=None)
@given(samples=st.integers(1, 40), micro=small, accumulation=small, world=small, seed=st.integers(0, 3))
def test_any_split_of_a_global_batch_reads_the_same_samples(samples, micro, accumulation, world, seed):
    total = micro * accumulation * world
    for step in range(3):
        whole = Order(samples, seed).step(step, total, 1, 0, 1)[0]
        parts = [Order(samples, seed).step(step, micro, accumulation, rank, world) for rank in range(world)]
        assert all(len(part) == accumulation and all(len(row) == micro for row in part) for part in parts)
        assert Counter(index for part in parts for row in part for index in row) == Counter(whole)


@settings(max_examples=100, deadline=None)
@given(samples=st.integers(1, 60), total=st.integers(1, 9), seed=st.integers(0, 3))
def test_each_epoch_reads_each_sample_once(samples, total, seed):
    order = Order(samples, seed)
    epochs = 3
    stream = [i for step in range(total_steps(samples, epochs, total)) for i in order.step(step, total, 1, 0, 1)[0]]
    for epoch in range(epochs):
        assert sorted(stream[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


def test_order_differs_between_epochs_and_seeds_and_repeats_for_a_seed():
    order = Order(50, 7)
    first, second = order.epoch(0).tolist(), order.epoch(1).tolist()
    assert first != second
    assert first == Order(50, 7).epoch(0).tolist()
    assert second == Order(50, 7).slice(50, 100).tolist()
    assert first != Order(50, 8).epoch(0).tolist()


def test_order_is_the_same_on_every_platform_and_release():
    assert Order(8, 42).slice(0, 12).tolist() == GOLDEN


@pytest.mark.parametrize(
    ("samples", "epochs", "total", "steps"),
    [(40, 2, 8, 10), (41, 1, 8, 6), (40, 0.5, 8, 3), (3, 1, 8, 1), (10, 0.1, 1, 1), (30, 0.1, 3, 1), (1000, 0.7, 7, 100)],
)
def test_total_steps_round_up_without_float_noise(samples, epochs, total, steps):
    assert total_steps(samples, epochs, total) == steps


def test_no_samples_is_our_bug():
    with pytest.raises(ValueError, match="at least one"):
        Order(0, 1)


def test_without_a_seed_the_samples_come_as_they_are_stored_over_and_over():
    assert [Order(5, None).step(step, 2, 1, rank, 2)[0] for step in range(2) for rank in range(2)] == [
        [0, 1],
        [2, 3],
        [4, 0],
        [1, 2],
    ]


def lengths_of(count, seed=0):
    """Mostly short, some long, as instructions are."""
    return np.random.default_rng(seed).geometric(0.02, count) + 4


@settings(max_examples=150, deadline=None)
@given(samples=st.integers(1, 70), micro=small, accumulation=small, world=small, seed=st.integers(0, 3))
def test_batches_of_like_length_are_the_same_samples_for_any_split(samples, micro, accumulation, world, seed):
    lengths, total = lengths_of(samples), micro * accumulation * world
    whole = LengthOrder(lengths, seed, total)
    for step in range(4):
        read = whole.step(step, total, 1, 0, 1)[0]
        parts = [LengthOrder(lengths, seed, total).step(step, micro, accumulation, rank, world) for rank in range(world)]
        assert Counter(index for part in parts for row in part for index in row) == Counter(read)
    epochs = 3
    stream = whole.slice(0, epochs * samples).tolist()
    for epoch in range(epochs):
        assert sorted(stream[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


def test_like_lengths_share_micro_batches_and_the_order_is_another_in_each_epoch():
    lengths = lengths_of(1000)
    grouped, plain = LengthOrder(lengths, 7, 16), Order(1000, 7)
    shares = [padding_share(order, lengths, 4, 16, 1000 // 16) for order in (plain, grouped)]
    assert shares[0] > 0.35
    assert shares[1] < 0.06
    first, second = grouped.epoch(0).tolist(), grouped.epoch(1).tolist()
    assert first != second
    assert first == LengthOrder(lengths, 7, 16).epoch(0).tolist()
    assert first != LengthOrder(lengths, 8, 16).epoch(0).tolist()
    # Short and long batches come in turn: no stretch of the epoch is of one length.
    means = np.array([lengths[grouped.global_batch(step, 16)].mean() for step in range(60)])
    assert abs(np.corrcoef(means, np.arange(60))[0, 1]) < 0.3
    # The ranks of one micro step read samples of like length, so that none waits long for another.
    widths = np.array([[lengths[row].max() for row in grouped.step(3, 2, 4, rank, 2)] for rank in range(2)])
    assert (widths[0] >= widths[1]).all()
    assert (widths[0][1:] <= widths[1][:-1]).all()


def test_padding_is_the_share_of_the_columns_that_hold_no_token():
    lengths = np.array([4, 2, 3, 3])
    assert padding_share(Order(4, None), lengths, 2, 4, 9) == pytest.approx(1 - 12 / 14)
    assert padding_share(Order(4, None), lengths, 1, 4, 9) == 0
