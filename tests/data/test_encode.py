import pytest
from characters import CharacterPrompts, Segment

from glmexp.config.choices import OverLength, Turns
from glmexp.data.encode import DroppedSampleError, Limits, encode, encode_conversation

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


def said(*texts):
    """Alternating user and assistant messages, after a system message."""
    roles = ("system", *("user", "assistant") * len(texts))
    return [{"role": role, "content": text} for role, text in zip(roles, ("S", *texts), strict=False)]


THREE = said("q1", "a1", "q2", "a2", "q3", "a3")
"""16 ids: the system's, and for each turn two of the question, two of the answer and the end token."""


def text_of(encoded):
    return "".join("." if token == 2 else chr(token) for token in encoded.ids)


def learnt_of(encoded):
    return "".join(character for character, learn in zip(text_of(encoded), encoded.learnt, strict=True) if learn)


@pytest.mark.parametrize(
    ("length", "text", "turns_cut"),
    [(16, "Sq1a1.q2a2.q3a3.", 0), (15, "Sq2a2.q3a3.", 1), (11, "Sq2a2.q3a3.", 1), (10, "Sq3a3.", 2), (6, "Sq3a3.", 2)],
)
def test_the_oldest_turns_go_first_and_the_system_message_stays(length, text, turns_cut):
    encoded, messages = encode_conversation(CharacterPrompts(), THREE, Limits(length))
    assert (text_of(encoded), encoded.turns_cut, encoded.cut) == (text, turns_cut, turns_cut > 0)
    assert messages == [THREE[0], *THREE[1 + 2 * turns_cut :]]


def test_the_end_of_the_last_turn_is_cut_when_it_alone_is_too_long():
    encoded, _ = encode_conversation(CharacterPrompts(), THREE, Limits(4))
    assert (text_of(encoded), learnt_of(encoded), encoded.turns_cut) == ("Sq3a", "a", 2)
    with pytest.raises(DroppedSampleError, match="max_length") as caught:
        encode_conversation(CharacterPrompts(), THREE, Limits(3))
    assert caught.value.needed == 4
    with pytest.raises(DroppedSampleError, match="longer"):
        encode_conversation(CharacterPrompts(), THREE, Limits(15, over_length=OverLength.drop))


def test_a_turn_goes_as_a_whole_with_what_its_tools_said():
    roles = ("user", "assistant", "tool", "assistant", "user", "assistant")
    messages = [{"role": role, "content": text} for role, text in zip(roles, ("q", "c", "t", "a", "Q", "A"), strict=True)]
    encoded, _ = encode_conversation(CharacterPrompts(), messages, Limits(8))
    assert (text_of(encoded), learnt_of(encoded)) == ("QA.", "A.")


@pytest.mark.parametrize(("turns", "learnt"), [(Turns.all, "a1.a2.a3."), (Turns.last, "a3.")])
def test_which_answers_are_learnt(turns, learnt):
    encoded, _ = encode_conversation(CharacterPrompts(), THREE, Limits(99, turns=turns))
    assert (text_of(encoded), learnt_of(encoded)) == ("Sq1a1.q2a2.q3a3.", learnt)


def test_source_and_target_limits_hold_where_one_answer_is_learnt_and_turns_go_only_if_that_is_not_enough():
    limits = Limits(9, max_source_length=6, max_target_length=1, turns=Turns.last)
    encoded, _ = encode_conversation(CharacterPrompts(), THREE, limits)
    assert (text_of(encoded), encoded.cut, encoded.turns_cut) == ("Sq1a1.a.", True, 0)
    several, _ = encode_conversation(CharacterPrompts(), THREE, Limits(16, max_source_length=6, max_target_length=1))
    assert not several.cut
