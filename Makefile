# make chat    talk to the model that comes with the project
# make test    everything that must hold: checks, the core's own tests, all others
# make check   format, lint, types, imports
# make wheel-test  build a wheel, look into it, install it where there is no compiler, open the chat
# make bench-test  the tests of the developers' own benchmarks
# make machines-test  batches on several machines, as processes of this one; installs ray if it can
# make soak    use chat and engine for an hour, and watch what they take; make soak-short: 75 s, and
#              60 questions
# make bench   measure this machine
# make peers   install what `python -m benchmarks.peers` compares with, into .venv-peers
# make sanitize  the core's own tests under ASan, UBSan and TSan
# make sanitize-binding  tests of the Python module, the module being under ASan and UBSan
# make fuzz    mutated inputs for the core and the parsers, SECONDS or RUNS of each target
# make coverage  lines and branches that tests reach; all branches where input is checked
# make faults  each read, write, open ... of the engine and the converter fails in turn
# make crashtest  kill -9 of a conversion before each call that writes
# make clean   remove what was built, and the environments
#
# Each makes .venv when there is none and renews it when what it is made from has changed.
# Needed: Python 3.11 or later, a C++ compiler, make. CMake and Ninja come from PyPI.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
NATIVE := CMakeLists.txt $(wildcard flashllm/core/native/*.* flashllm/core/native/*/*.*)
NATIVE_TESTS := $(wildcard tests/core/native/*) $(wildcard tests/fuzz/native/*)
INPUTS := pyproject.toml constraints.txt $(NATIVE)
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
BENCH_STAMP := $(VENV)/.installed-bench
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed
CORE_TEST := build/core/tests/core/native/flash_core_test

.PHONY: chat test check core-test pytest bench-test machines-test wheel-test bench peers sanitize clean \
  sanitize-binding fuzz fuzz-core fuzz-parsers coverage faults crashtest soak soak-short
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
	$(BIN)/python -m pytest -q tests/codebase/test_arrows.py
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
	  --ignore=tests/machines --ignore=tests/wheel \
	  --numprocesses=2 --dist=loadfile

bench-test: $(TEST_STAMP)
	$(BIN)/python -m pytest tests/benchmarks --numprocesses=2 --dist=loadfile

# Where ray is not installed and cannot be, its tests are skipped with that reason.
machines-test: $(TEST_STAMP)
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(PIP) ray || true
	$(BIN)/python -m pytest tests/machines

# The wheel is built in the build folder of the installation, where all is compiled already. Where
# it is installed, PATH has no compiler.
BARE := build/bare
wheel-test: $(TEST_STAMP)
	@rm -rf $(BARE) && mkdir -p $(BARE)
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w $(BARE) .
	FLASHLLM_WHEEL="$$(echo $(CURDIR)/$(BARE)/*.whl)" $(BIN)/python -m pytest -q tests/wheel
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
	$(BIN)/python -m benchmarks.soak --minutes 1.25
	$(BIN)/python -m benchmarks.chat.turns --turns 60

sanitize: $(TEST_STAMP)
	$(call build-core-test,build/core-address,address$(,)undefined)
	$(subst build/core,build/core-address,$(CORE_TEST))
	$(call build-core-test,build/core-thread,thread)
	$(subst build/core,build/core-thread,$(CORE_TEST))
, := ,

# The module in a folder of its own, for which tests/sanitized/ makes Python take it. ASan has to be
# there before Python, and the library of C++ with it, so that exceptions are seen. What Python
# keeps to its end is no leak of ours.
SANITIZED := build/binding-address
SANITIZED_TESTS ?= tests/sanitized tests/core tests/faults tests/flash tests/weight_cache
sanitize-binding: $(TEST_STAMP)
	@$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DFLASHLLM_MODULE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -DFLASHLLM_SANITIZE=address,undefined >/dev/null
	@$(BIN)/cmake --build $(SANITIZED) >$(SANITIZED)/build.log || { cat $(SANITIZED)/build.log; exit 1; }
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  FLASHLLM_SANITIZED_CORE=$(CURDIR)/$(SANITIZED) PYTHONPATH=$(CURDIR)/tests/sanitized \
	  $(BIN)/python -m pytest -q $(SANITIZED_TESTS)

# The targets of the core and those of the parsers go side by side; output comes target by target.
SECONDS ?= 600
RUNS ?= -1
SEED ?= $(shell date +%s)
FUZZ := build/fuzz
FUZZ_CORE := $(filter-out planted,$(patsubst tests/fuzz/native/fuzz_%.cpp,%,$(wildcard tests/fuzz/native/fuzz_*.cpp)))
fuzz: $(TEST_STAMP)
	@$(MAKE) --no-print-directory -j2 SECONDS=$(SECONDS) RUNS=$(RUNS) SEED=$(SEED) fuzz-core fuzz-parsers

# Ninja would look for the job server of the make above, whose files are closed here.
fuzz-core: $(TEST_STAMP)
	@$(BIN)/cmake -S . -B $(FUZZ) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DFLASHLLM_FUZZ=ON -DFLASHLLM_WERROR=$(WERROR) -DFLASHLLM_SANITIZE=address,undefined >/dev/null
	@env -u MAKEFLAGS $(BIN)/cmake --build $(FUZZ) >$(FUZZ)/build.log || { cat $(FUZZ)/build.log; exit 1; }
	@tests/fuzz/native/run.sh $(FUZZ) $(SECONDS) $(RUNS) $(SEED) $(FUZZ_CORE)

fuzz-parsers: $(TEST_STAMP)
	@$(BIN)/python -m tests.fuzz.parsers --seconds $(SECONDS) --runs $(RUNS) --seed $(SEED) --keep $(FUZZ)

# The core by its own tests and the kept inputs of its targets; the Python by the tests of what checks
# input, or with ALL=1 by all of them, which takes as long as they do.
COVERAGE := build/coverage
COVERAGE_TESTS := $(if $(ALL),tests --ignore=tests/benchmarks \
  --ignore=tests/machines/test_data_parallel.py --ignore=tests/wheel, \
  tests/batch tests/cli/test_batch_command.py tests/cli/test_plan_batch.py tests/cli/test_pull_gguf.py \
  tests/conversations tests/convert tests/engine/test_hot_set.py \
  tests/engine/test_kept_context.py tests/faults tests/flash tests/fuzz tests/hardware \
  tests/kv_cache/test_kept_file.py tests/library tests/planning/test_applied_policy.py \
  tests/planning/test_batch_costs.py tests/planning/test_policy_search.py tests/predictors/test_skewing.py \
  tests/test_sanitize.py tests/test_spec.py tests/untrusted)
coverage: $(TEST_STAMP)
	@$(BIN)/cmake -S . -B $(COVERAGE) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DFLASHLLM_TESTS=ON -DFLASHLLM_FUZZ=ON -DFLASHLLM_COVERAGE=ON >/dev/null
	@$(BIN)/cmake --build $(COVERAGE) >$(COVERAGE)/build.log || { cat $(COVERAGE)/build.log; exit 1; }
	@find $(COVERAGE) -name '*.gcda' -delete
	@$(COVERAGE)/tests/core/native/flash_core_test
	@for target in $(FUZZ_CORE); do \
	  $(COVERAGE)/tests/fuzz/native/fuzz_$$target -runs=0 tests/fuzz/corpus/$$target; done
	@rm -f $(COVERAGE)/python*
	@rm -f $(COVERAGE)/failed
	COVERAGE_FILE=$(COVERAGE)/python $(BIN)/python -m coverage run -m pytest -q $(COVERAGE_TESTS) \
	  --numprocesses=2 --dist=loadfile || touch $(COVERAGE)/failed
	@COVERAGE_FILE=$(COVERAGE)/python $(BIN)/python -m coverage combine --quiet
	@COVERAGE_FILE=$(COVERAGE)/python $(BIN)/python -m coverage json --quiet -o $(COVERAGE)/python.json
	$(BIN)/python -m tests.coverage --native $(COVERAGE) --python $(COVERAGE)/python.json \
	  $(if $(ALL),--all)
	@test ! -e $(COVERAGE)/failed || { echo "what is above was reached by tests that failed" >&2; exit 1; }

# The long forms of tests/faults, of which `make test` takes some operations only.
faults: $(TEST_STAMP)
	FAULTS=all $(BIN)/python -m pytest tests/faults --durations=0

crashtest: $(TEST_STAMP)
	$(BIN)/python -m tests.faults.crashtest

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
