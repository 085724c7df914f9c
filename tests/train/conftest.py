"""The preloaded process, shared by all tests of the worker."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_trials import ROOT, RunTrial, Trial, start, write_trial  # type: ignore[import-not-found]


@pytest.fixture(scope="session")
def preloaded() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    # Muon's iteration is compiled at the first step otherwise, which takes most of a minute on a CPU.
    environment["TORCH_COMPILE_DISABLE"] = "1"
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("preloaded.py"))],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield server
    server.stdin.close()
    server.wait(timeout=30)


@pytest.fixture
def run_trial(preloaded: subprocess.Popen[str], tmp_path: Path) -> RunTrial:
    """Runs a trial: ``run_trial("name", *overrides, ranks=1, extra={environment})``."""

    def run(name: str, *overrides: str, ranks: int = 1, extra: dict[str, str] | None = None) -> Trial:
        folder = write_trial(tmp_path / name, list(overrides), ranks)
        return start(preloaded, folder, ranks, extra)

    return run
