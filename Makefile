# `make plan` and `make test` work on a fresh clone: the first target needed creates .venv and installs wheels into it.
# The path of the clone may contain spaces.  make splits prerequisites at spaces, so every path here is relative; and scripts that
# pip writes into .venv/bin carry that path in their first line, so modules are started with `python -m`.

PYTHON ?= python3
JOBS ?= 2
PYTEST ?=
PY := .venv/bin/python
READY := .venv/.shardproof-ready
FAST := not slow and not gpu and not torch and not coq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install plan test lint format typecheck kernels coverage test-slow test-optimized test-pythons test-mpi test-gpu test-torch test-all docs bench clean distclean

help:
	@echo "make plan       plan BERT-Large on 4x8, check the plan, explain it, run a small model of the same structure on 8 ranks"
	@echo "make test       lint, types, tests (JOBS=0: one process; PYTEST='-k machine': more options)"
	@echo "make lint | format | typecheck | coverage | test-slow | test-optimized | test-pythons | test-mpi | test-gpu | test-torch | test-all | docs | bench | clean | distclean"

install: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "shardproof needs Python 3.11 or newer, $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % v[:2])'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[mpi,dev]'
	@touch $(READY)

plan: $(READY)
	@mkdir -p out
	@rm -f out/bert-large-4x8.spz out/bert-tiny.spz
	$(PY) -m shardproof plan bert-large --machine dgx-a100:4x8 --batch 8 -o out/bert-large-4x8.spz
	$(PY) -m shardproof check out/bert-large-4x8.spz
	$(PY) -m shardproof explain out/bert-large-4x8.spz
	$(PY) -m shardproof plan bert-tiny --batch 1 --machine localhost:8 -o out/bert-tiny.spz
	$(PY) -m shardproof run out/bert-tiny.spz -n 8

test: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint typecheck kernels
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "$(FAST)" $(PYTEST)

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet . || { echo 'run: make format' >&2; exit 1; }

format: $(READY)
	$(PY) -m ruff format .

typecheck: $(READY)
	$(PY) .ci/typecheck.py

# Numba compiles the loops of searches at their first run and keeps them beside the sources: here beside the types, which
# take one core, so that both processes of the tests need not.  What fails here fails in the tests too, and is said there.
kernels: $(READY)
	-@$(PY) -m pytest -q -p no:cacheprovider tests/test_doctests.py tests/test_mutants_contest.py -k 'egraphs or schedules or selection or (widened and some)' >/dev/null 2>&1

# A slow test may take half an hour: two minutes of processor are more than the usual five of wall time on a busy machine.
test-slow: $(READY)
	$(PY) -m pytest -n $(JOBS) --timeout 1800 -m "slow and not gpu and not torch and not coq" $(PYTEST)

# Checkers without asserts: what a verdict rests on must not be one (pytest keeps those of the tests themselves).
CHECKERS = tests/test_optimized.py tests/test_conformance.py tests/test_forgeries.py tests/test_verify_*.py tests/test_mutants_selection*.py \
	tests/test_certificate_format.py tests/test_check_budget.py tests/test_schedule_checker.py
test-optimized: $(READY)
	$(PY) -O -m pytest -n $(JOBS) -m "$(FAST)" $(CHECKERS) $(PYTEST)

# The same files and the house on every supported Python that this machine has: an environment each in PYTHON_ENVS, wheels only.
# Fewer of them: make test-pythons PYTHONS=python3.13 PYTHONS_TESTS='tests/test_verify_substitution.py tests/test_optimized.py'.
PYTHONS ?= python3.11 python3.12 python3.13
PYTHON_ENVS ?= .venv
PYTHONS_TESTS ?= tests/test_house.py tests/test_api.py tests/test_solve_selection.py $(CHECKERS)
test-pythons: $(READY)
	@for python in $(PYTHONS); do \
	  $$python -c '' 2>/dev/null || { echo "== $$python: not on this machine, left out"; continue; }; \
	  echo "== $$python"; venv="$(PYTHON_ENVS)/$$(basename $$python)"; \
	  test -x "$$venv/bin/python" || $$python -m venv "$$venv" || exit 1; \
	  "$$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --editable '.[mpi,dev]' || exit 1; \
	  "$$venv/bin/python" -m pytest -n $(JOBS) -m "$(FAST)" $(PYTHONS_TESTS) $(PYTEST) || exit 1; \
	done

# Lines that run under the nearest tests of the checkers, with those that none runs: a page beside the other results.
coverage: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check coverage
	$(PY) tests/benchmarks/line_coverage.py --page tests/benchmarks/results/line-coverage.md

test-mpi: $(READY)
	$(PY) -m pytest -m mpi $(PYTEST)

# CuPy for CUDA 12 where none is installed yet (cupy-cuda13x is left alone).
test-gpu: $(READY)
	$(PY) -c 'import cupy' 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check --editable '.[gpu]'
	$(PY) -m pytest -m gpu -s $(PYTEST)

# PyTorch's CPU build is named by number: without it pip takes gigabytes of CUDA packages.
test-torch: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers jax
	$(PY) -m pytest --timeout 1800 -m torch $(PYTEST)

test-all: lint typecheck
	$(PY) -m pytest -n $(JOBS) --timeout 1800 $(PYTEST)

# Static pages in docs/_build/html; a warning is an error, and the reference must be what the code says.
docs: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(PY) tests/reference_pages.py --check
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Every benchmark, one after another, or BENCH='pase_tables contest': a row each in tests/benchmarks/results/runs.md.
BENCH ?= --all --keep-going
bench: $(READY)
	$(PY) tests/benchmarks/run.py $(BENCH)

clean:
	rm -rf build dist out docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv
