# Parts of `make test` and `make test-all`, and ways to run them under stress.

# Runs of `make flakes`, and of which tests.
N ?= 50
TESTS ?= -m smoke
# When nodes and clients stand still in `make stalls`.
STALL_SEED ?= 1
# What `make thread-stalls` runs; tests/client only by itself, as tests/transport.
STALLED ?= tests/aio tests/queue tests/spool tests/interrupts

.PHONY: rest lint types pure smoke slow define real stalls thread-stalls spark-tests spark-cluster test-browser more more-real flakes sanitize

rest: types docs slow real spark-tests  ## what `make test-all` runs after `make test`

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy
	cd benches && ../$(BIN)/mypy --config-file mypy.ini .

pure: $(STAMP)  ## all that needs no real time, on both cores
	$(PYTEST) -n 2 -m 'not real and not slow and not soak'

smoke: $(STAMP)  ## a few real processes, one after the other, and one round trip of Spark
	$(PYTEST) -m smoke $$(grep -rl --include='test_*.py' mark.smoke tests)

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

test-browser: $(STAMP)  ## the dashboard, and the search of the docs, in a real browser: apt-get install chromium chromium-driver
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { echo 'apt-get install chromium chromium-driver'; exit 1; }
	$(PYTEST) $(BROWSER)

more: $(STAMP)  ## more seeds of what `make test` runs a few of: minutes
	$(PYTEST) -m 'soak and not real'

more-real: $(STAMP)  ## more real processes than `make test-all` starts, and with more values: minutes
	$(PYTEST) -n 2 --dist loadfile -m 'soak and real' tests --ignore=$(SPARK) --ignore=tests/contrib/test_framework_faults.py

flakes: $(STAMP)  ## tests again and again beside busy loops, and how often each passes: N=50 TESTS=tests/processes
	$(HARNESS).flakes --runs $(N) -- $(TESTS)

sanitize: $(STAMP)  ## the C part under AddressSanitizer and UndefinedBehaviorSanitizer
	bash tests/wire/sanitize.sh
