# `make help` lists the targets. Needed beforehand: Python 3.11 to 3.13 and Java 17 or 21; make looks for them first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UV := $(shell sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements-dev.txt)
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links

COMPILED := include spark_jobs dags plugins tests bench
MARKDOWN := *.md docs include plugins tests

# Three processes share the tests and two cores: one waits for brokers while the others compute (tests/tiers.py says which
# tests share servers). WORKERS=0 runs them in one, as a debugger needs it.
WORKERS ?= 3
DURATIONS = build/durations.tsv
SHARED := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
PYTEST = $(BIN)/pytest $(SHARED) --durations-file $(DURATIONS)

WITHOUT_SERVERS := -m "not server and not slow and not long"
FAST := tests/unit tests/contract tests/model
REAL := tests/integration tests/crash tests/airflow tests/soak tests/nemesis tests/e2e

.PHONY: help setup demo test test-fast test-ci representatives test-all test-long coverage matrix reliability stale semantics model requirements reference soak bench bench-quick lint site release format up down status lock

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

# Nothing compiles what was compiled before, not even where Python may not write bytecode (PYTHONDONTWRITEBYTECODE):
# packages are compiled when they are installed, the project's own files here, after each change of them.
setup: $(INSTALLED) ## virtual environment, pinned packages, jars, everything compiled and archived
	@-$(BIN)/python -m compileall -q $(COMPILED)
	@$(BIN)/python -m epochline.local.prepare

# Stamped when everything is there, so that an interrupted setup is simply run again.
$(INSTALLED): requirements.txt requirements-dev.txt pyproject.toml
	@python=$$(include/prerequisites.sh) || exit 1; \
	echo "setup     virtual environment in $(VENV) (the first time it downloads packages for some minutes)"; \
	"$$python" -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$(UV)"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install -q --compile-bytecode -r requirements.txt -r requirements-dev.txt
	@rm -rf include/epochline.egg-info  # of an older version, whose entry points would hide those of this one
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install -q --no-deps -e .
	@touch $@

demo: setup ## real log lines through Kafka, Spark, staging, commit and ledger; a driver is killed on the way
	@$(BIN)/epochline demo $(if $(LOG),--log "$(LOG)")

test-fast: setup ## tests without a server: a minute
	$(PYTEST) $(WITHOUT_SERVERS) $(FAST)

test: setup lint ## each promise once, on real servers that the tests start themselves: ten minutes
	$(PYTEST) -m "not ci and not slow and not long" $(FAST) $(REAL)

# CI runs `test` and then this. TURN=1, 2 or 3 chooses the third, which the commit chooses else (tests/turns.py).
test-ci: DURATIONS = build/durations-ci.tsv
test-ci: setup ## a third of the tests on servers that `make test` leaves out; a skip that tests/skips.py does not list fails
	$(PYTEST) --strict-skips --turn $(or $(TURN),commit) -m "ci and not slow and not long" $(FAST) $(REAL)

representatives: setup ## choose the tests on servers that `make test` runs, by what build/durations*.tsv say
	@$(BIN)/python -m tests.representatives

test-all: export EPOCHLINE_MACHINE_EXAMPLES ?= 300
test-all: setup lint ## every row of the fault matrix, the model's whole search, more made-up histories, and the matrix: before a release
	$(PYTEST) -m "not long" $(FAST) $(REAL)
	$(BIN)/python -m tests.matrix

test-long: setup ## an hour's soak, millions of records, containers, HDFS, S3; each test says what it needs and how to install it
	$(BIN)/pytest --durations-file $(DURATIONS) -m long tests/integration tests/long

coverage: setup ## which lines and branches of the library the fast tests run
	@mkdir -p build/coverage
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(SHARED) $(WITHOUT_SERVERS) $(FAST)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

# Other Pythons are looked for on PATH. Each row may be named: `python -m tests.matrix kafka-2.8`.
matrix: setup ## the smoke path on both ends of each range of versions, half an hour at most; writes docs/versions.md
	$(BIN)/python -m tests.matrix

# A test that is not run keeps the line of the run that it was in, with that run's date and commit.
reliability: setup ## make every fault of docs/reliability.md again and write what came of it
	$(BIN)/pytest $(SHARED) -m "fault and not long" --write-reliability docs/reliability.md $(FAST) $(REAL)

stale: setup ## name each measured result that is older than its code, and the command that measures it again
	@$(BIN)/python -m tests.crash.freshness

semantics: setup ## kill four semantics over every kind of sink at each place, and write docs/semantics.md
	EPOCHLINE_WRITE_SEMANTICS=1 $(BIN)/pytest -n 0 tests/crash/test_semantics.py

model: setup ## search every state of the protocol's model, take every guard away, and write what was found
	$(BIN)/python -m tests.model --report docs/model.md

requirements: setup ## write into docs/requirements.md which test shows each requirement, and name what no test shows
	$(BIN)/python -m tests.requirements

reference: setup ## write docs/reference.md from the declarations
	$(BIN)/python -m tests.reference

# MINUTES=10 SEED=… choose the length and the schedule; the page is written where the run proves something.
soak: setup ## break Kafka nodes, PostgreSQL, Airflow and Spark at random for an hour, then prove that nothing is lost or doubled
	$(BIN)/python -m tests.nemesis --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) --report docs/soak.md

bench: setup ## measure what docs/performance.md says
	$(BIN)/python -m bench.kinds --report docs/performance.md --short-report README.md
	$(BIN)/python -m bench.small_epoch --report docs/performance.md
	$(BIN)/python -m bench.records --report docs/performance.md
	$(BIN)/python -m bench.cold --report docs/performance.md
	$(BIN)/python -m bench.state --report docs/performance.md
	$(BIN)/python -m bench.publish --report docs/performance.md
	$(BIN)/python -m bench.trial --report docs/performance.md
	$(BIN)/python -m bench.stateful --report docs/performance.md
	$(BIN)/python -m bench.price --report docs/performance.md
	$(BIN)/python -m bench.shares --report docs/performance.md
	$(BIN)/python -m bench.footprint --report docs/memory.md
	$(BIN)/python -m bench.pages --report docs/performance.md
	$(BIN)/python -m bench.many --report docs/performance.md
	$(BIN)/python -m bench.quick --store

bench-quick: setup ## the ratios that matter, at small size, beside the stored ones: five minutes at most
	$(BIN)/python -m bench.quick

lint: setup site ## ruff, mypy, import-linter, spelling, Markdown, dead links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=include $(BIN)/lint-imports
	$(BIN)/codespell .
	$(BIN)/pymarkdown scan --recurse $(MARKDOWN)

# In an environment of its own, which uv keeps in its cache.
site: setup ## the documentation as a site in build/site; a dead link or anchor is an error
	@$(BIN)/uv run -q --isolated --no-project --python $(BIN)/python --with-requirements requirements-site.txt mkdocs build -q

release: setup ## check and build a release of the last commit, and write the changelog's heading; publishes nothing
	@$(BIN)/python -m tests.release

format: setup ## format the code, sort its imports, and correct what ruff can correct
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

up: setup ## start PostgreSQL, Kafka and Airflow
	@$(BIN)/epochline up

down: setup ## stop them; data stays
	@$(BIN)/epochline down

status: setup ## what runs, where, and where the passwords lie
	@$(BIN)/epochline status

lock: $(INSTALLED) ## pin every package again from pyproject.toml
	$(LOCK) --all-extras pyproject.toml -o requirements.txt
	$(LOCK) --group dev -c requirements.txt -o requirements-dev.txt
	$(LOCK) --group site -o requirements-site.txt
