# Seeds, faults and spoiled bytes: hours, in no gate.

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
# Inputs of `make fuzz`, over all targets, and where they begin.
COUNT ?= 1000000
FUZZ_SEED ?= 1
# Where `make pipeline` leaves its output: a folder that is empty or not there.
PIPELINE_OUT ?= pipeline-out
# Kills of `make soak-spark`, and which ones.
SOAK_KILLS ?= 50
SOAK_SEED ?= 1
# Shards of both its queues; 0: they are not sharded.
SOAK_SHARDS ?= 0

.PHONY: sim soak explore mutants crashpoints fuzz chaos spools framework-faults pipeline soak-spark

PIPELINE = JAVA_HOME="$$(cd tests && ../$(BIN)/python -m spark.java ../build/java)" SPARK_LOCAL_IP=127.0.0.1 \
	$(BIN)/python examples/flights_pipeline.py

sim: $(STAMP)  ## many seeds of the simulation: make sim SEEDS=1000
	$(HARNESS) --seeds $(SEEDS) $(if $(RESULTS),--results $(abspath $(RESULTS)))

soak: $(STAMP)  ## seeds that nobody has run before: make soak SOAK_SEEDS=9000
	first=$$(date +%s); $(HARNESS) --seeds $$first-$$((first + $(SOAK_SEEDS) - 1))

explore: $(STAMP)  ## every interleaving of small rings over the real modules: minutes
	$(HARNESS).explore --long

mutants: $(STAMP)  ## every deliberate bug against the checker that should notice it: the table
	cd tests && ../$(BIN)/python -m model

crashpoints: $(STAMP)  ## a crash at every point of a store's writing: make crashpoints CRASH_SEEDS=100
	cd tests && ../$(BIN)/python -m store.crash_points --seeds $(CRASH_SEEDS)

fuzz: $(STAMP)  ## spoiled bytes for all that reads bytes, calls with odd arguments: make fuzz COUNT=1000000
	cd tests && ../$(BIN)/python -m fuzz --count $(COUNT) --seed $(FUZZ_SEED)

chaos: $(STAMP)  ## real processes, real faults: make chaos CHAOS_SEEDS=100 CHAOS_NODES=3,5
	$(HARNESS).chaos --seeds $(CHAOS_SEEDS) --nodes $(CHAOS_NODES) \
		--wires $(CHAOS_WIRES) --results $(abspath $(CHAOS_RESULTS))

spools: $(STAMP)  ## spools whose producer and node are killed, whose disk is full, that are copied and set back: ROUNDS=200
	$(HARNESS).chaos.spools --rounds $(ROUNDS)

FAULTS := tests/contrib/test_framework_faults.py

framework-faults: $(STAMP)  ## 20,000 tasks of Celery, Django, dramatiq and taskiq each, nodes and workers killed ten times: minutes
	$(PYTEST) -s -m soak $(FAULTS)

$(VENV)/.matplotlib: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'matplotlib>=3.8'
	touch $@

pipeline: $(VENV)/.matplotlib  ## flights through a queue and Spark, master and driver killed: PIPELINE_OUT=pipeline-out
	$(PIPELINE) $(PIPELINE_OUT)

soak-spark: $(VENV)/.matplotlib  ## the same with many kills at random: SOAK_KILLS=50 SOAK_SEED=1 SOAK_SHARDS=3
	$(PIPELINE) --kills $(SOAK_KILLS) --seed $(SOAK_SEED) --shards $(SOAK_SHARDS) $(PIPELINE_OUT)-soak-$(SOAK_SEED)
