"""The wheel holds what a run needs, and ``conf/`` is found from it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The content of the wheel, unpacked where nothing of the checkout is near."""
    built = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True, capture_output=True
    )
    site = built / "site"
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    return site


def run(installed, folder, *arguments, entry=("-m", "glmexp")):
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *entry, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_module_runs_from_a_wheel(installed, tmp_path):
    done = run(installed, tmp_path, "--info", "searchpath")
    assert str(installed / "glmexp" / "conf") in done.stdout
    done = run(installed, tmp_path, "launch.device=cpu", "train.max_steps=1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_console_script_runs_from_a_wheel(installed, tmp_path):
    script = ("-c", "import sys; sys.argv[0] = 'glmexp'; from glmexp.__main__ import main; sys.exit(main())")
    done = run(installed, tmp_path, "check", "zero=stage3", entry=script)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("ds_config.json"))


def test_the_wheel_holds_no_tests_and_no_code_of_others(installed):
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"glmexp", "hydra_plugins"}
    assert (installed / "glmexp" / "py.typed").is_file()
