# Everything here sets itself up: Python 3.11 or newer and make are enough.

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(call usable,$(name))))
usable = $(shell $(1) -c 'import ensurepip, sys; assert sys.version_info >= (3, 11)' 2>/dev/null && echo $(1))

.PHONY: help demo test test-oldest lint clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /make \1 - /p' Makefile

demo: .venv/ready  ## watch two agents learn, in about two minutes
	.venv/bin/anakin train --agent impala --env catch --folder runs/demo-catch --overwrite
	.venv/bin/anakin train --agent impala --env cartpole --folder runs/demo-cartpole --overwrite
	@echo "The learning curves: runs/demo-catch/curve.png, runs/demo-cartpole/curve.png"

test: .venv/ready  ## all tests
	@.venv/bin/pytest -q

test-oldest: .venv-oldest/ready  ## the core tests on the oldest jax that podracer supports
	@.venv-oldest/bin/pytest -q -m core

lint: .venv/ready  ## format and style
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .

clean:  ## remove the environments and caches, keep the runs
	rm -rf .venv .venv-oldest .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# An environment of exactly the pinned versions; `ready` is written when it is complete.
.venv/ready: requirements/tested.txt
.venv-oldest/ready: requirements/oldest.txt
%/ready: pyproject.toml
	$(if $(call usable,$(PYTHON)),,$(error podracer needs Python 3.11 or newer, with venv; name one: make PYTHON=/path/to/python3))
	$(PYTHON) -m venv $*
	$*/bin/pip install --quiet --requirement $(filter %.txt,$^)
	$*/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
