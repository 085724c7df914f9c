from characters import data_config

from glmexp.data.read import SHIPPED, read


def conversations():
    return [conversation.messages for conversation in read(data_config(None))]


def test_the_set_that_ships_is_read_whole_and_is_half_chinese():
    found = conversations()
    assert 300 <= len(found) <= 400
    chinese = sum(any("\u4e00" <= character <= "\u9fff" for character in turns[-1]["content"]) for turns in found)
    assert 0.4 < chinese / len(found) < 0.6
    assert sum(turns[0]["role"] == "system" for turns in found) >= 10
    assert sum(len(turns) > 3 for turns in found) >= 10


def test_its_answers_are_short_and_no_question_comes_twice():
    found = conversations()
    answers = [message["content"] for turns in found for message in turns if message["role"] == "assistant"]
    assert max(map(len, answers)) <= 200
    assert len(set(answers)) == len(answers)
    questions = [str(turns[:-1]) for turns in found]
    assert len(set(questions)) == len(questions)
    assert SHIPPED.stat().st_size < 150_000
