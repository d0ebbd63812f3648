# Every command makes .venv and installs into it first, when that has not been done.
PYTHON ?= python3
# Of 17,000 files that are installed a quarter is ever imported: Python compiles these when they are,
# and keeps what it compiles, whatever the environment says: else every process imports for seconds.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip install --disable-pip-version-check --no-compile -c constraints.txt
BIN := .venv/bin
EXTRAS ?= test
INSTALLED := .venv/.installed
INSTALLED_DOCS := .venv/.installed-docs
SINGLE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# The theme writes a tree of all pages beside each, which takes longer than all the rest.
ifeq ($(EXAMPLES),0)
WITHOUT_EXAMPLES := -D sphinx_gallery_conf.plot_gallery=0 -D suppress_warnings=image.not_readable \
	-D html_theme=basic
endif

OLD_PYTHON := liftednet needs Python 3.11 or newer, and $(PYTHON) is %s: \
	name a newer one, as in: make test PYTHON=python3.12

.PHONY: help demo test suite torture versions lint type bench docs clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR: # no half-made .venv

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: $(INSTALLED) ## train, export and compare on real data, in half a minute
	$(SINGLE_THREAD) $(BIN)/python -m benchmarks.demo

test: lint type suite ## everything that must hold: linting, typing, tests

suite: $(INSTALLED) ## the tests alone
	$(SINGLE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal $(LEFT_OUT)

torture: $(INSTALLED) ## thousands of drawn cases each with a judge, up to an hour
	$(SINGLE_THREAD) $(BIN)/python -m tests.torture

versions: $(INSTALLED) ## the wheel in clean environments of every Python there is, some minutes each
	$(BIN)/python -m tests.versions

lint: $(INSTALLED) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(INSTALLED) ## mypy
	$(BIN)/mypy

bench: $(INSTALLED) ## every benchmark, one after the other
	set -e; for script in benchmarks/*.py; do echo "== $$script"; \
		$(BIN)/python -m benchmarks.$$(basename "$$script" .py); done

docs: $(INSTALLED_DOCS) ## the site, in build/docs; EXAMPLES=0 checks it: none are run, no theme
	rm -rf build/docs build/doctrees docs/gallery docs/reference/generated
	$(SINGLE_THREAD) $(BIN)/python -m sphinx -q -W --keep-going $(WITHOUT_EXAMPLES) \
		-d build/doctrees docs build/docs
	@echo "build/docs/index.html"

clean: ## remove .venv and everything else that was made
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf docs/gallery docs/reference/generated

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed:" \
		"liftednet needs Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or \
		sys.exit("$(OLD_PYTHON)" % sys.version.split()[0])'
	$(PYTHON) -m venv .venv

$(INSTALLED): setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(PIP) -e ".[$(EXTRAS)]"
	@touch $@ $(if $(findstring docs,$(EXTRAS)),$(INSTALLED_DOCS))

$(INSTALLED_DOCS): $(INSTALLED)
	$(BIN)/python $(PIP) -e ".[docs]"
	@touch $@
