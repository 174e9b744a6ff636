"""One write into several queues: each shows it once, or none does, whatever dies between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.staging import Staged
from mirrorq.client.client import Client
from processes.cluster import Cluster
from pyspark_mirrorq.addresses import by_queue
from pyspark_mirrorq.options import Options, parse
from pyspark_mirrorq.source import DefaultSource
from pyspark_mirrorq.writer import BatchWriter, Part, StreamWriter, check_columns

from .conftest import connected_to, in_sync, patiently, until
from .dying_driver import commit_and_die
from .test_write import bodies

_numbers = count(1)


def opened(client: Client) -> list[MirroredQueue]:
    """Three queues with names of their own; the first by name decides."""
    number = next(_numbers)
    return [client.queue(f"{letter}-{number}", timeout=60) for letter in "abc"]


@pytest.fixture
def queues(client: Client) -> Iterator[list[MirroredQueue]]:
    made = opened(client)
    yield made
    for queue in made:
        queue.delete()
        queue.close()


def shown(queues: list[MirroredQueue]) -> list[list[bytes]]:
    return [sorted(bodies(queue)) for queue in queues]


# --- Spark ----------------------------------------------------------------------------------


def test_the_column_says_where_each_row_goes(
    spark: SparkSession, client: Client, queues: list[MirroredQueue]
) -> None:
    """In their order, once however often it is written; a queue without rows stays as it is."""
    names = [queue.name for queue in queues]
    frame = spark.range(0, 600, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", f"IF(id % 3 = 0, '{names[2]}', '{names[0]}') AS queue"
    )
    for given in ({}, {"queue": ",".join(names)}):
        writer = frame.write.format("mirrorq").mode("append").options(**given)
        writer = writer.option("endpoints", ",".join(client.endpoints))
        writer.options(txnAppId="split", txnVersion="1").save()
    until(lambda: len(bodies(queues[2])) == 200)
    found = [list(map(int, bodies(queue))) for queue in queues]
    assert found == [[n for n in range(600) if n % 3], [], list(range(0, 600, 3))]


def test_an_unknown_queue_is_told_in_the_drivers_message(
    spark: SparkSession, client: Client, queues: list[MirroredQueue]
) -> None:
    """And nothing shows, in the others neither."""
    rows = [("x", queues[0].name), ("y", "none-such")]
    frame = spark.createDataFrame(rows, "value string, queue string").coalesce(1)
    writer = frame.write.format("mirrorq").mode("append")
    with pytest.raises(PySparkException, match="column queue: no queue is named 'none-such'"):
        writer.option("endpoints", ",".join(client.endpoints)).save()
    assert shown(queues) == [[], [], []]


def asked(queue: str) -> Options:
    return parse({"endpoints": "tcp://127.0.0.1:1", **({"queue": queue} if queue else {})})


@pytest.mark.parametrize(
    ("columns", "queue", "says"),
    [
        (StructType().add("value", "string"), "", "option queue is missing"),
        (StructType().add("value", "string"), "a,b", "no column queue says which"),
        (StructType().add("value", "string").add("queue", "long"), "", "queue is of type bigint"),
    ],
)
def test_where_rows_go_must_be_said(columns: StructType, queue: str, says: str) -> None:
    """Before a task starts."""
    with pytest.raises(mirrorq.ConfigError, match=says):
        check_columns(asked(queue), columns, overwrite=False)


def test_rows_by_queue() -> None:
    """In their order; one queue by option takes all, as Kafka's topic does, whatever the rows say:
    what was read from a queue names that one."""
    batch = pa.RecordBatch.from_pydict({"value": ["1", "2", "3"], "queue": ["b", "a", "b"]})

    def found(queue: str) -> dict[str, list[str]]:
        return {name: rows["value"].to_pylist() for name, rows in by_queue(batch, asked(queue))}

    assert found("") == found("a,b") == {"b": ["1", "3"], "a": ["2"]}
    assert found("c") == {"c": ["1", "2", "3"]}
    with pytest.raises(mirrorq.ConfigError, match="names 'b', and the option queue a, c"):
        found("a,c")
    batch = pa.RecordBatch.from_pydict({"value": ["1", "2"], "queue": ["a", None]})
    with pytest.raises(mirrorq.ConfigError, match="column queue is null in 1 of 2 rows"):
        found("")


@pytest.mark.soak
def test_a_stream_whose_driver_dies_between_queues(
    spark: SparkSession, client: Client, queues: list[MirroredQueue], tmp_path: Path
) -> None:
    """The process that commits is killed when one queue has answered; the query, restarted, does
    the batch again: each queue shows each row once."""
    source, marker = tmp_path / "in", str(tmp_path / "killed")
    source.mkdir()
    (source / "rows").write_text("".join(f"{queue.name} {queue.name[0]}\n" for queue in queues))

    class Dying(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
            decide, seen = Staged._decide, []

            def decide_or_die(staged: Staged, queue: str, *asked: object) -> object:
                if seen and not os.path.exists(marker):
                    open(marker, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                seen.append(queue)
                return decide(staged, queue, *asked)

            Staged._decide = decide_or_die
            return super().streamWriter(schema, overwrite)

    spark.dataSource.register(Dying)

    def start() -> StreamingQuery:
        stream = spark.readStream.format("text").load(str(source))
        stream = stream.selectExpr(
            "element_at(split(value, ' '), 1) AS queue", "element_at(split(value, ' '), 2) AS value"
        ).writeStream.format("dying")
        stream = stream.option("endpoints", ",".join(client.endpoints))
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return stream.trigger(availableNow=True).start()

    with pytest.raises(PySparkException):
        patiently(start)
    assert os.path.exists(marker)
    assert shown(queues) == [[], [], []]
    patiently(start)
    until(lambda: shown(queues) == [[b"a"], [b"b"], [b"c"]])


# --- The driver alone, killed at every step ---------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Three nodes on which a sealed run asks at once what has become of its driver."""
    cluster = Cluster(tmp_path_factory.mktemp("impatient"), {"sealed_timeout_ms": 500})
    try:
        cluster.found("abc")
        with connected_to(cluster) as client:
            yield client
    finally:
        cluster.end()


def staged_by(
    client: Client, queues: list[MirroredQueue], **named: object
) -> tuple[BatchWriter, list[Part]]:
    """A writer, and what two tasks have staged for it: a row for each queue."""
    given = {"endpoints": ",".join(client.endpoints), "timeout": "60s"}
    writer = BatchWriter(parse({**given, **{one: str(value) for one, value in named.items()}}))
    parts = []
    name = (writer._transaction, writer._version, "")
    with bulk.staged(client, *name, run=writer._run) as staged:
        for partition in (0, 1):
            attempt = staged.attempt(partition, partition)
            for queue in queues:
                attempt.put(b"%d" % partition, queue=queue.name)
            parts.append(Part(attempt.finish(120)))
    return writer, parts


WHOLE = [[b"0", b"1"]] * 3
STEPS = [
    pytest.param(0, False, marks=pytest.mark.soak),
    (1, False),
    pytest.param(2, False, marks=pytest.mark.soak),
    (2, True),
    (3, False),
]
"""(queues that have answered, the next one was asked): the third is the one that decides."""


@pytest.mark.soak
@pytest.mark.parametrize(("step", "is_sent"), STEPS)
def test_a_driver_dies_and_nobody_repeats_its_write(
    impatient: Client, step: int, is_sent: bool
) -> None:
    """All of it or nothing, in every queue alike: before the decision the sealed parts are given
    up, after it the deciding queue tells the others."""
    queues = opened(impatient)
    commit_and_die(*staged_by(impatient, queues), step, is_sent)
    # Queues sealed so far come to a decision by themselves; those not yet asked expire after
    # staged_timeout_ms, a day.
    settled = {0: [], 1: queues[1:2], 2: queues, 3: queues}[step]
    for queue in settled:
        until(lambda queue=queue: queue.status().messages_staged == 0)
    expected = {0: [[[]] * 3], 1: [[[]] * 3], 2: [[[]] * 3], 3: [WHOLE]}[step]
    until(lambda: shown(queues) in (expected if not is_sent else [[[]] * 3, WHOLE]))


@pytest.mark.soak
@pytest.mark.parametrize(("step", "is_sent"), STEPS)
def test_a_driver_dies_and_its_write_is_repeated(
    impatient: Client, step: int, is_sent: bool
) -> None:
    """As a stream repeats a batch: whatever the first driver came to, each queue shows it once."""
    queues = opened(impatient)
    named = {"txnAppId": f"job-{queues[0].name}", "txnVersion": 4}
    commit_and_die(*staged_by(impatient, queues, **named), step, is_sent)
    for _ in range(2):
        writer, parts = staged_by(impatient, queues, **named)
        writer.commit(parts)
    until(lambda: shown(queues) == WHOLE)
    until(lambda: not any(queue.status().messages_staged for queue in queues[1:]))
    assert shown(queues) == WHOLE


@pytest.mark.soak
def test_driver_and_master_die_between_queues(own_nodes: Cluster) -> None:
    """The decision is made; its master dies before the others have heard of it, or after."""
    with connected_to(own_nodes) as client:
        queues = opened(client)
        for queue in queues:
            in_sync(queue)
        writer, parts = staged_by(client, queues)
        commit_and_die(writer, parts, 3)
        master = in_sync(queues[0]).master
        assert master is not None
        own_nodes.kill(master)
        until(lambda: shown(queues) == WHOLE)
