# make chat    talk to the model that comes with the project
# make test    everything that must hold: checks, the core's own tests, all others
# make check   format, lint, types, imports
# make wheel-test  build a wheel, install it where there is no compiler, open the chat
# make bench-test  the tests of the developers' own benchmarks
# make soak    use chat and engine for an hour, and watch what they take; make soak-short: 45 s
# make bench   measure this machine
# make peers   install what `python -m benchmarks.peers` compares with, into .venv-peers
# make sanitize  the core's own tests under ASan, UBSan and TSan
# make clean   remove what was built, and the environments
#
# Each makes .venv when there is none and renews it when what it is made from has changed.
# Needed: Python 3.11 or later, a C++ compiler, make. CMake and Ninja come from PyPI.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
NATIVE := CMakeLists.txt $(wildcard flashllm/core/native/*.* flashllm/core/native/*/*.*)
NATIVE_TESTS := $(wildcard tests/core/native/*)
INPUTS := pyproject.toml constraints.txt $(NATIVE)
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
BENCH_STAMP := $(VENV)/.installed-bench
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed
CORE_TEST := build/core/tests/core/native/flash_core_test

.PHONY: chat test check core-test pytest bench-test wheel-test soak soak-short bench peers sanitize clean
.DELETE_ON_ERROR:

chat: $(RUN_STAMP)
	@$(BIN)/python app.py

test: check core-test pytest

# pip comes last in a new environment: where it is, the rest is.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# $(1): what to install. Build requirements come first, with pinned versions, so that the module
# is built with them rather than with what an isolated build would fetch.
define install
	@echo "Installing $(1) into $(VENV) (the first time: some minutes)"
	@$(PIP) scikit-build-core nanobind cmake ninja
	@$(PIP) --no-build-isolation --editable '$(1)'
endef

$(RUN_STAMP): $(INPUTS) | $(BIN)/pip
	$(call install,.)
	@touch $@

$(TEST_STAMP): $(INPUTS) | $(BIN)/pip
	$(call install,.[test])
	@touch $(RUN_STAMP) $@

$(BENCH_STAMP): $(INPUTS) | $(BIN)/pip
	$(call install,.[bench])
	@touch $(RUN_STAMP) $@

# Without the editable installation's finder (-S), which would show the linter every folder here
# as a part of flashllm.
LINT_IMPORTS = PYTHONPATH="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
  $(BIN)/python -S $(BIN)/lint-imports --no-cache

check: $(TEST_STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(LINT_IMPORTS)
	@$(BIN)/python tests/codebase/sizes.py
	$(BIN)/clang-format --dry-run --Werror $(filter %.h %.cpp,$(NATIVE) $(NATIVE_TESTS))

# $(1): build folder, $(2): sanitizers
define build-core-test
	@$(BIN)/cmake -S . -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DFLASHLLM_TESTS=ON -DFLASHLLM_WERROR=$(WERROR) -DFLASHLLM_SANITIZE=$(2) >/dev/null
	@$(BIN)/cmake --build $(1) >$(1)/build.log || { cat $(1)/build.log; exit 1; }
endef
WERROR := $(if $(CI),ON,OFF)

core-test: $(TEST_STAMP)
	$(call build-core-test,build/core,)
	$(CORE_TEST)

# Pictures are taken in a process of their own, in which no other test has left anything running.
# The rest goes file by file to two processes, which share the cores: much of it waits.
pytest: $(TEST_STAMP)
	$(BIN)/python -m pytest tests/ui/test_snapshots.py
	$(BIN)/python -m pytest --ignore=tests/ui/test_snapshots.py --ignore=tests/benchmarks \
	  --numprocesses=2 --dist=loadfile

bench-test: $(TEST_STAMP)
	$(BIN)/python -m pytest tests/benchmarks --numprocesses=2 --dist=loadfile

# The wheel is built in the build folder of the installation, where all is compiled already. Where
# it is installed, PATH has no compiler.
BARE := build/bare
wheel-test: $(TEST_STAMP)
	@rm -rf $(BARE) && mkdir -p $(BARE)
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w $(BARE) .
	@$(PYTHON) -m venv $(BARE)/venv
	@PATH=$(CURDIR)/$(BARE)/venv/bin $(CURDIR)/$(BARE)/venv/bin/python -m pip install --quiet \
	  --disable-pip-version-check -c constraints.txt $(BARE)/flashllm-*.whl
	$(BARE)/venv/bin/python tests/wheel/open_chat.py
	@rm -rf $(BARE)

# An hour by default; make soak SOAK="--minutes 10 --memory 400MiB --seed 3" changes that.
SOAK ?=
soak: $(TEST_STAMP)
	$(BIN)/python -m benchmarks.soak $(SOAK)

soak-short: $(TEST_STAMP)
	$(BIN)/python -m benchmarks.soak --minutes 0.75

sanitize: $(TEST_STAMP)
	$(call build-core-test,build/core-address,address$(,)undefined)
	$(subst build/core,build/core-address,$(CORE_TEST))
	$(call build-core-test,build/core-thread,thread)
	$(subst build/core,build/core-thread,$(CORE_TEST))
, := ,

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

# An environment of its own, so that the peers change no version of ours, over that of the tests,
# so that torch and transformers are the same ones. llama.cpp is built here, for this processor.
peers: $(PEERS_STAMP)

$(PEERS_STAMP): benchmarks/peers/peers.txt | $(TEST_STAMP)
	@echo "Installing what is compared with into $(PEERS) (builds llama.cpp: some minutes)"
	@rm -rf $(PEERS)
	@$(BIN)/python -m venv $(PEERS)
	@$(BIN)/python -c 'import sysconfig; base = sysconfig.get_path("purelib"); \
	  print(f"import site; site.addsitedir({base!r})")' > \
	  "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	@CMAKE_ARGS="-DGGML_NATIVE=ON $(CMAKE_ARGS)" $(PEERS)/bin/python -m pip install --quiet \
	  --disable-pip-version-check -c constraints.txt -r benchmarks/peers/peers.txt
	@touch $@

clean:
	rm -rf build dist $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
