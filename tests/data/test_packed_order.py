from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.data.collate import collate_packed
from glmexp.data.order import padding_share
from glmexp.data.packing import PackedOrder, best_fit

samples_of_any_length = st.lists(st.integers(1, 20), min_size=1, max_size=60).map(np.array)


@settings(max_examples=200, deadline=None)
@given(lengths=samples_of_any_length, seed=st.none() | st.integers(0, 3), total=st.integers(1, 4))
def test_each_epoch_reads_each_sample_once_in_rows_that_hold_it(lengths, seed, total):
    order = PackedOrder(lengths, 20, seed)
    for epoch in range(3):
        rows = [order.row(int(number)) for number in order.slice(epoch * len(order), (epoch + 1) * len(order))]
        assert Counter(sample for row in rows for sample in row) == Counter(range(len(lengths)))
        assert all(row and lengths[row].sum() <= 20 for row in rows)
    whole = [row for step in range(6) for row in order.step(step, total, 1, 0, 1)[0]]
    assert whole == order.slice(0, 6 * total).tolist()


@settings(max_examples=100, deadline=None)
@given(lengths=samples_of_any_length)
def test_no_two_rows_could_be_one(lengths):
    filled = sorted(int(lengths[row].sum()) for row in best_fit(lengths, 20))
    assert len(filled) < 2 or filled[0] + filled[1] > 20


def test_rows_are_nearly_full():
    lengths = np.random.default_rng(0).geometric(0.01, 5000).clip(8, 512)
    order = PackedOrder(lengths, 512, 1)
    assert 0.97 < lengths.sum() / (512 * len(order)) <= 1
    assert padding_share(order, lengths, 4, 8, 100) < 0.04
    assert order.note().startswith(f"data.packing: 5000 samples packed into {len(order)} rows of 512 tokens, ")


def rows_of(order, epoch):
    return [tuple(order.row(int(number))) for number in order.slice(epoch * len(order), (epoch + 1) * len(order))]


def test_samples_change_places_from_epoch_to_epoch_and_repeat_for_a_seed():
    lengths = np.random.default_rng(0).integers(5, 60, 300)
    order = PackedOrder(lengths, 100, 7)
    first, second = rows_of(order, 0), rows_of(order, 1)
    assert {frozenset(row) for row in first} != {frozenset(row) for row in second}
    assert first != second
    again = PackedOrder(lengths, 100, 7)
    assert (rows_of(again, 1), rows_of(again, 0)) == (second, first)
    assert rows_of(PackedOrder(lengths, 100, 8), 0) != first
    assert rows_of(PackedOrder(lengths, 100, None), 0) == rows_of(PackedOrder(lengths, 100, None), 1)


def test_rows_are_the_same_on_every_platform_and_release():
    assert rows_of(PackedOrder(np.array([3, 9, 4, 4, 6, 3, 2]), 10, 42), 0) == GOLDEN


GOLDEN = [(6,), (1,), (2, 0, 5), (4, 3)]


def test_without_a_seed_the_fullest_rows_come_first():
    lengths = np.array([3, 9, 4, 4, 6, 3, 2])
    filled = [int(lengths[list(row)].sum()) for row in rows_of(PackedOrder(lengths, 10, None), 0)]
    assert filled == sorted(filled, reverse=True)


def test_samples_of_a_row_begin_at_position_0_and_nothing_is_learnt_across_their_border():
    pair = lambda *ids: (np.array(ids), np.array(ids))  # noqa: E731
    batch = collate_packed([[pair(5, 6, 7), pair(8, 9)], [pair(1, 2)]], pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 0, 0, 0]]
    assert batch.labels.tolist() == [[-100, 6, 7, -100, 9], [-100, 2, -100, -100, -100]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert (batch.tokens, batch.lengths) == (7, [3, 2, 2])
    assert batch.to("cpu").position_ids.equal(batch.position_ids)


@pytest.mark.slow
def test_a_million_samples_are_packed_in_seconds():
    import time

    lengths = np.random.default_rng(0).geometric(0.01, 1_000_000).clip(8, 2048)
    started = time.perf_counter()
    order = PackedOrder(lengths, 2048, 1)
    order.row(int(order.slice(len(order), len(order) + 1)[0]))
    assert time.perf_counter() - started < 60
    assert lengths.sum() / (2048 * len(order)) > 0.99
