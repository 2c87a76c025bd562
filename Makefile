# On a fresh machine with Python and make: `make demo`; while working: `make check`; before handing in:
# `make test`. Each sets up its own .venv; nothing is installed again until pyproject.toml changes.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo check test lint types documents bench clean

demo: .venv/installed-train
	$(BIN)/eqco demo

check: lint types .venv/installed-dev
	$(BIN)/pytest -n 2 -m "not end_to_end and not faults"

test: lint types .venv/installed-dev
	$(BIN)/pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-dev
	$(BIN)/mypy

documents: .venv/installed-dev
	$(BIN)/python docs/fill_documents.py

bench: .venv/installed-dev
	for name in loss mutual_information augment loading step train scaling evaluation faults beside_work small_batch rules quality; do $(BIN)/python benchmarks/$$name.py || exit 1; done

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed-%: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info demo
