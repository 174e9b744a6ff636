"""One Spark session for all tests of the connector, and one cluster of three processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests import kit

import mirrorq
from mirrorq import Config
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.monitoring.status import QueueStatus
from processes.cluster import Cluster

from .java import java_home

SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
PLANS_ONCE = SPARK >= (4, 1)
"""Before, Spark plans a DataFrame anew at each action."""
TELLS_COMMITS = SPARK >= (4, 2)
"""Before, an AvailableNow query is one batch, and its last one stays in the queue."""

DEADLINE_S = 300.0
"""After this a condition is taken never to come: a cold JVM on a busy machine takes its time."""
until = partial(kit.until, seconds=DEADLINE_S)


def in_sync(queue: MirroredQueue) -> QueueStatus:
    """Its status with both mirrors in sync. A client's is empty when its node takes more than a
    second to answer, as beside a JVM it may."""
    seen: list[QueueStatus] = []
    until(lambda: seen.append(queue.status()) or len(seen[-1].synchronised_mirrors) == 2)
    return seen[-1]


def connected_to(cluster: Cluster) -> Client:
    """A client that keeps what it holds though it stands still for a second, as beside a JVM it
    may."""
    endpoints = list(cluster.endpoints.values())
    return mirrorq.connect(endpoints, config=Config(**cluster.config), timeout=60)


def wait_known(client: Client, names: Collection[str]) -> None:
    """Wait until every node has heard of queues: who asks another node than the one that has
    declared them finds them, too."""
    for endpoint in client.endpoints:
        with mirrorq.connect(endpoint, timeout=60) as one:
            until(lambda one=one: set(names) <= {status.name for status in one.queues()})


STOP_S = 600
"""The same for the end of a query."""


def is_late_start(error: BaseException | None) -> bool:
    """Whether only the Python process of a query was too slow to start: Spark gives it 10 seconds,
    which a busy machine may not have."""
    return "connect back" in str(error)


def patiently(run: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query to its end; again after a late start."""
    while True:
        query = run()
        try:
            assert query.awaitTermination(STOP_S)
        except PySparkException as error:
            if is_late_start(error):
                continue
            raise
        return query


def begun(run: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait for its first progress; again after a late start."""
    while True:
        query = run()
        until(lambda query=query: query.recentProgress or not query.isActive)
        if not is_late_start(query.exception()):
            return query


QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    # What is compiled here runs once: the interpreter and the quick compiler are enough.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two threads; a failed task is tried again."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["JAVA_HOME"] = str(java_home(folder / "java"))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,3]").appName("mirrorq-tests")
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    session = builder.config("spark.local.dir", str(folder)).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that no test kills."""
    cluster = Cluster(tmp_path_factory.mktemp("nodes"))
    try:
        cluster.found("abc")
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="session")
def client(shared_nodes: Cluster) -> Iterator[Client]:
    """A client of the shared nodes."""
    with connected_to(shared_nodes) as client:
        yield client


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes that a test may kill."""
    cluster = Cluster(tmp_path)
    try:
        cluster.found("abc")
        yield cluster
    finally:
        cluster.end()


_numbers = count(1)


@pytest.fixture
def orders(client: Client) -> Iterator[MirroredQueue]:
    """A queue of the test's own, on all three nodes."""
    with client.queue(f"orders-{next(_numbers)}", timeout=60) as queue:
        in_sync(queue)
        yield queue
        queue.delete()


Reading = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, shared_nodes: Cluster) -> Reading:
    """Read a queue as a batch, with options by name."""

    def load(queue: MirroredQueue | str, **options: object) -> DataFrame:
        name = queue if isinstance(queue, str) else queue.name
        endpoints = ",".join(shared_nodes.endpoints.values())
        reader = spark.read.format("mirrorq").options(endpoints=endpoints, queue=name)
        reader = reader.option("timeout", "120s")
        return reader.options(**{option: str(value) for option, value in options.items()}).load()

    return load
