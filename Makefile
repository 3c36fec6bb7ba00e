# make train: install, train the default.  make board: watch the runs in outputs/ in a browser.
# make test: every promise once, some minutes.  make test-fast: units, under a minute.  make test-all: all other tests.
# make docs: build the site into docs/_build/html.  make release: build sdist and wheel of HEAD into release/.
# make check: lint, types and `make test`.  make mutants: break each mechanism of tests/mutants.toml, and run its tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train board docs release test test-fast test-all mutants check lint clean

train: .venv/installed
	$(BIN)/python train.py

board: .venv/installed
	$(BIN)/lockstep board

docs: .venv/installed
	$(BIN)/python -m sphinx -a -W --keep-going -q docs docs/_build/html

release: .venv/installed
	rm -rf release
	PATH="$$PWD/$(BIN):$$PATH" .ci/release release

test: .venv/installed
	$(BIN)/python -m pytest -m "not full"

test-fast: .venv/installed
	$(BIN)/python -m pytest --numprocesses=auto -m "not full and not processes" tests/unit

test-all: .venv/installed
	$(BIN)/python -m pytest -m full

mutants: .venv/installed
	$(BIN)/python -m tests.support.mutants $(MUTANTS)

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
