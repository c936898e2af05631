# Every everyday task of the project. `make` alone lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
# Folders that are there; benchmarks and examples are checked like the rest.
CODE := $(wildcard src tests benchmarks examples)
# Extra arguments, for example: make test ARGS="-k keygroups"
ARGS ?=

.PHONY: help setup demo check test soak bench lint types format clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  \033[1m%-8s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with cairn, Spark and the tools; install Java where possible
	@scripts/setup.sh

demo: setup ## run the demonstration job on local Spark
	@$(BIN)/cairn demo $(ARGS)

check: setup lint types ## lint, check types, run the tests that need no Spark: a few minutes
	@PARTS=plain scripts/test.sh $(ARGS)

test: setup lint types ## what a change must pass: lint, types, all tests
	@scripts/test.sh $(ARGS)

# Long random runs, for which the tests have no time. SEED repeats one.
MINUTES ?= 10
WHAT ?= simulation mutations fuzz kills

soak: setup ## random runs for MINUTES=10 each: WHAT="simulation mutations fuzz kills"; seeds are printed
	@MINUTES="$(MINUTES)" SEED="$(SEED)" scripts/soak.sh $(WHAT)

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
