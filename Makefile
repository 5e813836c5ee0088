# `make demo` and `make test` are the README's two commands; each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint check bench clean

setup: $(VENV)/.setup-done

$(VENV)/.setup-done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[reference,postgres,dev]'
	touch $@

demo: setup
	$(BIN)/python -m tests.models.smollm2 build/demo/SmolLM2-135M-Instruct
	$(BIN)/day0 adapt dir:build/demo/SmolLM2-135M-Instruct --target cpu

# What only tests need: the clusters that a reshard is spread over, and the compilers of kernels for GPUs.
$(VENV)/.test-setup-done: $(VENV)/.setup-done
	$(BIN)/python -m pip install --quiet --editable '.[dask,ray,kernels,cuda]'
	touch $@

# All that this machine can run, one test after another; pytest's own summary names what was skipped, and why.
test: $(VENV)/.test-setup-done
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Before each commit: lint, formatting, types, quick tests; their files go to several processes at once.
check: lint
	$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not reference and not engine and not docker and not postgres and not orchestrator and not dask and not ray and not reflink and not triton and not nvcc"

bench: setup
	$(BIN)/python -m benchmarks.reshard

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -exec rm -rf {} +
