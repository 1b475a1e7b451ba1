# Every target sets up what it needs: a virtual environment in .venv, made anew when pyproject.toml changes.
FOUND = $(shell for p in python3.12 python3.11 python3 python; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PYTHON ?= $(FOUND)
BIN := .venv/bin

# make offline PYTHON=3.12 names whom to pack for, as FOR=3.12 does, not who packs
ifneq (,$(and $(filter offline,$(MAKECMDGOALS)),$(filter 3.%,$(PYTHON))))
FOR := $(PYTHON)
override PYTHON := $(FOUND)
endif

.PHONY: demo test test-all check bench offline clean setup

demo: setup  ## train MBEC++ on noisy Cart Pole, ten seeds at once
	$(BIN)/engram train mbec++ cartpole-gaussian

test: setup  ## run the tests that a change needs, in at most six minutes on two cores
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: setup  ## run all tests
	$(BIN)/python -m pytest -n 2

check: setup  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: setup  ## print the speed tables (see benchmarks/README.md)
	$(BIN)/python -m benchmarks

offline: setup  ## pack Engram and what it needs beside JAX into offline/, for machines without a network (make offline FOR=3.12)
	$(BIN)/python packaging/offline.py $(if $(FOR),--python $(FOR)) $(if $(EXTRAS),--extras $(EXTRAS))

setup: .venv/ready

.venv/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Engram needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python3."; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .hypothesis
