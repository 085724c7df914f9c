# Everything runs in .venv, which the first target that needs it makes. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A machine without a GPU has no use for the CUDA build of torch, which is several GB.
CONSTRAINT := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c constraints/cpu.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format lint types clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(VENV)/ready: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(CONSTRAINT),$(BIN)/python -m pip install -q $(CONSTRAINT) torch)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install -q $(CONSTRAINT) -e ".[dev]"
	touch $@

demo: $(VENV)/ready ## install and run the main job on the embedded default: a tiny model, the shipped instructions
	$(BIN)/python -m glmexp

test: $(VENV)/ready ## install and pass the tests (no GPU, no network, no account)
	$(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 4 --dist worksteal

test-slow: $(VENV)/ready ## the tests that compile an extension or take long
	$(BIN)/python -m pytest -m slow

check: format lint types test ## format, lint, types, tests

format: $(VENV)/ready ## say what is not formatted
	$(BIN)/ruff format --check .

lint: $(VENV)/ready ## ruff's rules, the direction of imports among them
	$(BIN)/ruff check .

types: $(VENV)/ready ## mypy
	$(BIN)/mypy

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
