# Everything by one command: `make bench`, `make test`. See README.md.
#
# What is done stays done: stamps in build/ and .venv/ hold finished steps, ninja the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
BUILD := build/release
VENV := .venv
BIN := $(VENV)/bin
CCACHE := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
  -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
CONFIGURE := cmake -G Ninja $(CCACHE)
FUZZ_SECONDS ?= 20
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard \
  '*.cc' '*.h' '*.c' '*.inc' ':!:**/settings_table.inc')
PYTHON_FILES := $(shell find python -name '*.py' -o -name py.typed)
CPP_FILES := $(shell find src include cmake -type f) CMakeLists.txt

.PHONY: help bench test test-gpu build wheel install lint format asan tsan fuzz clean docs

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

bench: install ## set up, build, install, then time and verify all-reduce over 4 and 2 local ranks
	$(BIN)/ropewalk bench all_reduce --ranks 4 -b 8 -e 64M -f 2
	$(BIN)/ropewalk bench all_reduce --ranks 2 -b 8 -e 64M -f 2

test: install $(VENV)/.ready-test ## set up, build, install, then run all tests
	ninja -C $(BUILD)
	dev/run-tests $(BUILD) $(BIN)/python $(JOBS)

test-gpu: install $(VENV)/.ready-test ## the tests that need GPUs (see docs/gpu.md)
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pytest tests/gpu

build: $(BUILD)/build.ninja ## the C++ library and its unit tests
	ninja -C $(BUILD)

wheel: build/.wheel ## dist/ropewalk-*.whl
install: $(VENV)/.installed ## the wheel in .venv

build/.system: dev/setup
	dev/setup build
	@mkdir -p build && touch $@

$(BUILD)/build.ninja: CMakeLists.txt cmake/layers.cmake cmake/cuda.cmake cmake/install.cmake | build/.system
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

# The library is built first by ninja itself, so that a compiler's message is not buried in pip's.
build/.wheel: $(PYTHON_FILES) $(CPP_FILES) pyproject.toml README.md dev/wheel_hook.py \
  $(VENV)/.ready $(BUILD)/build.ninja
	ninja -C $(BUILD) ropewalk
	rm -rf dist
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --wheel-dir dist .
	@touch $@

$(VENV)/.installed: build/.wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	  dist/ropewalk-*.whl
	@touch $@

build/.system-%: dev/setup
	dev/setup $*
	@mkdir -p build && touch $@

lint: $(VENV)/.ready-test build/.system-lint ## clang-format, ruff, mypy
	@echo clang-format --dry-run --Werror; clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready-test build/.system-lint ## lay out all sources
	@echo clang-format -i; clang-format -i $(CXX_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install ## man pages and docs/settings.md from the program itself
	$(BIN)/python dev/make_man.py
	$(BIN)/python dev/make_settings_page.py

asan: build/.system ## unit tests under address and undefined behaviour sanitizers
	$(CONFIGURE) -S . -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRW_SANITIZE=address,undefined
	ninja -C build/asan
	ctest --test-dir build/asan --output-on-failure --no-tests=error -j $(JOBS)

tsan: build/.system ## unit tests under the thread sanitizer
	$(CONFIGURE) -S . -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRW_SANITIZE=thread
	ninja -C build/tsan
	ctest --test-dir build/tsan --output-on-failure --no-tests=error -j $(JOBS)

fuzz: build/.system build/.system-fuzz ## every fuzzer for FUZZ_SECONDS
	$(CONFIGURE) -S . -B build/fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRW_FUZZ=ON -DRW_TESTS=OFF \
	  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
	dev/run-fuzzers build/fuzz $(FUZZ_SECONDS)

clean: ## remove what was built; .venv stays
	rm -rf build dist
	rm -f $(VENV)/.installed
