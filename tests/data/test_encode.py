import pytest
from characters import Segment

from glmexp.config.choices import OverLength
from glmexp.data.encode import DroppedSampleError, Limits, encode

PROMPT = Segment([11, 12, 13, 14], False)
ANSWER = Segment([21, 22, 23], True)
END = Segment([2], True, closing=True)
TAIL = Segment([99], False)


def test_without_a_limit_reached_ids_are_the_segments_and_learnt_is_theirs():
    encoded = encode([PROMPT, ANSWER, END, TAIL], Limits(9))
    assert encoded.ids == [11, 12, 13, 14, 21, 22, 23, 2, 99]
    assert encoded.learnt == [False] * 4 + [True] * 4 + [False]
    assert not encoded.cut


def test_source_and_target_limits_keep_heads_and_the_end_token():
    encoded = encode([PROMPT, ANSWER, END], Limits(9, max_source_length=2, max_target_length=1))
    assert encoded.ids == [11, 12, 21, 2]
    assert encoded.learnt == [False, False, True, True]
    assert encoded.cut
    assert not encode([PROMPT, ANSWER, END], Limits(9, max_source_length=4, max_target_length=3)).cut


def test_a_prompt_of_several_segments_is_one_source():
    parts = [Segment([11, 12], False), Segment([13], False), ANSWER, END]
    assert encode(parts, Limits(9, max_source_length=2)).ids == [11, 12, 21, 22, 23, 2]


def test_with_several_answers_only_max_length_counts():
    turns = [PROMPT, ANSWER, END, PROMPT, ANSWER, END]
    assert len(encode(turns, Limits(99, max_source_length=1, max_target_length=1)).ids) == 16


@pytest.mark.parametrize(("length", "learnt"), [(7, 3), (5, 1)])
def test_over_length_cuts_the_end(length, learnt):
    encoded = encode([PROMPT, ANSWER, END], Limits(length))
    assert (len(encoded.ids), sum(encoded.learnt), encoded.cut) == (length, learnt, True)


def test_a_cut_that_leaves_no_target_drops_and_tells_the_length_needed():
    with pytest.raises(DroppedSampleError, match="max_length") as caught:
        encode([PROMPT, ANSWER, END], Limits(4))
    assert caught.value.needed == 5


def test_a_target_at_position_zero_alone_is_never_seen_by_the_loss():
    with pytest.raises(DroppedSampleError) as caught:
        encode([ANSWER, TAIL, TAIL], Limits(1))
    assert caught.value.needed == 2
    with pytest.raises(DroppedSampleError, match="to learn"):
        encode([Segment([21], True), TAIL], Limits(9))


def test_over_length_drop():
    limits = Limits(7, over_length=OverLength.drop)
    with pytest.raises(DroppedSampleError, match="longer") as caught:
        encode([PROMPT, ANSWER, END], limits)
    assert caught.value.needed == 8
    assert len(encode([PROMPT, ANSWER], limits).ids) == 7
