# Figures. `make bench` in the main Makefile is the short one.

# Arguments of `make compare`; `--help` lists them.
COMPARE ?=
# Arguments of `make steady`.
STEADY ?=
# Arguments of `make brokers`; `--help` lists them.
BROKERS ?=
# Arguments of `make scale` and of `make sim-scale`; `--help` lists them.
SCALE ?=
SIM_SCALE ?=

.PHONY: compare steady brokers scale sim-scale shape ceiling

$(VENV)/.compare: $(STAMP) benches/compare/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benches/compare/requirements.txt
	touch $@

compare: $(VENV)/.compare  ## beside RabbitMQ, NATS, PySyncObj and others: COMPARE='--only mirrorq,rabbit --rounds 1'
	cd benches && ../$(BIN)/python -m compare $(COMPARE)

steady: $(VENV)/.compare  ## latency at a fixed rate, beside RabbitMQ, NATS, Kafka and Redis: STEADY='--rates 1000'
	cd benches && ../$(BIN)/python -m compare.steady $(STEADY)

brokers: $(VENV)/.compare  ## Celery over mirrorq, Redis and RabbitMQ: BROKERS='--tasks 2000 --rounds 3'
	cd benches && ../$(BIN)/python -m brokers $(BROKERS)

scale: $(VENV)/.compare  ## curves over nodes, queues, producers, sizes, depth, days; and what became of each aim: SCALE='--only nodes'
	cd benches && ../$(BIN)/python -m scale $(SCALE)

sim-scale: $(STAMP)  ## fifty nodes in three sites on virtual time, one site lost and back: SIM_SCALE='--queues 2000 --pairs 24'
	$(BIN)/python benches/sim_scale.py $(SIM_SCALE)

shape: $(STAMP)  ## a queue of messages that are not alike, however deep: SHAPE='--messages 10000000 --only lease'
	cd benches && ../$(BIN)/python -m shape $(SHAPE)

ceiling: $(STAMP)  ## what the machine itself can do: LMDB and ZeroMQ without a queue
	$(BIN)/python benches/ceiling.py
