# Two commands for newcomers: `make demo` and `make test`. Both set up .venv by themselves (several minutes the first
# time: torch is about 6 GB) and leave everything else on the machine alone, but for this: as root, where there is apt,
# `make test` also installs Chromium (target `browser`). Elsewhere, without one, the browser tests skip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Files in the order of tests/conftest.py: the longest first. A worker that crashes ends the run: with another in its
# place xdist waited for ever for tests that nobody ran. What took longest is printed in the end.
WORKERS ?= 2
SIDE_BY_SIDE := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
  --durations=40 --durations-min=5
PYTEST := $(BIN)/python $(SIDE_BY_SIDE)

.PHONY: demo test test-thorough test-all test-hangs lint docs browser clean

demo: $(VENV)/.installed-demo
	$(BIN)/togi tune examples/photos.py:subject --time-limit 3m --out photos.togi --report report.html --force
	$(BIN)/python examples/photos.py photos.togi

test: ready
	$(PYTEST)

# What takes longer: studies, processes that are started, killed and hang, engines that compile, more cases.
test-thorough: $(VENV)/.installed-test browser
	$(PYTEST) -m thorough

# Both in one run, which is what CI does, before a change lands: what they share is imported and made once.
test-all: ready
	$(PYTEST) -m "not hangs"

# Every place of a study in which something may hang: a quarter of an hour, one after the other.
test-hangs: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m hangs

# What checks source runs on Windows and macOS, too, which lack some of what Linux has.
CHECKS_SOURCE := -p togi.core -p togi.lint.source -p togi.lint.rules.source -p togi.lint.data -p togi.render.findings \
  $(foreach name,add_ignores cache check_file check_paths files finding fix globs notebooks pages patterns pool rule selection \
  server settings source_text targets,-m togi.lint.$(name)) -m togi.cli.check -m togi.cli.output

# The types take half of the time, so they are checked next to the rest.
lint: $(VENV)/.installed-test
	$(MAKE) --no-print-directory --jobs=2 lint-types lint-style

# What tests need is downloaded next to both.
ready: $(VENV)/.installed-test
	$(MAKE) --no-print-directory --jobs=3 lint-types lint-style browser

.PHONY: ready lint-types lint-style
lint-types:
	$(BIN)/mypy

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/togi check
	$(BIN)/python docs/prose.py
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 --follow-imports silent $(CHECKS_SOURCE)

# The site into build/site/index.html; the suite builds it too.
docs: $(VENV)/.installed-test
	$(BIN)/python -m mkdocs build --strict

# The suite in other surroundings: it must not know the processor, the machine's quiet, the order of tests, the user's
# home, language and time zone, or the folder that it lies in.
SURROUNDINGS := test-avx2 test-one-core test-four-threads test-neighbours test-any-order test-no-home test-locale \
  test-folder
.PHONY: test-surroundings $(SURROUNDINGS)
test-surroundings: $(SURROUNDINGS)
$(SURROUNDINGS): $(VENV)/.installed-test

test-avx2:
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(PYTEST)

test-one-core:
	taskset -c 0 $(BIN)/python -m pytest

test-four-threads:
	OMP_NUM_THREADS=4 MKL_NUM_THREADS=4 $(PYTEST)

test-neighbours:
	for _ in 1 2; do (while kill -0 $$$$ 2>/dev/null; do :; done) & done; $(PYTEST)

test-any-order:
	$(PYTEST) --random-order-bucket=global --random-order-seed=1
	$(PYTEST) --random-order-bucket=global --random-order-seed=2

test-no-home:
	env -u XDG_CACHE_HOME -u XDG_STATE_HOME HOME=/dev/null/nobody $(PYTEST)

test-locale:
	LC_ALL=C TZ=Pacific/Kiritimati PYTHONUTF8=0 $(PYTEST)

test-folder:
	to="$$(mktemp -d)/süß und leer/togi" && mkdir -p "$$to" && git ls-files -z | xargs -0 cp --parents -t "$$to" && \
	  venv="$(CURDIR)/$(VENV)" && cd "$$to" && PYTHONPATH="$$to/src" "$$venv/bin/python" $(SIDE_BY_SIDE)

# The suite on another torch, in an environment of its own: make test-torch TORCH=2.9 PYTHON=python3.13
TORCH ?= 2.11
.PHONY: test-torch
test-torch:
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	$(call install-tests,.venv-torch-$(TORCH)/bin/python,'torch==$(TORCH).*')
	.venv-torch-$(TORCH)/bin/python $(SIDE_BY_SIDE)

# The report's tests open it in Chromium; without one, and without the right to install it, they skip and say so.
browser:
	@command -v chromium >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	  { apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	  echo "no Chromium here: the report's browser tests will be skipped"; }

# ultralytics alone: it asks for the OpenCV that needs a display's libraries, and runs with the one of the extra `test`.
define install-tests
$(1) -m pip install --quiet $(2) -e '.[all,examples,test]'
$(1) -m pip install --quiet --no-deps ultralytics
endef

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "togi needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed-demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[all,examples]'
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	$(call install-tests,$(BIN)/python)
	touch $@

clean:
	rm -rf $(VENV) photos.togi report.html
