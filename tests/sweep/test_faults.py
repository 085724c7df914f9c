"""Sweeps whose trials fail in every way there is, and whose parent is killed on the way, end with the right states."""

import random
import signal
import time

import pytest

from tests.sweep.sweeps import STATES, Sweep, finished_earlier, until


def kill_at(sweep, process, moment, seconds=60.0):
    """SIGKILL for the parent once ``moment()`` says so; nobody may be left of it, and what was finished stays."""
    until(moment, seconds, pause=0.002, process=process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not sweep.gone(), "processes outlive the parent"
    return sweep.stamps


def more_results(sweep, more):
    """A moment: so many further trials are finished."""
    wanted = len(sweep.stamps) + more
    return lambda: len(sweep.stamps) >= wanted


def in_a_report(sweep, more):
    """A moment: the report is being built, with so many further trials finished."""
    enough = more_results(sweep, more)
    return lambda: enough() and sweep.reporting()


def later(moment, seconds):
    """So long after another moment."""

    def reached():
        if moment():
            time.sleep(seconds)
            return True
        return False

    return reached


def checked(sweep, stamps):
    """What was finished before has not been touched, and has run once."""
    now = sweep.stamps
    assert {name: now.get(name) for name in stamps} == stamps
    return True


def test_every_fault_has_its_state_and_nothing_finished_runs_again(tmp_path):
    deeds = {1: "oom", 2: "raise", 3: "SIGKILL", 4: "hang", 5: "exit3", 6: "SIGSEGV", 7: "oom_host"}
    arguments = ("train.seed=range(1,10)", "launch.hang_minutes=0.12", "sweep.slots=2", "sweep.retry=[interrupted]")
    sweep = Sweep(tmp_path, *arguments, deeds=deeds)
    stamps = kill_at(sweep, sweep.start(), in_a_report(sweep, 3))
    assert 3 <= len(stamps) < 9
    code, said = sweep.resume()
    assert checked(sweep, stamps)
    assert code == 1, said
    assert finished_earlier(said) == len(stamps)
    found = {int(name.split("-")[1]): result["state"] for name, result in sweep.results.items()}
    assert found == {seed: STATES.get(deeds.get(seed), "complete") for seed in range(1, 10)}
    for name in stamps:
        assert sweep.ran[name] == 1, name
    assert {row["train.seed"]: row["state"] for row in sweep.rows()} == {str(seed): state for seed, state in found.items()}
    assert not sweep.gone()
    assert sweep.litter() == []
    assert "sweep.resume" not in sweep.rows()[0]


def test_what_may_be_tried_again_is_and_every_try_is_kept(tmp_path):
    deeds = {1: "exit once", 2: "exit3", 3: "oom"}
    sweep = Sweep(tmp_path, "train.seed=1,2,3,4", "sweep.warm_start=false", deeds=deeds)
    assert sweep.run()[0] == 1
    assert sweep.states == {"failed": 2, "oom": 1, "complete": 1}
    code, _ = sweep.resume()
    assert code == 1
    assert sweep.states == {"failed": 1, "oom": 1, "complete": 2}
    tries = {name.split("-")[1]: count for name, count in sweep.ran.items()}
    assert tries == {"1": 2, "2": 2, "3": 1, "4": 1}
    assert {path.relative_to(sweep.folder).parts[0].split("-")[1] for path in sweep.folder.glob("*/attempt1/result.json")} == {
        "1",
        "2",
    }
    assert len(sweep.rows()) == 4


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sixty_real_trials_of_which_twenty_fail(tmp_path):
    """Real memory limits, signals, hangs and NaN in trained steps, warm; the parent is killed five times, at random moments."""
    chance = random.Random(4)
    cells = [(stage, seed) for stage in (0, 1, 2) for seed in range(1, 21)]
    kinds = ["oom_host", "oom", "SIGKILL", "SIGSEGV", "nan", "raise", "exit3"] * 3
    deeds = dict(zip(chance.sample(cells, 20), [*kinds[:18], "hang", "hang"], strict=True))
    arguments = ("zero=stage0,stage1,stage2", "train.seed=range(1,21)", "launch.hang_minutes=0.75")
    sweep = Sweep(tmp_path, *arguments, "sweep.slots=2", "sweep.retry=[interrupted]", deeds=deeds, real=True)
    stamps = {}
    for kill in range(5):
        process = sweep.start(*(["sweep.resume=true"] if kill else []))
        more = chance.randint(5, 11)
        moment = [
            later(more_results(sweep, more), chance.uniform(0.0, 2.0)),  # in the midst of trials
            in_a_report(sweep, more),
            more_results(sweep, more),  # between two trials
        ][kill % 3]
        before, stamps = stamps, kill_at(sweep, process, moment, seconds=400)
        assert {name: stamps.get(name) for name in before} == before
    code, said = sweep.resume(timeout=1200)
    print(said)
    assert checked(sweep, stamps)
    assert code == 1
    results = sweep.results
    assert len(results) == 60
    found = {}
    for result in results.values():
        given = dict(text.split("=") for text in result["overrides"] if "=" in text)
        found[int(given["zero"][-1]), int(given["train.seed"])] = result
    wrong = {
        cell: (deeds.get(cell), found[cell]["state"], found[cell]["reason"])
        for cell in cells
        if found[cell]["state"] != STATES.get(deeds.get(cell), "complete")
    }
    assert wrong == {}
    tries = sweep.ran
    assert set(tries) == set(results)
    assert {name: tries[name] for name in stamps if tries[name] != 1 + len(list((sweep.folder / name).glob("attempt*")))} == {}
    # With two slots, five kills can have caught ten trials at most.
    assert sum(tries.values()) <= 70
    assert len(sweep.rows()) == 60
    assert not sweep.gone()
    assert sweep.litter() == []
