"""Streaming reads: offsets are sequences, and only what Spark has committed is acked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from processes.cluster import Cluster

from .conftest import TELLS_COMMITS, begun, connected_to, in_sync, patiently, until


class Pipe:
    """A stream of a queue into Parquet, with a checkpoint."""

    def __init__(self, spark: SparkSession, endpoints: str, queue: str, folder: Path) -> None:
        self.spark = spark
        self.given = {"endpoints": endpoints, "queue": queue, "columns": "sequence,value"}
        self.given |= {"timeout": "120s", "mode": "drain"}
        self.folder = folder

    def frame(self, **options: object) -> DataFrame:
        given = {**self.given, **{name: str(value) for name, value in options.items()}}
        return self.spark.readStream.format("mirrorq").options(**given).load()

    def start(self, frame: DataFrame, **trigger: object) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def run(self, **options: object) -> StreamingQuery:
        """Take what is there now, to the end."""
        return patiently(lambda: self.start(self.frame(**options)))

    def found(self) -> list[int]:
        """All sequences in the output, in order."""
        rows = self.spark.read.parquet(str(self.folder / "out")).select("sequence").collect()
        return sorted(row.sequence for row in rows)


@pytest.fixture
def pipe(spark: SparkSession, client: Client, orders: MirroredQueue, tmp_path: Path) -> Pipe:
    return Pipe(spark, ",".join(client.endpoints), orders.name, tmp_path)


def test_available_now_drains_in_limited_batches_and_acks_all(
    pipe: Pipe, orders: MirroredQueue, client: Client
) -> None:
    """Each batch holds no more than maxOffsetsPerTrigger; the progress shows the queue's depth; at
    the end the queue is empty, and who read it has become no node; the next run goes on where this
    one ended. Spark before 4.2 makes one batch, and the last one stays."""
    orders.put_many([b"%d" % number for number in range(250)]).result(120)
    query = pipe.run(maxOffsetsPerTrigger=100)
    batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert batches == ([100, 100, 50] if TELLS_COMMITS else [250])
    if TELLS_COMMITS:
        latest = [json.loads(p["sources"][0]["latestOffset"]) for p in query.recentProgress]
        assert latest[0] == {orders.name: {"seq": 251, "depth": 250}}
    assert pipe.found() == list(range(1, 251))
    assert bulk.extent(orders, 120).messages == (0 if TELLS_COMMITS else 250)
    assert [node.name for node in client.nodes()] == ["a", "b", "c"]
    orders.put_many([b"x"] * 10).result(120)
    pipe.run()
    assert pipe.found() == list(range(1, 261))
    assert bulk.extent(orders, 120).messages == (0 if TELLS_COMMITS else 10)


def test_a_batch_that_fails_is_read_again_and_nothing_is_acked_before(
    pipe: Pipe, orders: MirroredQueue
) -> None:
    """The sink raises: the query ends, the queue has all; restarted, the same batch comes."""
    orders.put_many([b"%d" % number for number in range(40)]).result(120)
    seen: list[tuple[int, int]] = []

    def sink(fail: bool) -> StreamingQuery:
        def take(frame: DataFrame, number: int) -> None:
            seen.append((number, frame.count()))
            if fail:
                raise RuntimeError("the sink fails")

        writer = pipe.frame().writeStream.foreachBatch(take)
        checkpoint = str(pipe.folder / "other")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    with pytest.raises(PySparkException, match="the sink fails"):
        patiently(lambda: sink(fail=True))
    assert bulk.extent(orders, 120).messages == 40
    patiently(lambda: sink(fail=False))
    assert seen == [(0, 40), (0, 40)]
    assert bulk.extent(orders, 120).messages == (0 if TELLS_COMMITS else 40)


@pytest.mark.soak
def test_a_second_stream_is_told_who_has_the_queue(pipe: Pipe, orders: MirroredQueue) -> None:
    """A draining stream has its queue alone; when it is stopped the next one may have it."""
    orders.put(b"x").result(120)
    first = begun(lambda: pipe.start(pipe.frame(), processingTime="1 second"))
    try:
        until(lambda: first.recentProgress[-1]["numInputRows"] == 0)
        with pytest.raises(mirrorq.PreconditionFailed, match="a stream of queue"):
            orders.get(timeout=10)
        other = pipe.frame(claimTimeout="1s").writeStream.format("noop")
        with pytest.raises(PySparkException, match=r"a stream of queue .*Spark driver, process"):
            patiently(other.start)
    finally:
        first.stop()
    assert pipe.found() == [1]


def test_browse_follows_and_takes_nothing(pipe: Pipe, orders: MirroredQueue) -> None:
    """mode=browse needs no claim and acks nothing; startingOffsets is where it begins."""
    orders.put_many([b"%d" % number for number in range(20)]).result(120)
    message = orders.get(timeout=120)
    pipe.run(mode="browse", startingOffsets=11)
    assert pipe.found() == list(range(11, 21))
    message.nack().result(120)
    assert bulk.extent(orders, 120).messages == 20


def left_in(queue: MirroredQueue) -> int:
    """How many messages live."""
    return bulk.extent(queue, 60).messages


def test_several_queues_and_the_death_of_a_master(
    spark: SparkSession, own_nodes: Cluster, tmp_path: Path
) -> None:
    """A running stream of two queues goes on over a failover: each message once in the output."""
    endpoints = ",".join(own_nodes.endpoints.values())
    with connected_to(own_nodes) as client:
        queues = [client.queue(name, timeout=60) for name in ("left", "right")]
        pipe = Pipe(spark, endpoints, "left,right", tmp_path)
        pipe.given["columns"] = "queue,sequence"
        for queue in queues:
            queue.put_many([b"x"] * 500).result(60)
            in_sync(queue)
        frame = pipe.frame(maxOffsetsPerTrigger=300)

        def rows() -> DataFrame:
            return spark.read.parquet(str(tmp_path / "out"))

        query = begun(lambda: pipe.start(frame, processingTime="100 milliseconds"))
        try:
            master = in_sync(queues[0]).master
            assert master is not None
            own_nodes.kill(master)
            for queue in queues:
                queue.put_many([b"y"] * 500).result(120)

            def is_through() -> bool:
                # Spark before 4.2 has the last batch acked by the next one, which never comes.
                return not any(map(left_in, queues)) if TELLS_COMMITS else rows().count() == 2000

            until(lambda: query.exception() or is_through())
        finally:
            query.stop()
        assert query.exception() is None
        counts = rows().groupBy("queue").count().collect()
        assert {row.queue: row["count"] for row in counts} == {"left": 1000, "right": 1000}
