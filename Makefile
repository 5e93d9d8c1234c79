# One name for each thing one does here. The build itself is CMake's: see CMakePresets.json.

JOBS ?= $(shell nproc)
DEMO_ARGS ?= replay --requests 24
PREFIX ?= $(CURDIR)/install
CONFIGURE_ARGS ?=
PYTHON_BUILD ?= python
PYTHON_SETTINGS ?= cmake.define.CMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF cmake.define.CMAKE_UNITY_BUILD=ON
VENV := build/venv/bin
RUN_PYTHON_TESTS := scripts/run-python-tests $(VENV)/python $(addsuffix /tests,bindings/python compat/nixl/python compat/torchcomms compat/pplx_garden)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help deps build demo test forget-reports test-dev test-ci test-rust test-python test-python-and-build test-asan-ubsan test-tsan python format lint bench nightly install clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

deps: ## install what building and testing need (Debian 12, Ubuntu 24.04)
	@scripts/install-deps test

build: ## build the library and the command line (build/release)
	@scripts/install-deps build
	@cmake --preset release --log-level=WARNING $(CONFIGURE_ARGS) >/dev/null
	@cmake --build --preset release

demo: ## build the command line, and replay requests between a prefill and a decode process
	@scripts/install-deps build
	@cmake --preset release --log-level=WARNING $(CONFIGURE_ARGS) >/dev/null
	@cmake --build --preset release --target tools/towline/towline
	build/release/tools/towline/towline $(DEMO_ARGS)

# The Python packages take from ccache what the preset ci has compiled: the same flags, in folders as deep as its own.
test: PYTHON_BUILD = ci-python
test: PYTHON_SETTINGS = cmake.args=--preset=ci cmake.build-type=Debug cmake.define.CMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF install.strip=true
test: forget-reports test-ci test-rust test-python-and-build test-asan-ubsan test-tsan ## run the tests, then a part of them under each sanitizer
	@scripts/closing-list
	@echo "make test: all passed"

forget-reports:
	@rm -rf build/reports

test-dev: ## the tests of the dev preset
test-ci: ## the same, compiled as large units
test-asan-ubsan: ## unit, conformance and simulation tests and the fuzzers' sample, with ASan and UBSan
test-tsan: ## unit and conformance tests, with TSan
test-dev test-ci test-asan-ubsan test-tsan: test-%: deps
	@cmake --preset $* --log-level=WARNING $(CONFIGURE_ARGS) >/dev/null
	@cmake --build --preset $*
	@scripts/run-tests $* $(JOBS)

test-rust: test-ci ## the Rust crate's tests and examples
	@scripts/run-rust-tests ci

test-python: python ## the Python packages' tests
	@$(RUN_PYTHON_TESTS)

# What the Python tests leave of the processors compiles for the sanitizers; what is not compiled by their end, and why it failed,
# is for the sanitizers' own targets. Where Linux shares processors among sessions first, nice counts within the session alone,
# and the session has a number of its own.
test-python-and-build: python
	@mkdir -p build/reports; setsid nice -n 19 sh -c 'echo 19 2>/dev/null >/proc/self/autogroup; for preset in asan-ubsan tsan; do \
	  cmake --preset $$preset --log-level=WARNING $(CONFIGURE_ARGS) && cmake --build --preset $$preset || exit; done' \
	  >build/reports/built-beside.log 2>&1 & builds=$$!; \
	trap 'kill -- -$$builds 2>/dev/null; while kill -0 -- -$$builds 2>/dev/null; do sleep 0.1; done' EXIT; \
	$(RUN_PYTHON_TESTS); exit $$?

# Both packages compile the library with the same flags in folders equally deep, so that the second takes it from ccache.
# Only what is shipped is optimised at link time. scikit-build would take Python's compiler by its name, and ccache looks up the name too:
# the compiler is the one that CMake takes by itself.
python: deps ## build the Python packages into build/venv
	@for package in bindings/python compat/nixl/python compat/torchcomms compat/pplx_garden; do \
	  settings="--config-settings=build-dir=$(CURDIR)/build/$(PYTHON_BUILD)-$$(basename $$(dirname $$package))"; \
	  settings="$$settings $(addprefix --config-settings=,$(PYTHON_SETTINGS))"; \
	  case $$package in compat/torchcomms|compat/pplx_garden) settings= ;; esac; \
	  CC=$${CC:-cc} CXX=$${CXX:-c++} $(VENV)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation $$settings ./$$package || exit 1; \
	done

format: deps ## format the C and C++ sources
	@scripts/check-format --fix

lint: deps ## check formatting, structure, each header alone, and run clang-tidy (slow)
	@scripts/install-deps lint
	@scripts/check-format
	@scripts/check-structure
	@cmake --preset dev --log-level=WARNING >/dev/null
	@cmake --build --preset dev --target check_headers
	@run-clang-tidy -quiet -p build/dev -j $(JOBS) '$(CURDIR)/(src|tools|bench)/'

bench: ## build the programs that measure (build/release/bench)
	@scripts/install-deps build bench
	@cmake --preset release --log-level=WARNING -DTOWLINE_BENCH=ON >/dev/null
	@cmake --build --preset release

nightly: ## everything that is too long for `make test`
	@scripts/nightly

install: build ## install to PREFIX
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove what was built, keep the Python environment
	@find build -mindepth 1 -maxdepth 1 ! -name venv ! -name peers -exec rm -rf {} +
