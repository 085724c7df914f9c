"""The short form of ``benchmarks/kill_and_resume.py``: a run that is killed at random ends as the one that was left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "kill_and_resume.py"


def test_a_run_that_is_killed_ends_as_one_that_is_left_alone(tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, str(SCRIPT), "--kills", "2", "--steps", "4", "--out", str(out), "launch.device=cpu"]
    root = str(SCRIPT.parent.parent)
    environ = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert len(found["kills"]) == 2
    assert all(not one["differences"] and not one["left_alive"] for one in found["rounds"])
