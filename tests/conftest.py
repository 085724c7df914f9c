import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("beside others", deadline=None)  # an example may wait for a core
settings.load_profile("beside others")

ROOT = Path(__file__).parent.parent
# Tests run side by side: threads of one run would wait for cores that another one has.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Ran:
    """One finished call of ``python -m glmexp``."""

    def __init__(self, done, folder):
        self.code, self.out, self.err, self.folder = done.returncode, done.stdout, done.stderr, folder

    def refused(self, *words):
        assert self.code == 2, self.out + self.err
        assert "Traceback" not in self.err
        assert len([line for line in self.err.splitlines() if line.strip()]) <= 6
        for word in words:
            assert word in self.err, self.err
        return self

    def only(self, name):
        found = list(self.folder.rglob(name))
        assert len(found) == 1, (found, self.out, self.err)
        return found[0]

    def json(self, name):
        return json.loads(self.only(name).read_text(encoding="utf-8"))

    def rows(self):
        return [json.loads(line) for line in self.only("metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def glmexp(tmp_path):
    """Runs ``python -m glmexp ARGUMENTS`` from an empty folder, without a terminal or a network account."""

    def run(*arguments, env=None, timeout=240, python=(), launcher=()):
        changes = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "WANDB_API_KEY": None, **(env or {})}
        environ = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        command = [*(launcher or [sys.executable, *python]), "-m", "glmexp", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        return Ran(done, tmp_path)

    return run
