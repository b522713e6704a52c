# Everything by one command: `make bench`, `make test`. See README.md.
#
# Finished steps are not repeated: stamps in build/ and .venv/ record them, and ninja tracks the compilation.
# There is one build folder, which grows: `make bench` builds the library for this machine (with CUDA if there is
# a GPU), `make test` adds the network plugin, its checker, ropewalk-simgrid if SimGrid is found, CUDA if nvcc is
# found (with kernels that are compiled quickly where no GPU can run them), and the tests; `make wheel` and `make
# install` add the same without the tests, with optimized kernels. Earlier objects are reused, since the other flags
# are the same.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
# Many tests wait most of the time.
TEST_JOBS ?= $(shell echo $$(($(JOBS) < 16 ? 2 * $(JOBS) : $(JOBS))))
# most, or all: dev/run-tests.
TESTS ?= most
# Under a sanitizer they compute more than they wait.
TEST_JOBS_SANITIZED ?= $(shell echo $$(($(JOBS) + 1)))
BUILD := build/release
VENV := .venv
BIN := $(VENV)/bin
CCACHE := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
  -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
# Objects of one checkout serve another: paths count from the checkout's folder.
ifneq ($(CCACHE),)
  export CCACHE_BASEDIR ?= $(CURDIR)
  export CCACHE_NOHASHDIR ?= true
endif
# CMAKE_ARGS: further options, such as -DRW_CUDA=OFF.
CMAKE_ARGS ?=
CONFIGURE := cmake -G Ninja $(CCACHE) $(CMAKE_ARGS)
TESTED := $(filter test,$(MAKECMDGOALS))
# `whole` is for other machines, too, and from then on for every goal.
STAGE := first
ifneq ($(TESTED)$(wildcard $(BUILD)/.tests),)
  STAGE := tests
endif
ifneq ($(filter wheel install test-gpu docs,$(MAKECMDGOALS))$(wildcard $(BUILD)/.whole),)
  STAGE := whole
endif
# pip fetches packages while the compiler runs. Several goals still run one after another.
ifneq ($(filter $(subst $() ,+,$(strip $(MAKECMDGOALS))),bench test),)
  MAKEFLAGS += -j2
endif
FUZZ_SECONDS ?= 20
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard \
  '*.cc' '*.h' '*.c' '*.inc' ':!:**/settings_table.inc')
PYTHON_FILES := $(shell find python -name '*.py' -o -name py.typed)
CPP_FILES := $(shell find src include cmake -type f) CMakeLists.txt

.PHONY: help bench test test-gpu build wheel install lint tidy format asan tsan fuzz mutants clean \
  docs tidy-changed cuda-architectures

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

bench: $(VENV)/.installed-$(STAGE) ## set up, build the library for this machine, then time and verify all-reduce over 4 and 2 local ranks
	$(BIN)/ropewalk bench all_reduce --ranks 4 -b 8 -e 64M -f 2
	$(BIN)/ropewalk bench all_reduce --ranks 2 -b 8 -e 64M -f 2

test: $(VENV)/.installed-$(STAGE) $(VENV)/.ready-test ## set up, build all, install, then run the tests; with TESTS=all those that take long, too
	ninja -C $(BUILD)
	dev/run-tests $(BUILD) $(BIN)/python $(TEST_JOBS) $(TESTS)

test-gpu: install $(VENV)/.ready-test ## run the tests that need GPUs (see docs/gpu.md)
	RW_BUILD_DIR=$(BUILD) $(BIN)/python -m pytest tests/gpu

build: $(BUILD)/.tests ## build the C++ library and its unit tests
	ninja -C $(BUILD)

wheel: build/.wheel-whole ## build dist/ropewalk-*.whl
install: $(VENV)/.installed-whole ## install the wheel in .venv

build/.system: dev/setup
	dev/setup build
	@mkdir -p build && touch $@

# Each stage adds to the configuration of the one before; a folder configured with cmake by hand keeps its settings.
$(BUILD)/.first: | build/.system
	[[ -e $(BUILD)/build.ninja ]] || \
	  $(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DRW_LIBRARY_ONLY=ON -DRW_TESTS=OFF -DRW_KERNELS=AUTO
	@touch $@

$(BUILD)/.whole: | $(if $(TESTED),$(BUILD)/.tests,$(BUILD)/.first)
	[[ -e $@ ]] || $(CONFIGURE) -S . -B $(BUILD) -DRW_LIBRARY_ONLY=OFF -DRW_KERNELS=OPTIMIZED
	@touch $@

$(BUILD)/.tests: | build/.system-test build/.system-simgrid build/.system-psm2 build/.system-ofi
	$(CONFIGURE) -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DRW_LIBRARY_ONLY=OFF -DRW_TESTS=ON \
	  $(if $(wildcard $(BUILD)/build.ninja),,-DRW_KERNELS=AUTO)
	@touch $@ $(BUILD)/.first

# The environment is created if it is missing; its packages are updated when pyproject.toml
# changes.
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

# Optional, and large: with it, `make test` runs PyTorch's own tests too.
$(VENV)/.ready-torch: pyproject.toml $(VENV)/.ready-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python dev/requirements.py torch-test)
	@touch $@

# ninja builds the library rather than pip, so that compiler messages are not buried in pip's output, and so that
# pip can fetch packages meanwhile.
build/.compiled-$(STAGE): $(CPP_FILES) $(BUILD)/.$(STAGE)
	ninja -C $(BUILD) $(if $(TESTED),all,runtime)
	@touch $@

# A wheel of another stage is for this machine only; dist has complete wheels.
WHEELS := $(if $(filter whole,$(STAGE)),dist,build/wheel-$(STAGE))
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

# CUDA 12's compiler as a library and its headers; nvcc is not on PyPI for it. Without them that part is skipped.
build/.cuda12: | build/.system
	$(PYTHON) -m venv build/cuda12
	build/cuda12/bin/python -m pip install --quiet --disable-pip-version-check "nvidia-cuda-nvrtc-cu12==12.9.*" \
	  "nvidia-cuda-nvcc-cu12==12.9.*" "nvidia-cuda-runtime-cu12==12.9.*" "nvidia-cuda-cccl-cu12==12.9.*" \
	  || echo "going on without CUDA 12"
	@touch $@

cuda-architectures: build/.cuda12 ## compile one set of kernels for each kind of GPU, with CUDA 12 and 13
	$(PYTHON) dev/cuda_architectures.py --jobs $(JOBS) --site build/cuda12/lib/python3*/site-packages

lint: $(VENV)/.ready-test ## run clang-format, ruff and mypy
	@echo clang-format --dry-run --Werror; $(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Takes a quarter of an hour, so it is not part of lint. TIDY_FILES: the sources to check.
TIDY_FILES ?= $(shell git ls-files 'src/*.cc' 'tests/*.cc')
TIDY_SECONDS ?= 3600
tidy: build/tidy/build.ninja build/.system-tidy ## run clang-tidy over TIDY_FILES, by default all sources
	dev/run-tidy build/tidy $(JOBS) $(TIDY_SECONDS) $(TIDY_FILES)

tidy-changed: build/tidy/build.ninja build/.system-tidy ## run clang-tidy over the sources that differ from the main branch
	dev/run-tidy build/tidy $(JOBS) $(TIDY_SECONDS)

format: $(VENV)/.ready-test ## format all sources
	@echo clang-format -i; $(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install $(BUILD)/.tests ## generate man pages, docs/settings.md, docs/faults.md and the rules in docs/check-plugin.md
	$(BIN)/python dev/make_man.py
	$(BIN)/python dev/make_settings_page.py
	ninja -C $(BUILD) fault_table
	$(BUILD)/tests/sisci/fault_table --write docs/faults.md
	$(BIN)/python dev/make_rules_page.py

# Clang, so that a second compiler builds the tree; it also checks what mutexes guard.
# Without CUDA: nvcc supports neither these sanitizers nor, on every system, this compiler as host compiler.
CONFIGURE_CLANG := $(CONFIGURE) -DCMAKE_BUILD_TYPE=None -DRW_CUDA=OFF \
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++

# The fuzzers need the same sanitizers, so one tree serves both.
build/asan/build.ninja: CMakeLists.txt cmake/layers.cmake \
  | build/.system build/.system-test build/.system-psm2 build/.system-ofi build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/asan -DRW_SANITIZE=address,undefined -DRW_FUZZ=ON
	@touch $@

build/tsan/build.ninja: CMakeLists.txt cmake/layers.cmake \
  | build/.system build/.system-test build/.system-psm2 build/.system-ofi build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/tsan -DRW_SANITIZE=thread
	@touch $@

# Never built: it only gives clang-tidy the compile commands. Without precompiled headers, so that missing
# includes are found.
build/tidy/build.ninja: CMakeLists.txt cmake/layers.cmake \
  | build/.system build/.system-test build/.system-clang
	$(CONFIGURE_CLANG) -S . -B build/tidy -DRW_FUZZ=ON -DRW_PRECOMPILED=OFF -DRW_UNITY=OFF
	@touch $@

# LEFT_OUT: a regular expression of labels (cmake/test_labels.cmake) whose tests are left out; when empty, all
# tests that are built run.
LEFT_OUT ?= slow|sanitizer-blind
asan: build/asan/build.ninja ## run the unit tests under the address and undefined behaviour sanitizers
	ninja -C build/asan
	dev/run-sanitized build/asan $(TEST_JOBS_SANITIZED) '$(LEFT_OUT)'

tsan: build/tsan/build.ninja ## run the unit tests under the thread sanitizer
	ninja -C build/tsan
	dev/run-sanitized build/tsan $(TEST_JOBS_SANITIZED) '$(LEFT_OUT)'

fuzz: build/asan/build.ninja ## run every fuzzer for FUZZ_SECONDS
	dev/run-fuzzers build/asan $(FUZZ_SECONDS) $(JOBS)

# Takes half a minute to some minutes for each mutant, so it is not part of CI. MUTANTS: their number;
# MUTANTS_LAYERS: folders of src/, all when empty; MUTANTS_AGAIN: FILE or FILE:LINE of earlier mutants, to try
# only these, or `stale`: survivors and mutants in files that have changed; MUTANTS_FRESH=1 ignores earlier
# results. A mutant that causes a compiler warning is refused, as CI would refuse it.
MUTANTS ?= 60
MUTANTS_SEED ?= 1
MUTANTS_LAYERS ?=
MUTANTS_AGAIN ?=
MUTANTS_FRESH ?=
mutants: build/.system-test $(VENV)/.ready-test ## find small changes to the code that no test notices (docs/testing.md)
	nice $(BIN)/python dev/mutants.py --mutants $(MUTANTS) --seed $(MUTANTS_SEED) --jobs $(JOBS) \
	  $(if $(MUTANTS_LAYERS),--layers $(MUTANTS_LAYERS)) $(if $(MUTANTS_FRESH),--fresh) \
  $(if $(MUTANTS_AGAIN),--again $(MUTANTS_AGAIN)) --configure \
	  $(CCACHE) -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' -DRW_CUDA=OFF \
	  -DRW_SLOW_TESTS=OFF -DRW_WERROR=ON -DRW_UNITY=OFF $(CMAKE_ARGS)

clean: ## remove the build folders, not .venv
	rm -rf build dist
	rm -f $(VENV)/.installed-*
