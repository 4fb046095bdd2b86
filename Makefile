# Every target sets up what it needs, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
# Unlike `--constraint`, these also pin what builds packages: the second from pip 25.3 on.
export PIP_CONSTRAINT = $(abspath $(CONSTRAINTS))
export PIP_BUILD_CONSTRAINT = $(PIP_CONSTRAINT)
# Further packages to install.
REQUIREMENTS ?=
# Without bytecode, imports take each process ten seconds.
unexport PYTHONDONTWRITEBYTECODE
# Binary wheels, except for two packages that have none.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
  --only-binary :all: --no-binary promise,uncertainty-calibration
# Two workers fit two cores. Tests of one file share what they have set up and compiled.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all test-oldest test-newest test-tpu test-cluster test-faults lint types bench dist docs clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# --no-compile: to compile all packages takes a minute, and few of their modules are imported.
$(VENV)/.done: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]' $(REQUIREMENTS)
	@touch $@

setup: $(VENV)/.done  ## create .venv with all that development needs

demo: setup  ## SGD and ⊥Grad on a sample of CIFAR-10, in a few minutes
	$(BIN)/python -m experiments run quick
	$(BIN)/python -m experiments report runs/quick

# Compiles in two thirds of the time; `test-all` compiles as users do.
QUICK_COMPILE := --xla_cpu_use_fusion_emitters=false

test: setup  ## run the fast tests, with few random examples
	XLA_FLAGS="$(QUICK_COMPILE) $$XLA_FLAGS" $(PYTEST) -m "not slow" --hypothesis-profile=quick

# The mark comes from the plugin of hypothesis.
test-slow: setup  ## run the slow tests, and property tests with more examples
	$(PYTEST) -m "slow or hypothesis"

test-all:  ## run all tests, with all examples: `test`, then `test-slow`
	$(MAKE) test QUICK_COMPILE=
	$(MAKE) test-slow

test-oldest:  ## run all tests on the oldest jax and optax supported
	$(MAKE) test-all VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-newest:  ## run all tests on the newest jax and optax
	grep -Ev '^(chex|equinox|flax|jax|jaxlib|ml-dtypes|optax)==' constraints.txt > constraints-newest.txt
	$(MAKE) test-all VENV=.venv-newest CONSTRAINTS=constraints-newest.txt

test-tpu:  ## compile for TPUs, without one, on x86-64 Linux
	@if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  $(MAKE) setup VENV=.venv-tpu REQUIREMENTS="'jax[tpu]'" && \
	  .venv-tpu/bin/python -m pytest tests/tpu; \
	else \
	  echo "libtpu exists for x86-64 Linux only; skipped on $$(uname -sm)"; \
	fi

test-faults: setup  ## kill, damage and deceive the experiments, in 8 minutes
	PYTHONPATH=.:tests $(BIN)/python -m faults $(FAULTS)

test-cluster: setup  ## train on a local SLURM in which a node dies
	TEST_CLUSTER=1 $(BIN)/python -m pytest -rs tests/cluster

lint: setup  ## check the style
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup  ## check the types
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: setup  ## measure the cost of ⊥Grad on this machine
	$(BIN)/python -m benchmarks

dist: setup  ## build the wheel and the source distribution, and check them
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	$(BIN)/twine check --strict dist/*

$(VENV)/.docs: $(VENV)/.done
	$(PIP) --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## build the site; a warning is an error
	XLA_FLAGS="$(QUICK_COMPILE) $$XLA_FLAGS" $(BIN)/python -m sphinx --quiet --jobs auto --fresh-env --fail-on-warning --keep-going -c docs -d docs/_build/doctrees . docs/_build/html
	@echo "The site is at docs/_build/html/index.html"

clean:  ## remove environments, builds and compiled programs; keep runs
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-tpu dist docs/_build .jax_cache
