# Needs Python 3.11 or newer, git and make; everything else is installed into .venv.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
BENCH_STAMP := $(VENV)/.ready-bench
SUITABLE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.PHONY: setup demo test soak check bench clean

setup: $(STAMP)

# A Python on the PATH counts only if it starts, is new enough and can make an environment.
$(STAMP): pyproject.toml constraints.txt
	@python=; for name in python3 python3.11 python3.12 python3.13 python3.14; do \
	  if $$name -c '$(SUITABLE)' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "dpbalance needs Python 3.11 or newer (with venv and pip), and none was found on the PATH." >&2; exit 1; \
	fi; \
	test -x $(BIN)/python || $$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m dpbalance.scheduler.warm_up
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

demo: setup
	@$(BIN)/dpbalance demo

test: setup
	$(BIN)/python -m pytest -n 2

# The ledger's tests again, for as long as it takes to be sure: more kills, cuts, restarts, histories and seeds.
soak: setup
	DPB_KILLS=1000 DPB_CUTS=20000 DPB_RESTARTS=40 DPB_HISTORIES=20000 DPB_SEEDS=10000 DPB_RACE_SECONDS=300 \
	  timeout 3600 $(BIN)/python -m pytest -n 2 tests/test_ledger_race.py tests/test_ledger_crash.py tests/test_ledger_histories.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_docs.py tests/test_tidy.py

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
