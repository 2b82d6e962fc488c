# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready

# Libraries that user programs bring along and that we do not depend on.
PEERS ?= torch equinox tensorflow-cpu tf_keras tensorboard mlflow wandb 'moto[s3]' flask flask-cors ipykernel ipywidgets nbclient
PEERS_VENV := .venv-peers
PEERS_READY := $(PEERS_VENV)/.ready

# Images of containers often forbid bytecode files. Every process would then compile every module again, and
# pytest every test: 6 s in each of its processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs test-site demo demo-async test test-all test-fast test-peers test-slurm test-launchers test-ray test-hosts test-jax test-compilers release-check lint types bench bench-page bench-peers soak clean

demo: $(READY)
	$(BIN)/python examples/digits_loop.py

demo-async: $(READY)
	$(BIN)/stratagem run --workers 2 --ps 2 --chief examples/recommender.py

test: $(READY) lint types
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal -m "not slow"

# About a minute: packages whose tests compile little and start hardly any process.
FAST := cli cluster collective_backends core data input jaxpr launcher \
	parameter_server/partitioners profiling telemetry transport values variables
test-fast: $(READY)
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m "not slow" $(addprefix tests/unit/,$(FAST)) tests/spec

test-all: $(READY) lint types
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-peers: $(PEERS_READY)
	$(PEERS_VENV)/bin/python -m pytest -m peer

# Real schedulers; what is not installed is skipped with a message.
test-slurm: $(READY)
	$(BIN)/python -m pytest -rs tests/schedulers/test_slurm.py

test-launchers: $(READY)
	$(BIN)/python -m pytest -rs tests/schedulers/test_launchers.py

# Several hosts, made of namespaces: needs root, iproute2 and iptables, else it is skipped with a message.
test-hosts: $(READY)
	$(BIN)/python -m pytest -rs tests/hosts

# Ray is heavy, and gets an environment of its own.
RAY_VENV ?= .venv-ray
test-ray: $(RAY_VENV)/.ready
	$(RAY_VENV)/bin/python -m pytest -rs tests/schedulers/test_ray.py

$(RAY_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(RAY_VENV)/bin/python -m pip install --quiet --editable '.[ray]' hypothesis optax psutil pytest pytest-timeout
	touch $(RAY_VENV)/.ready

# Another Python and JAX: `make test-jax JAX_PYTHON=python3.12 JAX_VERSION=0.11.2`; without JAX_VERSION the newest.
JAX_PYTHON ?= python3.13
JAX_VERSION ?=
JAX_TESTS ?= tests/unit tests/contract tests/spec
JAX_VENV := .venv-jax-$(notdir $(JAX_PYTHON))-$(or $(JAX_VERSION),newest)
test-jax: $(JAX_VENV)/.ready
	$(JAX_VENV)/bin/python -m pytest --numprocesses 2 --dist worksteal -m "not slow" $(JAX_TESTS)

$(JAX_VENV)/.ready: pyproject.toml
	$(JAX_PYTHON) -m venv $(JAX_VENV)
	$(JAX_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(JAX_VENV)/bin/python -m pip install --quiet --editable '.[dev]' $(if $(JAX_VERSION),'jax==$(JAX_VERSION)')
	touch $(JAX_VENV)/.ready

# Our steps, compiled for TPUs and GPUs by XLA's own compilers. No such device is needed.
COMPILERS_VENV := .venv-compilers
test-compilers: $(COMPILERS_VENV)/.ready
	$(COMPILERS_VENV)/bin/python -m pytest -rs tests/accelerators

$(COMPILERS_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(COMPILERS_VENV)
	$(COMPILERS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(COMPILERS_VENV)/bin/python -m pip install --quiet --editable '.[keras,optax]' hypothesis psutil pytest pytest-timeout \
		'jax==0.10.2' 'jax-cuda13-pjrt==0.10.2' 'jax-cuda13-plugin==0.10.2' 'libtpu==0.0.51'
	touch $(COMPILERS_VENV)/.ready

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python tests/typing
	PYTHONPATH=$(CURDIR)/src $(BIN)/pyright --pythonpath $(BIN)/python --verifytypes stratagem --ignoreexternal

SOAK_SECONDS ?= 3600
SOAK_SEED ?= 0

soak: $(READY)
	$(BIN)/python tests/soak/soak.py --seconds $(SOAK_SECONDS) --seed $(SOAK_SEED)

bench: $(READY)
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/step.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/step_loops.py
	$(BIN)/python benchmarks/packing.py
	$(BIN)/python benchmarks/keras_fit.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/input.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/multi_worker.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/agreement.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/parameter_server.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/dashboard_cost.py
	$(BIN)/python benchmarks/profiler_cost.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/sharded_state.py

# Whole training loops and all-reduces, with torch and TensorFlow beside in the same run.
PEER_PYTHONS := --tensorflow-python $(PEERS_VENV)/bin/python --torch-python $(PEERS_VENV)/bin/python
bench-peers: $(READY) $(PEERS_READY)
	$(BIN)/python -m pip install --quiet matplotlib
	$(BIN)/python benchmarks/training.py $(PEER_PYTHONS) --output .bench/training --plot docs/images/training.svg
	$(BIN)/python benchmarks/multi_worker.py $(PEER_PYTHONS)
	$(BIN)/python benchmarks/start.py $(PEER_PYTHONS)

bench-page: $(READY)
	$(BIN)/python benchmarks/write_page.py docs/benchmarks.md

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "open .site/index.html, or serve it with: $(DOCS_VENV)/bin/python -m http.server -d .site -b 127.0.0.1"

test-site: $(DOCS_READY)
	$(DOCS_VENV)/bin/python -m pytest tests/site -rs

# Wheel and sdist of what is committed, in clean environments.
PYTHONS ?= python3.11 python3.12 python3.13
release-check: $(READY)
	$(BIN)/python tests/release/check_release.py $(PYTHONS)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

$(DOCS_READY): pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS_VENV)/bin/python -m pip install --quiet --editable '.[docs,dev]'
	touch $(DOCS_READY)

$(PEERS_READY): pyproject.toml
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS_VENV)/bin/python -m pip install --quiet --editable '.[dev,kubernetes]' $(PEERS)
	touch $(PEERS_READY)

clean:
	rm -rf $(VENV) $(RAY_VENV) $(DOCS_VENV) $(PEERS_VENV) $(COMPILERS_VENV) .venv-jax-* .site .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
