# Everything by one command: `make bench`, `make test`. See README.md.
#
# What is done stays done: stamps in build/ and .venv/ hold finished steps, ninja the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
# Many tests wait for something.
TEST_JOBS ?= $(shell echo $$(($(JOBS) < 16 ? 2 * $(JOBS) : $(JOBS))))
BUILD := build/release
VENV := .venv
BIN := $(VENV)/bin
CCACHE := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
  -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
# CMAKE_ARGS: further ones, as -DRW_PRECOMPILED=ON, with which a whole build takes less time.
CMAKE_ARGS ?=
CONFIGURE := cmake -G Ninja $(CCACHE) $(CMAKE_ARGS)
FUZZ_SECONDS ?= 20
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard \
  '*.cc' '*.h' '*.c' '*.inc' ':!:**/settings_table.inc')
PYTHON_FILES := $(shell find python -name '*.py' -o -name py.typed)
CPP_FILES := $(shell find src include cmake -type f) CMakeLists.txt

.PHONY: help bench test test-gpu build wheel install lint tidy format asan tsan fuzz mutants clean \
  docs

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

bench: install ## set up, build, install, then time and verify all-reduce over 4 and 2 local ranks
	$(BIN)/ropewalk bench all_reduce --ranks 4 -b 8 -e 64M -f 2
	$(BIN)/ropewalk bench all_reduce --ranks 2 -b 8 -e 64M -f 2

test: install $(VENV)/.ready-test ## set up, build, install, then run all tests
	ninja -C $(BUILD)
	dev/run-tests $(BUILD) $(BIN)/python $(TEST_JOBS)

test-gpu: install $(VENV)/.ready-test ## the tests that need GPUs (see docs/gpu.md)
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pytest tests/gpu

build: $(BUILD)/build.ninja ## the C++ library and its unit tests
	ninja -C $(BUILD)

wheel: build/.wheel ## dist/ropewalk-*.whl
install: $(VENV)/.installed ## the wheel in .venv

build/.system: dev/setup
	dev/setup build
	@mkdir -p build && touch $@

$(BUILD)/build.ninja: CMakeLists.txt cmake/layers.cmake cmake/cuda.cmake cmake/simgrid.cmake \
  cmake/install.cmake \
  | build/.system $(if $(filter test,$(MAKECMDGOALS)),build/.system-simgrid)
	$(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release
	@touch $@

# The environment is made anew when it is not there; its packages are looked at again when
# pyproject.toml changes.
$(VENV)/.made: | build/.system
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.ready: pyproject.toml $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python dev/requirements.py build-system project)
	@touch $@

$(VENV)/.ready-test: pyproject.toml $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python dev/requirements.py test)
	@touch $@

# Optional, and large: with it, `make test` has PyTorch's own tests too.
$(VENV)/.ready-torch: pyproject.toml $(VENV)/.ready-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python dev/requirements.py torch-test)
	@touch $@

# The library is built first by ninja itself, so that a compiler's message is not buried in pip's.
build/.wheel: $(PYTHON_FILES) $(CPP_FILES) pyproject.toml README.md dev/wheel_hook.py \
  $(VENV)/.ready $(BUILD)/build.ninja
	ninja -C $(BUILD) runtime
	rm -rf dist
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --wheel-dir dist .
	@touch $@

$(VENV)/.installed: build/.wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	  dist/ropewalk-*.whl
	@touch $@

# Optional: without it there is no ropewalk-simgrid, and its tests are skipped.
build/.system-simgrid: dev/setup | build/.system
	dev/setup simgrid || echo "going on without SimGrid"
	@mkdir -p build && touch $@

build/.system-%: dev/setup
	dev/setup $*
	@mkdir -p build && touch $@

lint: $(VENV)/.ready-test ## clang-format, ruff, mypy
	@echo clang-format --dry-run --Werror; $(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Takes a quarter of an hour, so that it is no part of lint. TIDY_FILES: the sources to look at.
TIDY_FILES ?= $(shell git ls-files 'src/*.cc' 'tests/*.cc')
tidy: build/asan/build.ninja build/.system-tidy ## clang-tidy over TIDY_FILES, all by default
	@printf '%s\n' $(TIDY_FILES) | xargs -P $(JOBS) -n 1 clang-tidy -p build/asan --quiet

format: $(VENV)/.ready-test ## lay out all sources
	@echo clang-format -i; $(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install ## man pages, docs/settings.md, docs/faults.md and the rules from the programs themselves
	$(BIN)/python dev/make_man.py
	$(BIN)/python dev/make_settings_page.py
	ninja -C $(BUILD) fault_table
	$(BUILD)/tests/sisci/fault_table --write docs/faults.md
	$(BIN)/python dev/make_rules_page.py

# Clang, so that the tree is built by a second compiler, which also checks what mutexes guard.
# Without CUDA: nvcc takes neither these sanitizers nor, everywhere, this compiler beside it.
CONFIGURE_CLANG := $(CONFIGURE) -DCMAKE_BUILD_TYPE=None -DRW_CUDA=OFF \
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++

# The fuzzers need the same sanitizers: one tree serves both.
build/asan/build.ninja: CMakeLists.txt cmake/layers.cmake | build/.system build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/asan -DRW_SANITIZE=address,undefined -DRW_FUZZ=ON
	@touch $@

build/tsan/build.ninja: CMakeLists.txt cmake/layers.cmake | build/.system build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/tsan -DRW_SANITIZE=thread
	@touch $@

# SKIP_TESTS: a regular expression of tests to leave out. ASAN_TESTS, TSAN_TESTS: the test programs to
# build and run; all when empty.
SKIP_TESTS ?=
ASAN_TESTS ?=
TSAN_TESTS ?=
asan: build/asan/build.ninja ## all unit tests under address and undefined behaviour sanitizers
	ninja -C build/asan $(ASAN_TESTS)
	dev/run-sanitized build/asan $(JOBS) '$(SKIP_TESTS)'

tsan: build/tsan/build.ninja ## all unit tests under the thread sanitizer
	ninja -C build/tsan $(TSAN_TESTS)
	dev/run-sanitized build/tsan $(JOBS) '$(SKIP_TESTS)'

fuzz: build/asan/build.ninja ## every fuzzer for FUZZ_SECONDS
	dev/run-fuzzers build/asan $(FUZZ_SECONDS)

# Half a minute to some minutes a mutant, so that it is no part of CI. MUTANTS: how many; MUTANTS_LAYERS:
# of which folders of src/, all when empty; MUTANTS_AGAIN: places (FILE or FILE:LINE) of what was tried, to
# try these alone, or `stale`: survivors and what stands in files that have changed; MUTANTS_FRESH: 1 tries
# all again. Warnings refuse a mutant, as CI does.
MUTANTS ?= 60
MUTANTS_SEED ?= 1
MUTANTS_LAYERS ?=
MUTANTS_AGAIN ?=
MUTANTS_FRESH ?=
mutants: build/.system $(VENV)/.ready-test ## which small changes to the code no test notices (docs/testing.md)
	nice $(BIN)/python dev/mutants.py --mutants $(MUTANTS) --seed $(MUTANTS_SEED) --jobs $(JOBS) \
	  $(if $(MUTANTS_LAYERS),--layers $(MUTANTS_LAYERS)) $(if $(MUTANTS_FRESH),--fresh) \
  $(if $(MUTANTS_AGAIN),--again $(MUTANTS_AGAIN)) --configure \
	  $(CCACHE) -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' -DRW_CUDA=OFF \
	  -DRW_SLOW_TESTS=OFF -DRW_WERROR=ON $(CMAKE_ARGS)

clean: ## remove what was built; .venv stays
	rm -rf build dist
	rm -f $(VENV)/.installed
