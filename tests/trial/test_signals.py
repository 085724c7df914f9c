"""Nobody is left behind, whatever ends the parent."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glmexp.trial.orphan import TAG, is_alive, tagged

PARENT = Path(__file__).parent / "parent.py"


def until(found, seconds=40.0):
    """What ``found()`` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.05)
    raise AssertionError(f"nothing after {seconds} seconds")


def load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


class Started:
    """A parent with two ranks that hang, one of which has started a process in a session of its own."""

    def __init__(self, root, environ, *overrides, **options):
        overrides = ("model=tiny", "launch.device=cpu", "launch.ranks=2", *overrides)
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, str(PARENT), str(root), *overrides],
            env=environ,
            cwd=root,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        try:
            self.tag = until(lambda: next((load(path) for path in root.glob("*/environ1.json")), None))[TAG]
            until(lambda: list(root.glob("*/environ0.json")))
            until(lambda: len(set(tagged(self.tag))) >= 3)
            self.forker = int(next(root.glob("*/parent0")).read_text())
            assert (self.forker != self.process.pid) == ("WARM" in environ or "launch.backend=torchrun" in overrides)
        except BaseException:
            self.process.kill()
            raise

    def gone(self):
        until(lambda: not list(tagged(self.tag)), seconds=15)
        return True

    def result(self):
        return load(next(self.root.glob("*/result.json")))


@pytest.fixture
def start(tmp_path, environ):
    started = []

    def begin(*overrides, warm=False, **options):
        deeds = {0: "hang", 1: "hanging orphan"}
        started.append(Started(tmp_path, environ(deeds, **({"WARM": "1"} if warm else {})), *overrides, **options))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_parent_is_recorded_and_passed_on(start, number, code):
    parent = start()
    parent.process.send_signal(number)
    assert parent.process.wait(timeout=20) == code
    assert not list(tagged(parent.tag))
    result = parent.result()
    assert result["state"] == "interrupted"
    assert number.name in result["reason"]
    assert result["signal"] == number


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_ctrl_c_at_a_terminal(start, warm):
    controller, terminal = pty.openpty()

    def take_terminal():
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    parent = start(warm=warm, stdin=terminal, preexec_fn=take_terminal)
    os.write(controller, b"\x03")
    assert parent.process.wait(timeout=20) == 130
    assert not list(tagged(parent.tag))
    assert not is_alive(parent.forker)
    assert parent.result()["state"] == "interrupted"
    os.close(controller)
    os.close(terminal)


@pytest.mark.parametrize(("backend", "warm"), [("spawn", False), ("torchrun", False), ("spawn", True)])
def test_sigkill_of_the_parent_leaves_nobody(start, backend, warm):
    parent = start(f"launch.backend={backend}", warm=warm)
    parent.process.kill()
    parent.process.wait()
    assert parent.gone()
    until(lambda: not is_alive(parent.forker), seconds=15)
    assert not list(parent.root.glob("*/result.json"))


def test_a_rank_whose_parent_is_gone_ends_itself(tmp_path, environ):
    """Without the guardian: what a rank can do alone, even if a launcher stands between it and the parent."""
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    there = {"RANK": "0", "GLMEXP_PARENT_PID": str(owner.pid)}
    rank = subprocess.Popen([sys.executable, "-m", "stand_in", str(tmp_path)], env=environ({0: "hang"}, **there))
    until(lambda: (tmp_path / "environ0.json").exists())
    assert rank.poll() is None
    owner.kill()
    owner.wait()
    assert rank.wait(timeout=5) == -signal.SIGKILL
    late = subprocess.Popen([sys.executable, "-m", "stand_in", str(tmp_path)], env=environ({0: "hang"}, **there))
    assert late.wait(timeout=5) == -signal.SIGKILL


def test_nohup_survives_its_terminal(start):
    parent = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    parent.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert parent.process.poll() is None
    assert len(set(tagged(parent.tag))) >= 3
    parent.process.send_signal(signal.SIGTERM)
    assert parent.process.wait(timeout=20) == 143
