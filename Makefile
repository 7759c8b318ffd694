# `make demo` and `make test` work on a fresh clone: each prepares .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test fuzz lint bench docs clean

demo: $(READY)
	$(BIN)/greedy-ensembles illustrate --out demo
	$(BIN)/greedy-ensembles two-moons --out demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Files damaged at random, for hours: whatever is found is printed with the seed that makes it again.
fuzz: $(READY)
	$(BIN)/python tests/fuzz.py --seed $$(date +%s) --seconds $(or $(SECONDS),14400)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	@set -e; for script in benchmarks/*.py; do $(BIN)/python $$script; done

# The site's own packages are no part of the tests' environment.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build

clean:
	rm -rf $(VENV) demo site

# The stamp is written last, so that a set-up that broke off is done again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)
