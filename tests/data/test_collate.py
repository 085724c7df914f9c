import numpy as np
import pytest
import torch
from characters import CharacterPrompts, data_config

from glmexp.data import Samples, batches, collate, order_of, prepare
from glmexp.data.order import Order


def rows(*lengths):
    return [(np.arange(1, n + 1, dtype=np.int32), np.where(np.arange(n) < 1, -100, np.arange(1, n + 1))) for n in lengths]


def test_padding_is_on_the_right_masked_and_never_learnt():
    batch = collate(rows(2, 4), pad_id=9)
    assert batch.input_ids.tolist() == [[1, 2, 9, 9], [1, 2, 3, 4]]
    assert batch.attention_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.labels.tolist() == [[-100, 2, -100, -100], [-100, 2, 3, 4]]
    assert batch.tokens == 6
    assert {batch.input_ids.dtype, batch.attention_mask.dtype, batch.labels.dtype} == {torch.int64}


def test_a_pad_id_that_is_also_a_target_keeps_the_target():
    batch = collate([(np.array([5, 2]), np.array([-100, 2])), (np.array([5, 6, 2]), np.array([-100, 6, 2]))], pad_id=2)
    assert batch.labels.tolist() == [[-100, 2, -100], [-100, 6, 2]]


def order_like(kind, samples):
    changes = {"packed": {"packing": True, "max_length": 16}, "grouped": {"group_by_length": True}, "plain": {}}[kind]
    return order_of(samples, data_config(None, **changes), 5, 4)


@pytest.mark.parametrize(("kind", "rows"), [("plain", 11), ("grouped", 11), ("packed", 7)])
def test_a_stream_that_goes_on_in_the_second_epoch_is_that_of_the_whole_run(write, tmp_path, kind, rows):
    path = write([{"prompt": f"{i:02}", "response": chr(1000 + i) * (i + 1)} for i in range(11)])
    prepare(data_config(path, max_length=16), CharacterPrompts(), 2000, 1, tmp_path)
    samples = Samples.open(tmp_path)
    assert len(order_like(kind, samples)) == rows

    def stream(first_step):
        numbers = {"micro": 2, "accumulation": 1, "rank": 1, "world": 2, "pad_id": 0, "steps": 9, "first_step": first_step}
        made = batches(samples, order_like(kind, samples), **numbers)
        return [
            [(batch.input_ids.tolist(), batch.labels.tolist(), batch.position_ids is None) for batch in step] for step in made
        ]

    whole = stream(0)
    for first_step in (1, 3, 4, 8):
        assert stream(first_step) == whole[first_step:]
    assert whole[: rows // 4] != whole[rows // 4 : 2 * (rows // 4)]
    assert all(alone == (kind != "packed") for step in whole for *_, alone in step)


def test_batches_follow_the_order_and_can_start_later(write, tmp_path):
    path = write([{"prompt": f"{i:02}", "response": chr(1000 + i) * (i + 1)} for i in range(10)])
    prepare(data_config(path), CharacterPrompts(), 2000, 1, tmp_path)
    samples = Samples.open(tmp_path)

    def steps(**changes):
        settings = {"micro": 2, "accumulation": 2, "rank": 0, "world": 1, "pad_id": 0, "steps": 6}
        return list(batches(samples, Order(len(samples), 5), **{**settings, **changes}))

    whole = steps()
    assert [len(step) for step in whole] == [2] * 6
    later = steps(first_step=4)
    assert [batch.input_ids.tolist() for step in later for batch in step] == [
        batch.input_ids.tolist() for step in whole[4:] for batch in step
    ]
    one = steps(micro=1, world=2, rank=1)
    assert one[0][0].input_ids[0].tolist() == [token for token in whole[0][0].input_ids[1].tolist() if token]
