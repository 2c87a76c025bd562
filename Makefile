# On a fresh machine with Python and make: `make demo`; while working: `make check`; before handing in:
# `make test`. Each sets up its own .venv; nothing is installed again until pyproject.toml changes.

PYTHON ?= python3
BIN := .venv/bin
BENCHMARKS := loss mutual_information augment loading startup step convolution compiling methods train scaling evaluation faults beside_work small_batch rules quality

# $(1): what is done, $(2): the command that does it
define timed
@printf '\n== %s\n' "$(1)"; begun=$$(date +%s); $(2); code=$$?; took=$$(($$(date +%s) - begun)); \
printf '== %s: %s after %d min %02d s\n' "$(1)" "$$([ $$code = 0 ] && echo done || echo failed)" \
$$((took / 60)) $$((took % 60)); exit $$code
endef

.PHONY: help demo check test lint types docs documents bench clean

help:
	@echo 'make demo       the rule, its effect on a training, similar photos: about five minutes'
	@echo 'make check      linter, types, unit tests and doctests: about two minutes'
	@echo 'make test       the same with everything end to end: about eleven minutes'
	@echo 'make docs       the documents as a site, in site/index.html: half a minute'
	@echo 'make documents  tables and pictures of the documents, from the records: seconds'
	@echo 'make bench      all measurements of speed: hours'
	@echo 'Each first installs what it lacks into .venv: minutes and gigabytes, most of them torch.'

demo: .venv/installed-train
	$(call timed,demo,$(BIN)/eqco demo && echo 'source .venv/bin/activate makes eqco a command of this shell')

check: lint types .venv/installed-dev
	$(call timed,unit tests,$(BIN)/pytest -n 2 -m "not end_to_end and not faults")

test: lint types .venv/installed-dev
	$(call timed,all tests,$(BIN)/pytest -n 2)

lint: .venv/installed-dev
	$(call timed,linter,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: .venv/installed-dev
	$(call timed,types,$(BIN)/mypy)

docs: .venv/installed-docs
	$(call timed,site,NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build && echo 'open site/index.html in a browser')

documents: .venv/installed-dev
	$(call timed,documents,$(BIN)/python docs/fill_documents.py)

bench: .venv/installed-dev $(BENCHMARKS:%=bench-%)

bench-%: .venv/installed-dev
	$(call timed,benchmark $*,$(BIN)/python benchmarks/$*.py)

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed-%: pyproject.toml | .venv/bin/python
	$(call timed,installing eqco[$*] into .venv,$(BIN)/python -m pip install --disable-pip-version-check -e ".[$*]")
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info demo site
