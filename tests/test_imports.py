"""Two sides joined by files: neither imports the other's packages, and imports go down only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import glmexp

PACKAGE = Path(glmexp.__file__).parent
ALLOWED = {
    "config": {"config"},
    "architecture": {"architecture", "config"},
    "dsconfig": {"dsconfig", "config", "architecture"},
    "track": {"track", "config", "architecture"},
    "trial": {"trial", "dsconfig", "track", "architecture", "config"},
    "data": {"data", "config", "trial.orphan"},
    "models": {"models", "architecture", "config"},
    "train": {"train", "models", "data", "architecture", "config", "trial.record", "trial.orphan", "trial.saved"},
    "sweep": {"sweep", "trial", "dsconfig", "track", "architecture", "config"},
    "hydra_entry": {"sweep", "trial", "dsconfig", "track", "architecture", "config"},
    "__main__": {"hydra_entry", "sweep", "trial", "dsconfig", "track", "architecture", "config"},
}
"""Package -> what its modules may import of glmexp. ``config`` holds the schema and UserError, which all may use."""


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imported(path):
    """Dotted names below glmexp that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("glmexp."):
            yield from (f"{node.module}.{name.name}".removeprefix("glmexp.") for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "glmexp":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name.removeprefix("glmexp.") for name in node.names if name.name.startswith("glmexp."))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    relative = path.relative_to(PACKAGE)
    package = relative.parts[0].removesuffix(".py")
    for name in set(imported(path)) - {"__version__"}:
        assert any(name == target or name.startswith(f"{target}.") for target in ALLOWED[package]), f"{relative} imports {name}"


def loaded_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def names_below(*packages):
    """Dotted names of all modules of these packages."""
    names = [
        ".".join(("glmexp", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__") for path in modules()
    ]
    return [name for name in names if name.split(".")[1] in packages]


def test_the_parent_is_light():
    parent = [
        "glmexp.__main__",
        "glmexp.hydra_entry",
        *names_below("config", "architecture", "dsconfig", "track", "trial", "sweep"),
    ]
    loaded = loaded_after(f"import {', '.join(parent)}")
    assert not loaded & {"torch", "deepspeed", "transformers", "peft", "wandb", "numpy", "pandas"}


def test_the_worker_does_not_import_hydra():
    worker = names_below("train", "models", "data")
    assert {"glmexp.train.__main__", "glmexp.models.method", "glmexp.data.prepare"} <= set(worker)
    loaded = loaded_after(f"import {', '.join(worker)}")
    assert "torch" in loaded
    assert not {name for name in loaded if name.split(".")[0] == "hydra"}


def test_modules_stay_readable():
    long = {str(path.relative_to(PACKAGE)): count for path in modules() if (count := len(path.read_text().splitlines())) > 310}
    assert not long
