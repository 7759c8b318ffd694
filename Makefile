# `make demo` and `make test` work on a fresh clone: each prepares .venv first, once. The demonstration needs the package
# alone, and the tests their tools as well (triton among them). `make demo CPU=1` takes PyTorch without CUDA.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
READY := $(VENV)/.ready
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt
ifdef CPU
INSTALL += --extra-index-url https://download.pytorch.org/whl/cpu
endif

.PHONY: demo test pytest fuzz lint bench docs clean

demo: $(PACKAGE)
	$(BIN)/greedy-ensembles illustrate --out demo
	$(BIN)/greedy-ensembles two-moons --out demo

# Side by side: types take one core for as long as their cache is cold. One thread a process is fastest for small tests.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Files damaged at random, for hours: whatever is found is printed with the seed that makes it again.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seed $$(date +%s) --seconds $(or $(SECONDS),14400)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	@set -e; for script in benchmarks/*.py; do $(BIN)/python $$script; done

# The site's own packages are no part of the tests' environment.
docs: $(READY)
	$(INSTALL) --editable '.[docs]'
	$(BIN)/mkdocs build

clean:
	rm -rf $(VENV) demo site

# Stamps are written last, so that a set-up that broke off is done again.
$(PACKAGE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	@touch $(PACKAGE)

$(READY): $(PACKAGE)
	$(INSTALL) --editable '.[dev]'
	@touch $(READY)
