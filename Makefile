# Every target creates what it needs: a virtual environment in .venv, renewed when its inputs change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

export MPLBACKEND := Agg
# the processes of a test run share the cores; more threads only get in each other's way
TEST_ENV := OMP_NUM_THREADS=1

.PHONY: demo test test-all browser check format bench bench-gpu clean

demo: $(READY)
	$(BIN)/monitorch demo

test: $(READY) browser
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered

test-all: $(READY) browser
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov -m "slow or not slow"

# for the tests of the page; where this may not install it, they say how to get it
INSTALL_BROWSER := apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null
browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		$(INSTALL_BROWSER) || { apt-get -qq update && $(INSTALL_BROWSER); }

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# a machine without an index finds the packages to compare with in a folder: BENCH_OPTIONS="--peers DIR"
bench: $(READY)
	$(BIN)/python -m bench $(BENCH_OPTIONS)

bench-gpu: $(READY)
	$(BIN)/python -m bench --device cuda $(BENCH_OPTIONS)

clean:
	rm -rf $(VENV) build dist monitorch_demo .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
