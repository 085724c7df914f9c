"""One server, many trials: what is found out once."""

import threading
import time

import pytest

from glmexp.track import Session


def refused() -> str:
    raise ConnectionError("no route")


def test_a_server_that_answers_is_asked_each_time() -> None:
    session = Session()
    assert [session.connect(lambda: "run"), session.connect(lambda: "run")] == ["run", "run"]


def test_the_first_failure_is_raised_and_the_server_is_lost_for_good() -> None:
    session = Session()
    with pytest.raises(ConnectionError):
        session.connect(refused)
    assert session.connect(lambda: "run") is None


@pytest.mark.parametrize("found_by", ["another attempt", "the end of a run"])
def test_a_server_that_goes_away_later_is_told_once(found_by: str) -> None:
    session = Session()
    session.connect(lambda: "run")
    if found_by == "another attempt":
        with pytest.raises(ConnectionError):
            session.connect(refused)
    else:
        assert session.lose()
    assert not session.lose()
    assert session.connect(lambda: "run") is None


def test_who_comes_during_the_first_attempt_waits_for_its_outcome() -> None:
    session, asked, outcomes = Session(), list[str](), list[object]()

    def slow() -> str:
        asked.append("server")
        time.sleep(0.2)
        raise TimeoutError

    def trial() -> None:
        try:
            outcomes.append(session.connect(slow))
        except TimeoutError:
            outcomes.append(TimeoutError)

    threads = [threading.Thread(target=trial) for _ in range(5)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 0.2 * 4
    assert asked == ["server"]
    assert sorted(outcomes, key=str) == sorted([TimeoutError, None, None, None, None], key=str)


def test_a_failure_does_not_keep_others_that_have_connected_from_working_side_by_side() -> None:
    session, inside = Session(), threading.Barrier(2, timeout=5)
    session.connect(lambda: "run")
    made: list[object] = []
    threads = [threading.Thread(target=lambda: made.append(session.connect(inside.wait))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made, key=str) == [0, 1]
