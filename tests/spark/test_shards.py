"""Sharded queues: each shard is read, leased, claimed and written by itself, under one name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import mirrorq
import pyspark_mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from pyspark_mirrorq.addresses import by_shard
from pyspark_mirrorq.options import parse
from pyspark_mirrorq.snapshot import position_of, snapshot
from pyspark_mirrorq.stream_reader import QueueStream, _shares, _within
from pyspark_mirrorq.stretches import read_stretch

from .conftest import TELLS_COMMITS, until, wait_known
from .test_stream import Pipe

SHARDS = 3
COUNT = 300
_numbers = count(1)


@pytest.fixture
def sharded(client: Client) -> Iterator[MirroredQueue]:
    """A queue of three shards, each on all nodes."""
    with client.queue(f"sharded-{next(_numbers)}", shards=SHARDS, timeout=60) as queue:
        yield queue
        queue.delete()


def live(queue: MirroredQueue) -> list[int]:
    """How many messages live in each shard."""
    found = []
    for number in range(queue.shards):
        with queue.shard(number) as shard:
            found.append(bulk.extent(shard, 120).messages)
    return found


def key_of(number: int) -> str:
    return f"k{number % 7}"


def shard_of(number: int) -> int:
    return crc32(key_of(number).encode()) % SHARDS


IN_SHARDS = [sum(shard_of(number) == shard for number in range(COUNT)) for shard in range(SHARDS)]


def test_a_row_goes_to_the_shard_of_its_key_and_is_read_there(
    spark: SparkSession, client: Client, sharded: MirroredQueue
) -> None:
    """Each key's rows in order; and a drain takes them there."""
    endpoints = ",".join(client.endpoints)
    rows = spark.range(0, COUNT, 1, 1).selectExpr(
        "CAST(id AS STRING) AS value", "concat('k', id % 7) AS key"
    )
    writer = rows.write.format("mirrorq").mode("append").option("endpoints", endpoints)
    writer = writer.option("queue", sharded.name)
    writer.save()
    # The first shard decides; the others show their parts a moment later.
    until(lambda: sum(live(sharded)) == COUNT)
    reader = spark.read.format("mirrorq").options(endpoints=endpoints, queue=sharded.name)
    found = reader.load().collect()
    assert len(found) == COUNT
    assert {row.queue for row in found} == {sharded.name}
    assert [(row.shard, shard_of(int(row.value))) for row in found] == [
        (row.shard, row.shard) for row in found
    ]
    for shard in range(SHARDS):
        there = sorted((row.sequence, int(row.value)) for row in found if row.shard == shard)
        assert [number for _, number in there] == sorted(number for _, number in there)
    with pyspark_mirrorq.drain(spark, endpoints, sharded.name, limit=COUNT - 1) as drained:
        assert drained.df.count() == drained.count == COUNT - 1
    assert (drained.acked, sum(live(sharded))) == (COUNT - 1, 1)


def test_a_stream_has_offsets_of_each_shard(
    spark: SparkSession, client: Client, sharded: MirroredQueue, tmp_path: Path
) -> None:
    """In limited batches; everything is in the output once, and acked."""
    for number in range(COUNT):
        sharded.put(b"%d" % number, key=key_of(number))
    assert sharded.wait_for_confirms(120)
    assert live(sharded) == IN_SHARDS
    pipe = Pipe(spark, ",".join(client.endpoints), sharded.name, tmp_path)
    pipe.given["columns"] = "sequence,value,shard,queue"
    query = pipe.run(maxOffsetsPerTrigger=100)
    batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert batches == ([100, 100, 100] if TELLS_COMMITS else [COUNT])
    assert f'"{sharded.name}#shard0"' in str(query.recentProgress[-1]["sources"])
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in rows) == list(range(COUNT))
    assert all(row.shard == shard_of(int(row.value)) for row in rows)
    assert sum(live(sharded)) == (0 if TELLS_COMMITS else COUNT)


# --- Without Spark ----------------------------------------------------------------------------


def test_rows_by_shard() -> None:
    """Strings and bytes of the same text go to the same shard; rows without a key stay together."""
    keys = ["a", None, "b", "a"]
    as_text = pa.RecordBatch.from_pydict({"value": list("1234"), "key": keys})
    as_bytes = as_text.set_column(1, "key", as_text["key"].cast(pa.binary()))
    for batch in (as_text, as_bytes):
        found = {number: rows["value"].to_pylist() for number, rows in by_shard(batch, 5, 4)}
        wanted: dict[int, list[str]] = {}
        for key, value in zip(keys, "1234", strict=True):
            number = 4 if key is None else crc32(key.encode()) % 5
            wanted.setdefault(number, []).append(value)
        assert found == wanted
    assert [number for number, _ in by_shard(as_text.select(["value"]), 5, 3)] == [3]


def test_positions_of_shards() -> None:
    """By shard as Kafka's by partition, else as of the queue."""
    given = '{"a": {"0": 17, "2": -2}, "b": 5}'
    starting = parse({"endpoints": "tcp://127.0.0.1:1", "startingOffsets": given}).starting
    found = [position_of(starting, name, "latest") for name in ("a#shard0", "a#shard1", "a#shard2")]
    assert found == [17, "latest", "earliest"]
    assert position_of(starting, "b#shard9", "latest") == 5
    with pytest.raises(mirrorq.ConfigError, match="whole number from 0 on"):
        parse({"endpoints": "tcp://127.0.0.1:1", "startingOffsets": '{"a": {"x": 1}}'})


def test_a_batchs_room_is_shared_by_what_there_is() -> None:
    """None waits for the end of another; together they get all of it."""
    live = {"a": [(1, 600)], "b": [(1, 10), (21, 310)], "c": [(5, 5)]}
    assert _shares(live, 1000) == {"a": 600, "b": 300, "c": 1}
    found = _shares(live, 90)
    assert (sum(found.values()), found["a"], found["b"]) == (90, 59, 30)
    assert _within(live["b"], 311, found["b"]) == 41


@pytest.fixture
def apart(client: Client) -> Iterator[MirroredQueue]:
    """A queue of six shards with 60 messages, each shard on two of the three nodes: no node has a
    copy of each."""
    name = f"apart-{next(_numbers)}"
    client.set_policy(name, f"^{name}", {"ha-mode": "exactly", "ha-params": 2})
    with client.queue(name, shards=6, timeout=60) as queue:
        wait_known(client, [name])
        queue.put_many([b"x"] * 60).result(120)
        yield queue
        queue.delete()
    client.clear_policy(name)


def test_shards_without_a_node_that_has_a_copy_of_each(
    client: Client, apart: MirroredQueue
) -> None:
    """A batch reads all, from nodes that have a copy; and so does a stream, which takes all."""
    shards = [apart.shard(number) for number in range(6)]
    assert len({shard.status().master for shard in shards}) == 3
    for shard in shards:
        shard.close()
    given = {"endpoints": ",".join(client.endpoints), "queue": apart.name, "timeout": "120s"}
    stamp = {"startingTimestamp": "0", "endingTimestamp": str(int(time.time() + 86_400) * 1000)}
    for bounds in ({}, stamp):
        stretches = snapshot(parse(given | bounds))
        rows = [batch for one in stretches for batch in read_stretch(one, parse(given), ["value"])]
        assert sum(batch.num_rows for batch in rows) == 60
    stream = QueueStream(parse(given | {"mode": "drain", "startingTimestamp": "0"}), ["sequence"])
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(start)
    stretches = stream.partitions(start, end)
    assert sum(last - first + 1 for one in stretches for first, last in one.ranges) == 60
    stream.commit(end)
    stream.stop()
    assert sum(live(apart)) == 0
