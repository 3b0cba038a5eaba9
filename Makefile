# Everything from a machine that has Python 3.11 or later and Java 17 or later, and nothing else.
# The first run needs the network (a Python index, a Maven repository); later runs need none.

UV_VERSION := 0.13.8
PYTHONS := python3.13 python3.12 python3.11 python3.14 python3 python
VENV := .venv
BIN := $(VENV)/bin
BENCH ?= all
# The short part of the verification, and the tests of what runs, records and reports a verification.
PROOF := tests/verify/checker tests/verify/faults tests/verify/simulator
ITS_TOOLS := $(filter-out $(PROOF:=/) %/__pycache__/,$(wildcard tests/verify/*/))
WITH_SPARK := tests/unit tests/faults $(ITS_TOOLS) $(wildcard tests/test_*.py)
TWO_ENDS := $(filter-out %/unit/ %/faults/ %/verify/ %/__pycache__/,$(wildcard tests/*/))

# uv reads its own variables and not pip's; whoever set pip's for an index or a certificate means uv too.
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
export UV_INSECURE_HOST ?= $(PIP_TRUSTED_HOST)
export SSL_CERT_FILE ?= $(PIP_CERT)
$(foreach name,UV_DEFAULT_INDEX UV_INDEX UV_INSECURE_HOST SSL_CERT_FILE,$(if $($(name)),,$(eval unexport $(name))))

# The tests start hundreds of processes, and without it each compiles all that it imports: more than a second of a processor.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check setup bench proof verify verify-tests verify-simulator verify-runs lock clean
.DELETE_ON_ERROR:

demo: setup
	$(BIN)/onceflow demo $(DEMO_ARGS)

# Without what has a twin in it, or takes minutes by chance: that is of the long part.
SHORT := -n 4 -m "not long" --durations=25
# Two processes, for some of them keep both cores busy; the time is for one beside which another runs.
LONG := -n 2 -m long --timeout=3000 --durations=25

# Three parts, so that one part's brokers and Spark sessions are gone before the next begins. Much of them is waiting: they run in four
# processes (tests/parallel.py). 5: none selected.
test: check
	$(BIN)/pytest $(or $(PYTEST_ARGS),$(SHORT)) $(TWO_ENDS) || test $$? -eq 5
	$(BIN)/pytest $(or $(PYTEST_ARGS),$(SHORT)) $(PROOF) || test $$? -eq 5
	$(BIN)/pytest $(or $(PYTEST_ARGS),$(SHORT)) $(WITH_SPARK) || test $$? -eq 5

# The short part of the verification alone.
proof: setup
	$(BIN)/pytest $(or $(PYTEST_ARGS),$(SHORT)) $(PROOF)

# The long part of the verification, eight hours; each of its three parts can be made by itself. None holds up the others, whatever it shows.
verify: setup
	@worst=0; for part in tests simulator runs; do $(MAKE) --no-print-directory verify-$$part || worst=1; done; exit $$worst

# The tests that are too long for `make test`.
verify-tests: setup
	@worst=0; \
	for part in "$(TWO_ENDS)" "$(PROOF)" "$(WITH_SPARK)"; do \
	  $(BIN)/pytest $(LONG) $$part || test $$? -eq 5 || worst=1; \
	done; \
	exit $$worst

# Every mutant of the commit protocol and of the encoder's numbers, and seeds of the simulator that nobody has seen.
verify-simulator: setup
	@worst=0; \
	$(BIN)/python -m tests.verify.simulator.mutation --judge "unit tests" --judge "encoder's tests" --judge "with Spark" --processes 2 --least 1 --state /dev/null || worst=1; \
	$(BIN)/python -m onceflow.verify.simulator --by-chance --seeds 50000 || worst=1; \
	exit $$worst

# Runs of `onceflow verify` on replicated brokers and a Spark cluster, and their reports: faults of all kinds for long enough to have most of
# them, on transaction versions 2 and 1; drivers killed one by one on both, for the goals of recovery, also under the supervisor of users; a
# user's join and windows; beside Spark's own sink; executors that write, under the end of processes, under all else, and their Python
# processes, on both; what a plan without state allows to be lost, on both; kinds that chance gives too seldom, on both; and Kafka's
# transaction matrix. It ends with 1 if any is violated, else with 2 if any proves nothing, else with 3 if a goal is missed where that counts.
LONG_FOR ?= 25m
FOR ?= 6m
CLUSTER := --brokers 3 --spark-workers 2 --standbys 2
KILLS := kill-driver,kill-driver-at-step,kill-driver-python,kill-jvm
# What befalls executors that write and is no end of a process.
NO_PROCESSES := network,disk,limits,identity
# Which write to Kafka where executors write.
PYTHON_PROCESSES := kill-python-daemon,pause-python-daemon,kill-python-worker,pause-python-worker
# Which chance gives too seldom.
SELDOM := roll-brokers-hard,kill-all-brokers,expire-ids-of-zombie,hijack-transactional-id,pause-jvm,stall-driver
WITHOUT_STATE := src/onceflow/verify/matrix/pipeline.toml
JOINED := tests/verify/plans/joined.toml
verify-runs: setup
	@worst=0; \
	run() { \
	  echo "onceflow verify $$*"; $(BIN)/onceflow verify "$$@"; status=$$?; \
	  test $$status -le 3 || exit $$status; \
	  test $$status -eq 0 || { test $$worst -ne 0 && test $$worst -lt $$status; } || worst=$$status; }; \
	run $(CLUSTER) --for $(LONG_FOR) --transaction-version 2 --out onceflow-verify/version-2; \
	run $(CLUSTER) --for $(LONG_FOR) --transaction-version 1 --out onceflow-verify/version-1; \
	run $(CLUSTER) --for $(LONG_FOR) --one-by-one --goals --faults $(KILLS) --transaction-version 2 --out onceflow-verify/version-2-one-by-one; \
	run $(CLUSTER) --for $(LONG_FOR) --one-by-one --goals --faults $(KILLS) --transaction-version 1 --out onceflow-verify/version-1-one-by-one; \
	run $(CLUSTER) --for $(FOR) --one-by-one --goals --engine supervised --faults $(KILLS) --transaction-version 2 --out onceflow-verify/version-2-supervised; \
	run $(CLUSTER) --for $(FOR) --one-by-one --goals --engine supervised --faults $(KILLS) --transaction-version 1 --out onceflow-verify/version-1-supervised; \
	run $(JOINED) $(CLUSTER) --for $(FOR) --transaction-version 2 --out onceflow-verify/version-2-joined; \
	run $(CLUSTER) --for $(FOR) --engine both --out onceflow-verify/beside-spark; \
	run $(CLUSTER) --for $(FOR) --engine executors --faults spark,brokers,driver --transaction-version 2 --out onceflow-verify/version-2-executors; \
	run $(CLUSTER) --for $(FOR) --engine executors --faults spark,brokers,driver --transaction-version 1 --out onceflow-verify/version-1-executors; \
	run $(CLUSTER) --for $(FOR) --engine executors --faults $(NO_PROCESSES) --transaction-version 2 --out onceflow-verify/version-2-executors-others; \
	run $(CLUSTER) --for $(FOR) --engine executors --faults $(NO_PROCESSES) --transaction-version 1 --out onceflow-verify/version-1-executors-others; \
	run $(CLUSTER) --for $(FOR) --engine executors --faults $(PYTHON_PROCESSES) --out onceflow-verify/python-processes; \
	run $(CLUSTER) --for $(FOR) --engine executors --faults $(PYTHON_PROCESSES) --transaction-version 1 --out onceflow-verify/version-1-python-processes; \
	run $(WITHOUT_STATE) --standbys 4 --for $(FOR) --faults checkpoint,topics --transaction-version 2 --out onceflow-verify/version-2-checkpoint; \
	run $(WITHOUT_STATE) --standbys 4 --for $(FOR) --faults checkpoint,topics --transaction-version 1 --out onceflow-verify/version-1-checkpoint; \
	run $(CLUSTER) --for $(FOR) --faults $(SELDOM) --transaction-version 2 --out onceflow-verify/version-2-seldom; \
	run $(CLUSTER) --for $(FOR) --faults $(SELDOM) --transaction-version 1 --out onceflow-verify/version-1-seldom; \
	run --matrix --out onceflow-verify/matrix; \
	exit $$worst

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/$(BENCH).py $(BENCH_ARGS)

setup: $(VENV)/.project
	@$(BIN)/python -m onceflow.java
	@$(BIN)/python -m onceflow.jars install
	@$(BIN)/python -m onceflow.training

$(VENV)/.project: $(VENV)/.locked pyproject.toml
	$$(cat $(VENV)/.uv) pip install --quiet --python $(VENV) --offline --no-deps --no-build-isolation --editable .
	@touch $@

# Source distributions are built with the build tools of the lock, hashes included.
$(VENV)/.locked: requirements.lock $(VENV)/.uv
	$$(cat $(VENV)/.uv) pip sync --python $(VENV) --require-hashes --build-constraints requirements.lock requirements.lock
	@touch $@

# Makes the environment, and notes the uv that made it: the one on PATH, or one of our own.
$(VENV)/.uv: $(MAKEFILE_LIST)
	@python=; for each in $(PYTHONS); do \
	  $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python=$$each && break; \
	done; \
	test -n "$$python" || { echo "No Python 3.11 or later: none of $(PYTHONS) is one. Install it and run make again." >&2; exit 1; }; \
	uv=$$(command -v uv) || { uv=.tools/bin/uv; \
	  test -x $$uv || { \
	    $$python -m venv .tools || { rm -rf .tools; echo "$$python has no venv module (Debian: apt install python3-venv)." >&2; exit 1; }; \
	    .tools/bin/python -m pip install --quiet uv==$(UV_VERSION) || exit 1; }; }; \
	$$uv venv --quiet --allow-existing --python $$(command -v $$python) $(VENV) && echo $$uv > $@

lock: setup
	$$(cat $(VENV)/.uv) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" --group dev --output-file requirements.lock pyproject.toml requirements.in
	$(BIN)/python -m onceflow.jars lock

clean:
	rm -rf $(VENV) .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
