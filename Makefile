# Every target sets up what it needs: the environment in .venv, and Java where Spark runs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Tests start hundreds of interpreters, which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
INSTALLED := .venv/.installed
EXTRAS := spark,test,lint,dist
# Processes that pytest spreads over, two more than cores, because three of them mostly wait for JVMs
# and others for timers; `make test WORKERS=0` runs in one, for a debugger.
WORKERS ?= $(shell expr $$(nproc) + 2)
# Those of `make test-fast` wait for nothing, and each of them has to collect all tests first.
FAST_WORKERS ?= $(if $(filter file,$(origin WORKERS)),$(shell nproc),$(WORKERS))
# Tests sync thousands of small files: on a disk in memory they take half the time. Needs 6 GiB there.
TEST_TMPDIR ?= $(shell [ -w /dev/shm ] && [ $$(df --output=avail /dev/shm | tail -1) -gt 6291456 ] \
	&& echo /dev/shm || echo $${TMPDIR:-/tmp})
# How many times as many seeds, kills and examples `make test-long` tries.
EFFORT ?= 10
# Of `make torture`: how long, and the seed of a run that is to be repeated.
TORTURE_SECONDS ?= 600
SEED ?=
# More arguments for pytest: `make test-fast ARGS="tests/format -x"`.
ARGS ?=

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: accelerator ## The pipeline from events to a table, on embedded Spark (two minutes)
	$(PYTHON) examples/demo.py $(ARGS)

.PHONY: accelerator
accelerator: $(INSTALLED) java ## Build the accelerator for Spark, with what PySpark contains
	$(PYTHON) scripts/build_accelerator.py

.PHONY: test
test: lint test-jvm test-tools ## Everything CI runs: lint, types, layers and all tests
	TMPDIR=$(TEST_TMPDIR) $(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

.PHONY: check
check: test ## The same as test

.PHONY: test-fast
test-fast: $(INSTALLED) ## Tests only, without the slow ones
	TMPDIR=$(TEST_TMPDIR) $(PYTHON) -m pytest -n $(FAST_WORKERS) -m "not slow and not spark" $(ARGS)

.PHONY: test-long
test-long: test-jvm test-tools ## All tests with many more seeds, kills and examples (EFFORT=, hours)
	TMPDIR=$(TEST_TMPDIR) STRATALOG_TEST_EFFORT=$(EFFORT) $(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

.PHONY: torture
torture: $(INSTALLED) ## Random work, kills and full disks on one directory, with a checker (SEED=, TORTURE_SECONDS=)
	$(PYTHON) -m tests.torture --seconds $(TORTURE_SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: lint
lint: $(INSTALLED) type ## Style, types and import layers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	.venv/bin/lint-imports

.PHONY: type
type: $(INSTALLED) ## Types: mypy --strict over src and tests
	$(PYTHON) -m mypy --strict

.PHONY: format
format: $(INSTALLED) ## Rewrite the sources in the project's style
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

.PHONY: bench
bench: accelerator ## Measure the hot paths, beside other libraries
	$(PYTHON) -m benchmarks $(ARGS)

.PHONY: docs
docs: $(INSTALLED) ## Run the commands in README and docs, and write their output into the pages
	$(PYTHON) scripts/manual.py
	$(PYTHON) scripts/transcripts.py README.md docs/*.md

.PHONY: dist
dist: accelerator ## Build the wheel and the source distribution in dist/
	rm -rf build dist
	$(PYTHON) -m build --no-isolation

.PHONY: install
install: $(INSTALLED) ## Create .venv with the pinned dependencies

.PHONY: java
java: ## Make sure that Java 17 or later is there, for Spark
	scripts/ensure_java

.PHONY: test-jvm
test-jvm: accelerator ## Prepare an archive of Spark's classes, with which the JVMs of tests start sooner
	$(PYTHON) -m tests.spark.quick_jvm

.PHONY: test-tools
test-tools: $(INSTALLED) ## Make sure that Chromium, kcat and jars of Kafka are there; without them some tests are skipped
	scripts/ensure_test_tools || true

.PHONY: lock
lock: $(INSTALLED) ## Fit constraints.txt to pyproject.toml; ARGS=--upgrade takes the newest of all
	$(PYTHON) scripts/lock.py $(ARGS)

.PHONY: clean
clean: ## Remove the environment and all caches
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Installed again when what it was made from changes.
$(INSTALLED): pyproject.toml constraints.txt scripts/setup_venv
	scripts/setup_venv $(EXTRAS)
	touch $@
