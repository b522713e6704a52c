# Everything by one command: `make bench`, `make test`. See README.md.
#
# What is done stays done: stamps in build/ and .venv/ hold finished steps, ninja the rest. There is one
# build folder, which grows: `make bench` builds the library as this machine can run it (with CUDA where a GPU
# is), `make wheel` and `make install` the network plugin, its checker, ropewalk-simgrid where SimGrid is, and
# CUDA where nvcc is, `make test` the tests. What was built before stays: the flags are the same.
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
# CMAKE_ARGS: further ones, as -DRW_CUDA=OFF.
CMAKE_ARGS ?=
CONFIGURE := cmake -G Ninja $(CCACHE) $(CMAKE_ARGS)
TESTED := $(filter test,$(MAKECMDGOALS))
STAGE := whole
ifeq ($(MAKECMDGOALS)$(wildcard $(BUILD)/.whole),bench)
  STAGE := first
endif
# pip fetches packages while the compiler runs. Several goals stay one after another.
ifneq ($(filter $(subst $() ,+,$(strip $(MAKECMDGOALS))),bench test),)
  MAKEFLAGS += -j2
endif
FUZZ_SECONDS ?= 20
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard \
  '*.cc' '*.h' '*.c' '*.inc' ':!:**/settings_table.inc')
PYTHON_FILES := $(shell find python -name '*.py' -o -name py.typed)
CPP_FILES := $(shell find src include cmake -type f) CMakeLists.txt

.PHONY: help bench test test-gpu build wheel install lint tidy format asan tsan fuzz mutants clean \
  docs tidy-changed

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

bench: $(VENV)/.installed-$(STAGE) ## set up, build what runs here, then time and verify all-reduce over 4 and 2 local ranks
	$(BIN)/ropewalk bench all_reduce --ranks 4 -b 8 -e 64M -f 2
	$(BIN)/ropewalk bench all_reduce --ranks 2 -b 8 -e 64M -f 2

test: install $(VENV)/.ready-test ## set up, build all, install, then run all tests
	ninja -C $(BUILD)
	dev/run-tests $(BUILD) $(BIN)/python $(TEST_JOBS)

test-gpu: install $(VENV)/.ready-test ## the tests that need GPUs (see docs/gpu.md)
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pytest tests/gpu

build: $(BUILD)/.tests ## the C++ library and its unit tests
	ninja -C $(BUILD)

wheel: build/.wheel-whole ## dist/ropewalk-*.whl
install: $(VENV)/.installed-whole ## the wheel in .venv

build/.system: dev/setup
	dev/setup build
	@mkdir -p build && touch $@

# Each stage adds to the configuration of the one before; one that somebody made with cmake stays as it is.
$(BUILD)/.first: | build/.system
	[[ -e $(BUILD)/build.ninja ]] || \
	  $(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DRW_LIBRARY_ONLY=ON -DRW_TESTS=OFF
	@touch $@

$(BUILD)/.whole: | $(if $(TESTED),$(BUILD)/.tests,$(BUILD)/.first)
	[[ -e $@ ]] || $(CONFIGURE) -S . -B $(BUILD) -DRW_LIBRARY_ONLY=OFF
	@touch $@

$(BUILD)/.tests: | build/.system-test build/.system-simgrid build/.system-psm2 build/.system-ofi
	$(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DRW_LIBRARY_ONLY=OFF -DRW_TESTS=ON
	@touch $@ $(BUILD)/.first $(BUILD)/.whole

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

# The library is built by ninja itself, so that a compiler's message is not buried in pip's, and while pip
# fetches packages.
build/.compiled-$(STAGE): $(CPP_FILES) $(BUILD)/.$(STAGE)
	ninja -C $(BUILD) $(if $(TESTED),all,runtime)
	@touch $@

# A wheel of the first stage is for this machine: dist has whole ones.
WHEELS := $(if $(filter whole,$(STAGE)),dist,build/wheel-first)
build/.wheel-$(STAGE): build/.compiled-$(STAGE) $(PYTHON_FILES) pyproject.toml README.md \
  dev/wheel_hook.py $(VENV)/.ready
	rm -rf $(WHEELS)
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --wheel-dir $(WHEELS) .
	@touch $@

$(VENV)/.installed-$(STAGE): build/.wheel-$(STAGE) | $(if $(TESTED),$(VENV)/.ready-test)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	  $(WHEELS)/ropewalk-*.whl
	@touch $@

# Optional: without them there is no ropewalk-simgrid, and the transports psm2 (for x86-64 alone) and ofi, or
# their tests, are not built.
build/.system-simgrid: | build/.system-test
build/.system-simgrid build/.system-psm2 build/.system-ofi: build/.system-%: dev/setup | build/.system
	dev/setup $* || echo "going on without $*"
	@mkdir -p build && touch $@

build/.system-%: dev/setup | build/.system
	dev/setup $*
	@mkdir -p build && touch $@

lint: $(VENV)/.ready-test ## clang-format, ruff, mypy
	@echo clang-format --dry-run --Werror; $(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Takes a quarter of an hour, so that it is no part of lint. TIDY_FILES: the sources to look at.
TIDY_FILES ?= $(shell git ls-files 'src/*.cc' 'tests/*.cc')
TIDY_SECONDS ?= 3600
tidy: build/tidy/build.ninja build/.system-tidy ## clang-tidy over TIDY_FILES, all by default
	dev/run-tidy build/tidy $(JOBS) $(TIDY_SECONDS) $(TIDY_FILES)

tidy-changed: build/tidy/build.ninja build/.system-tidy ## clang-tidy over what differs from the main branch
	dev/run-tidy build/tidy $(JOBS) $(TIDY_SECONDS)

format: $(VENV)/.ready-test ## lay out all sources
	@echo clang-format -i; $(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install $(BUILD)/.tests ## man pages, docs/settings.md, docs/faults.md and the rules from the programs themselves
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
build/asan/build.ninja: CMakeLists.txt cmake/layers.cmake \
  | build/.system build/.system-test build/.system-psm2 build/.system-ofi build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/asan -DRW_SANITIZE=address,undefined -DRW_FUZZ=ON
	@touch $@

build/tsan/build.ninja: CMakeLists.txt cmake/layers.cmake \
  | build/.system build/.system-test build/.system-psm2 build/.system-ofi build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/tsan -DRW_SANITIZE=thread
	@touch $@

# Never built: it tells clang-tidy how. Without precompiled headers, so that each source is seen to include
# what it uses.
build/tidy/build.ninja: CMakeLists.txt cmake/layers.cmake \
  | build/.system build/.system-test build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/tidy -DRW_FUZZ=ON -DRW_PRECOMPILED=OFF
	@touch $@

# LEFT_OUT: a regular expression of labels (cmake/test_labels.cmake) whose tests are left out; all tests that
# are built run when empty.
LEFT_OUT ?= slow|sanitizer-blind
asan: build/asan/build.ninja ## the unit tests under address and undefined behaviour sanitizers
	ninja -C build/asan
	dev/run-sanitized build/asan $(JOBS) '$(LEFT_OUT)'

tsan: build/tsan/build.ninja ## the unit tests under the thread sanitizer
	ninja -C build/tsan
	dev/run-sanitized build/tsan $(JOBS) '$(LEFT_OUT)'

fuzz: build/asan/build.ninja ## every fuzzer for FUZZ_SECONDS
	dev/run-fuzzers build/asan $(FUZZ_SECONDS) $(JOBS)

# Half a minute to some minutes a mutant, so that it is no part of CI. MUTANTS: how many; MUTANTS_LAYERS:
# of which folders of src/, all when empty; MUTANTS_AGAIN: places (FILE or FILE:LINE) of what was tried, to
# try these alone, or `stale`: survivors and what stands in files that have changed; MUTANTS_FRESH: 1 tries
# all again. Warnings refuse a mutant, as CI does.
MUTANTS ?= 60
MUTANTS_SEED ?= 1
MUTANTS_LAYERS ?=
MUTANTS_AGAIN ?=
MUTANTS_FRESH ?=
mutants: build/.system-test $(VENV)/.ready-test ## which small changes to the code no test notices (docs/testing.md)
	nice $(BIN)/python dev/mutants.py --mutants $(MUTANTS) --seed $(MUTANTS_SEED) --jobs $(JOBS) \
	  $(if $(MUTANTS_LAYERS),--layers $(MUTANTS_LAYERS)) $(if $(MUTANTS_FRESH),--fresh) \
  $(if $(MUTANTS_AGAIN),--again $(MUTANTS_AGAIN)) --configure \
	  $(CCACHE) -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' -DRW_CUDA=OFF \
	  -DRW_SLOW_TESTS=OFF -DRW_WERROR=ON $(CMAKE_ARGS)

clean: ## remove what was built; .venv stays
	rm -rf build dist
	rm -f $(VENV)/.installed-*
