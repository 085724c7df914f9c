"""The child of a verb that uses a trained model: what its parent hands on."""

import os
import signal
import threading
import time

from glmexp.config import compose
from glmexp.trial.use import ask

WORKER = """
import os, pathlib, signal, sys, time
from glmexp.trial.record import RankWriter, State

writer = RankWriter(pathlib.Path(sys.argv[1]), 0)
try:
    pathlib.Path(os.environ["READY"]).touch()
    time.sleep(60)
except KeyboardInterrupt:
    writer.finish(State.interrupted)
"""


def test_ctrl_c_that_the_parent_alone_gets_is_the_child_s(tmp_path, monkeypatch):
    (tmp_path / "waits.py").write_text(WORKER)
    ready = tmp_path / "ready"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("READY", str(ready))

    def send():
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert ask("waits", compose(["model=tiny"]).config, {}) == 130
    sender.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
