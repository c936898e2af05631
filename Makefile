# Every everyday task of the project. `make` alone lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
# Folders that are there; benchmarks and examples are checked like the rest.
CODE := $(wildcard src tests benchmarks examples)
# Extra arguments, for example: make test ARGS="-k keygroups"
ARGS ?=

.PHONY: help setup demo test soak bench lint types format clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  \033[1m%-8s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with cairn, Spark and the tools; install Java where possible
	@scripts/setup.sh

demo: setup ## run the demonstration job on local Spark
	@$(BIN)/cairn demo $(ARGS)

test: setup lint types ## lint, check types, run all tests
	@scripts/test.sh $(ARGS)

# Long runs that look for what the tests have no time for: MINUTES of simulated histories, and the rounds in which real
# processes are killed, if KILL_ROUNDS says how many.
MINUTES ?= 10
KILL_ROUNDS ?= 0

soak: setup ## simulate for MINUTES=10 and longer; KILL_ROUNDS=20 also kills real processes at random
	@$(BIN)/python -m cairn.testing.simulation --minutes $(MINUTES) --shrink $(ARGS)
	@SOAK=1 $(BIN)/python -m pytest -q tests/simulation -k broken_version
	@if [ $(KILL_ROUNDS) -gt 0 ]; then KILL_ROUNDS=$(KILL_ROUNDS) $(BIN)/python -m pytest -q tests/kill; fi

bench: setup ## run the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

lint: setup ## check style and formatting
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)

types: setup ## check types, strictly
	@$(BIN)/mypy $(CODE)

format: setup ## put the code into the common format
	@$(BIN)/ruff check --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

clean: ## remove the environment, caches and what jobs left behind in this folder
	rm -rf .venv .uv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf cairn-data spark-warehouse metastore_db derby.log bench-output benchmarks/output
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
