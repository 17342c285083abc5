# Two commands for newcomers: `make demo` and `make test`. Both set up .venv by themselves (several minutes the first
# time: torch is about 6 GB) and leave everything else on the machine alone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint browser clean

demo: $(VENV)/.installed-demo
	$(BIN)/togi tune examples/photos.py:subject --time-limit 3m --out photos.togi --report report.html --force
	$(BIN)/python examples/photos.py photos.togi

test: $(VENV)/.installed-test browser
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/togi check
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/togi check

# The report's tests open it in Chromium; without one, and without the right to install it, they skip and say so.
browser:
	@command -v chromium >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	  { apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	  echo "no Chromium here: the report's browser tests will be skipped"; }

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "togi needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed-demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[all,examples]'
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[all,examples,test]'
	touch $@

clean:
	rm -rf $(VENV) photos.togi report.html
