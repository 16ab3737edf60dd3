# Every target creates what it needs: a virtual environment in .venv, renewed when its inputs change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ALL_READY := $(VENV)/.all-ready
DOCS_READY := $(VENV)/.docs-ready
SITE := build/docs
WORKERS ?= 2

export MPLBACKEND := Agg
# the processes of a test run share the cores; more threads only get in each other's way
TEST_ENV := OMP_NUM_THREADS=1

.PHONY: demo test test-all test-page browser check check-page format bench bench-gpu bench-diagnosis docs pictures clean

demo: $(READY)
	$(BIN)/monitorch demo

test: $(READY) browser test-page
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

test-all: $(ALL_READY) browser test-page
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov -m "slow or not slow"

# for the tests of the page; where this may not install it, they say how to get it
INSTALL_BROWSER := apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null
browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		$(INSTALL_BROWSER) || { apt-get -qq update && $(INSTALL_BROWSER); }

check: $(READY) check-page
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(call with_node,$(MAKE) --no-print-directory node_modules/.ready && npm run --silent format)

# the page's modules are checked and tested where there is node; the page itself needs none
with_node = @if command -v node >/dev/null && command -v npm >/dev/null; then $(1); \
	elif test -n "$$CI"; then echo "the page's modules are checked and tested with node: install node and npm" >&2; exit 1; \
	else echo "without node and npm the page's modules are neither checked nor tested"; fi

check-page:
	$(call with_node,$(MAKE) --no-print-directory node_modules/.ready && npm run --silent check)

test-page:
	$(call with_node,npm run --silent test)

node_modules/.ready: package.json package-lock.json
	npm ci --silent
	touch $@

# a machine without an index finds the packages to compare with in a folder: BENCH_OPTIONS="--peers DIR"
bench: $(READY)
	$(BIN)/python -m bench $(BENCH_OPTIONS)

bench-gpu: $(READY)
	$(BIN)/python -m bench --device cuda $(BENCH_OPTIONS)

# how well problems of training are named; BENCH_OPTIONS="--seeds 3 --write", or --quick
bench-diagnosis: $(READY)
	$(TEST_ENV) $(BIN)/python -m bench.diagnosis $(BENCH_OPTIONS)

# the site, in build/docs: open build/docs/index.html; a warning, or a link that leads nowhere, is an error
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --builder html docs $(SITE)
	$(BIN)/python -m docs.check $(SITE)

# of the documents, from runs that are trained for it; NAMES="dead_units dashboard" makes only these
pictures: $(READY) browser
	$(TEST_ENV) $(BIN)/python -m docs.pictures $(NAMES)

# what is released, in dist/: the source archive, and the wheel that is built from it
.PHONY: dist
dist: $(READY)
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) node_modules build dist monitorch_demo .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

# only what is imported is compiled, and then: compiling everything takes longer than downloading it
install = $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e ".[$(1)]"

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,dev)
	touch $@

$(DOCS_READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,docs)
	touch $@

$(ALL_READY): $(READY)
	$(call install,dev-all)
	touch $@
