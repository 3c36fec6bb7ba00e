# make train: install, train the default.  make test: install, run the tests.  make test-fast: units alone.
# make check: lint, types and tests.
# make docs: build the site into docs/_build/html.
# make board: watch the runs in outputs/ in a browser.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train board docs test test-fast check lint clean

train: .venv/installed
	$(BIN)/python train.py

board: .venv/installed
	$(BIN)/lockstep board

docs: .venv/installed
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

test: .venv/installed
	$(BIN)/python -m pytest

test-fast: .venv/installed
	$(BIN)/python -m pytest tests/unit

check: lint test

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# Again only when what is installed would change.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 11, 4) <= sys.version_info < (3, 14), "Lockstep needs Python 3.11.4 to 3.13, not " + sys.version.split()[0]'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv
