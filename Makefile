# recalld: on a fresh machine `make serve` and `make test` need Python 3.11 or newer and make, nothing else by hand.
#
# All that is installed goes into .venv. A stamp there says that it is current: pip runs again when pyproject.toml
# is newer or the folder has moved (the scripts of a venv carry its absolute path), not every time.

# The first interpreter that is new enough; `make PYTHON=/path/to/python` overrides.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

VENV := .venv
VPY := $(VENV)/bin/python
# "yes" if the venv's interpreter runs: after an upgrade of the system's Python the link may lead nowhere.
RUNS := $(shell $(VPY) -c 'print("yes")' 2>/dev/null)
HERE := $(shell test "$$(cat $(VENV)/made-at 2>/dev/null)" = "$(CURDIR)" && echo yes)

ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

.PHONY: help serve demo test fuzz lint clean FORCE

help:
	@echo 'make serve [ARGS="--port 7000"]            start the server, its append-only file in ./data'
	@echo 'make demo                                  a server that embeds reads its own docs and answers five questions'
	@echo 'make test  [PYTEST_ARGS="-k protocol -x"]  ruff, mypy --strict and every test, as CI does'
	@echo 'make fuzz ARGS="all -max_total_time=60"     fuzz the targets of tests/fuzz, or one of them by name'
	@echo 'make lint                                  ruff and mypy --strict alone'
	@echo 'make clean                                 remove what was built and installed here, .venv too; data stays'

serve: $(VENV)/serve.stamp
	@mkdir -p data
	$(VENV)/bin/recalld conf/recalld.conf --dir ./data --appendonly yes $(ARGS)

demo: $(VENV)/demo.stamp
	@$(VPY) -m recalld.server.demo

# A worker more than there are cores: a fifth of the time a test waits for a server. What fails there is run once more alone, and said: tests that measure memory, or kill processes, may be
# disturbed by their neighbours, and what is wrong fails again. mypy is one of the tests: it runs over the names as
# installed (tests/test_packaging.py builds them).
test: $(VENV)/test.stamp
	$(VPY) -m ruff check .
	$(VPY) -m pytest -n $(WORKERS) $(PYTEST_ARGS) || { \
	  echo 'make test: what failed runs once more, alone'; \
	  $(VPY) -m pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

# New inputs are kept in build/fuzz; a crash leaves its input here.
fuzz: $(VENV)/test.stamp
	$(VPY) tests/fuzz/run.py $(ARGS)

lint: $(VENV)/test.stamp
	$(VPY) -m ruff check .
	$(VPY) -m pytest tests/test_packaging.py -k mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/node_modules
	find $(wildcard server protocol index conf tests bench) -name __pycache__ -type d -prune -exec rm -rf {} +

# Editable: a change to the code needs no second install. numba, where it has a wheel, compiles the inner loops here, so
# that no server does.
$(VENV)/serve.stamp: pyproject.toml $(VENV)/made-at
	$(VPY) -m pip install --disable-pip-version-check -e .
	$(VPY) -m pip install --disable-pip-version-check --only-binary=numba,llvmlite -e '.[fast]' \
	  && $(VPY) -m recalld.server.compiled_loops \
	  || echo 'No numba for this Python or platform: large memories are searched by numpy alone, with the same answers.'
	@touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/made-at
	$(VPY) -m pip install --disable-pip-version-check -e '.[local,client]'
	@touch $@ $(VENV)/serve.stamp

$(VENV)/test.stamp: pyproject.toml $(VENV)/made-at
	$(VPY) -m pip install --disable-pip-version-check -e '.[test]'
	@touch $@ $(VENV)/serve.stamp

# A venv that runs is kept with what is in it; one that does not is emptied first.
$(VENV)/made-at: $(if $(and $(RUNS),$(HERE)),,FORCE)
	@test -n "$(PYTHON)" || { \
	  echo 'recalld needs Python 3.11 or newer and found none on PATH.' >&2; \
	  echo 'Install one, or name it: make PYTHON=/path/to/python3.12 ...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'recalld needs Python 3.11 or newer; $(PYTHON) is not.' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'The venv module of $(PYTHON) is incomplete (no ensurepip): install it, then run make again.' >&2; \
	  echo 'Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	"$(PYTHON)" -m venv $(if $(RUNS),,--clear) $(VENV)
	@printf '%s\n' "$(CURDIR)" > $@
