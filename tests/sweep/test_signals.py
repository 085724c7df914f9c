"""Whatever ends a sweep's parent: the trials at hand are recorded or left without a trace, nobody is left, and it goes on."""

import contextlib
import os
import pty
import signal
import subprocess
import threading

import pytest

from tests.sweep.sweeps import Sweep, ended, until


@pytest.fixture
def sweep(tmp_path):
    """Three trials, two of which hang at their first try."""

    def make(*arguments):
        deeds = {1: "hang once", 2: "hang once"}
        made.append(Sweep(tmp_path, "train.seed=1,2,3", "sweep.slots=2", *arguments, deeds=deeds))
        return made[-1]

    made = []
    yield make
    for one in made:
        for pid in one.alive():
            os.kill(pid, signal.SIGKILL)


def in_the_midst(sweep, **options):
    """The sweep's process, when both trials hang."""
    process = sweep.start(**options)
    until(lambda: sum(sweep.ran.values()) == 2, process=process)
    return process


def goes_on(sweep):
    code, said = sweep.resume()
    assert code == 0, said
    assert sweep.states == {"complete": 3}
    tries = {name.split("-")[1]: count for name, count in sweep.ran.items()}
    assert tries == {"1": 2, "2": 2, "3": 1}
    assert len(list(sweep.folder.glob("*/attempt1"))) == 2
    assert len(sweep.rows()) == 3


@pytest.mark.parametrize(
    ("number", "code", "warm"),
    [
        (signal.SIGINT, 130, True),
        pytest.param(signal.SIGTERM, 143, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, False, marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_recorded_and_nothing_more_is_started(sweep, number, code, warm):
    sweep = sweep(f"sweep.warm_start={str(warm).lower()}")
    found, said = ended(in_the_midst(sweep), number)
    assert found == code, said
    assert not sweep.gone(0.5)
    assert sweep.states == {"interrupted": 2}
    assert all(number.name in result["reason"] for result in sweep.results.values())
    assert "sweep.resume=true" in said
    assert "Traceback" not in said
    goes_on(sweep)


@pytest.mark.parametrize("warm", [pytest.param(True, id="warm"), pytest.param(False, id="cold", marks=pytest.mark.slow)])
def test_sigkill_leaves_nobody_and_no_half_result(sweep, warm):
    sweep = sweep(f"sweep.warm_start={str(warm).lower()}")
    assert ended(in_the_midst(sweep), signal.SIGKILL)[0] == -signal.SIGKILL
    assert not sweep.gone()
    assert sweep.states == {}
    goes_on(sweep)


class Terminal:
    """A terminal of its own with a sweep in it."""

    def __init__(self, sweep):
        self.controller, terminal = pty.openpty()
        self.shown = b""
        self.process = sweep.start(stdin=terminal, stdout=terminal, stderr=terminal, text=False, preexec_fn=self.take)
        os.close(terminal)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        until(lambda: sum(sweep.ran.values()) == 2, process=self.process)

    @staticmethod
    def take():
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read(self):
        with contextlib.suppress(OSError):  # nobody has the terminal any more
            while data := os.read(self.controller, 65536):
                self.shown += data


@pytest.mark.slow
def test_ctrl_c_at_a_terminal(sweep):
    sweep = sweep("sweep.warm_start=true")
    terminal = Terminal(sweep)
    os.write(terminal.controller, b"\x03")
    assert terminal.process.wait(timeout=40) == 130
    terminal.reader.join(timeout=10)
    os.close(terminal.controller)
    assert b"Traceback" not in terminal.shown
    assert b"interrupted" in terminal.shown
    assert not sweep.gone(0.5)
    assert sweep.states == {"interrupted": 2}


@pytest.mark.slow
def test_a_terminal_that_is_closed(sweep):
    sweep = sweep("sweep.warm_start=false")
    terminal = Terminal(sweep)
    # A thread that reads would keep the terminal open.
    os.kill(terminal.process.pid, signal.SIGSTOP)
    os.close(terminal.controller)
    os.kill(terminal.process.pid, signal.SIGCONT)
    assert terminal.process.wait(timeout=40) == 129
    assert not sweep.gone(0.5)
    assert sweep.states == {"interrupted": 2}
    goes_on(sweep)


@pytest.mark.slow
def test_a_second_sweep_in_the_folder_is_refused(sweep):
    sweep = sweep("sweep.warm_start=false")
    process = in_the_midst(sweep)
    for more in ([], ["sweep.resume=true"]):
        code, said = sweep.run(*more)
        assert code == 2
        assert "another sweep is running" in said
        assert len(said.splitlines()) <= 6
    assert ended(process, signal.SIGTERM)[0] == 143


def test_a_sweep_is_ended_before_its_first_trial(sweep):
    """The moment between the command and the first rank: no trial may be half recorded."""
    sweep = sweep("sweep.warm_start=false")
    process = sweep.start()
    until(lambda: (sweep.folder / ".lock").exists(), process=process, pause=0.001)
    code, said = ended(process, signal.SIGINT)
    assert code == 130, said
    assert "Traceback" not in said
    assert not sweep.gone(0.5)
    assert set(sweep.states) <= {"interrupted"}


@pytest.mark.slow
def test_nohup_survives_its_terminal(tmp_path):
    sweep = Sweep(tmp_path, "train.seed=1,2", "sweep.warm_start=false", deeds={1: 3})
    process = sweep.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    until(lambda: sweep.ran, process=process)
    code, said = ended(process, signal.SIGHUP)
    assert code == 0, said
    assert sweep.states == {"complete": 2}


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_sweep(tmp_path):
    sweep = Sweep(tmp_path, "train.seed=1,2,3", "sweep.warm_start=false")
    process = sweep.start(stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0, process.stderr.read()
    assert sweep.states == {"complete": 3}
    process.stderr.close()
