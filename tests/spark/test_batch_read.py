"""Batch reads: what a DataFrame of a queue shows, from which copies, and what wrong options say."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import mirrorq
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.monitoring.status import QueueStatus
from processes.cluster import Cluster
from pyspark_mirrorq.cluster import client_of
from pyspark_mirrorq.columns import schema_of
from pyspark_mirrorq.options import Options, parse
from pyspark_mirrorq.snapshot import snapshot
from pyspark_mirrorq.stretches import Stretch, read_stretch

from .conftest import PLANS_ONCE, Reading, connected_to, in_sync, until, wait_known


def taken(queue: MirroredQueue, count: int) -> list[mirrorq.Message]:
    """So many messages, held."""
    found: list[mirrorq.Message] = []
    while len(found) < count:
        found += queue.get_many(count - len(found), 120)
    return found


def planned(options: Options, status: QueueStatus, nodes: Mapping[str, str]) -> list[Stretch]:
    """A plan that knows the mirrors: who is not told of them within a second, as on a busy machine
    it may not be, has the given endpoints in their place."""
    one, other = (nodes[name] for name in status.synchronised_mirrors)
    found: list[Stretch] = []

    def is_told() -> bool:
        found[:] = snapshot(options)
        firsts = [stretch.endpoints[:2] for stretch in found]
        return firsts[0] == (one, other) and set(firsts) <= {(one, other), (other, one)}

    until(is_told)
    return found


def test_spark_finds_the_source_and_shows_every_message(
    orders: MirroredQueue, read: Reading
) -> None:
    """Without a registration `format("mirrorq")` works; each message is one row, none is taken."""
    orders.put_many([b"%d" % number for number in range(2500)]).result(120)
    before = orders.put(b"the last").result(120)
    frame = read(orders)
    assert frame.columns == ["value", "sequence", "timestamp", "queue", "shard"]
    rows = sorted(frame.collect(), key=lambda row: row.sequence)
    assert [row.sequence for row in rows] == list(range(1, before + 1))
    assert bytes(rows[17].value) == b"17"
    assert bytes(rows[-1].value) == b"the last"
    assert {row.queue for row in rows} == {orders.name}
    assert {row.shard for row in rows} == {0}
    assert abs(rows[0].timestamp - datetime.datetime.now()) < datetime.timedelta(minutes=10)
    assert orders.qsize() == 2501


def test_to_be_found_the_source_needs_no_client() -> None:
    """Spark begins a process for each step of a query, and waits 10 seconds for some: what finds
    the source, tells its columns, and makes a stream's writer, loads neither
    the client nor PyArrow; what commits, no PyArrow."""
    code = (
        "import sys; from pyspark_mirrorq import DefaultSource; from pyspark.sql import types;"
        "source = DefaultSource({'endpoints': 'tcp://127.0.0.1:1', 'queue': 'x'});"
        "source.schema();"
        "source.streamWriter(types.StructType().add('value', 'string'), False);"
        "print([name for name in ('mirrorq.client.client', 'zmq', 'pyarrow')"
        " if name in sys.modules]);"
        "import pyspark_mirrorq.staged_commit; print('pyarrow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["[]", "False"]


@pytest.mark.parametrize("lacking", ["pyspark", "pyarrow", "mirrorq"])
def test_to_import_the_connector_never_raises(lacking: str) -> None:
    """One module that raises would hide all Python sources from Spark."""
    code = f"import sys; sys.modules[{lacking!r}] = None; import pyspark_mirrorq"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


def test_headers_and_delivery_are_columns_when_asked_for(
    orders: MirroredQueue, read: Reading
) -> None:
    """includeHeaders and includeDelivery add columns; messages without properties show null."""
    orders.put(b"plain").result(120)
    headers = {"kind": "x", "n": 5, "ok": True, "b": b"\xff", "none": None, "l": [1, {"a": b"b"}]}
    orders.put(b"rich", headers=headers, message_id="id-1", correlation_id="c-1").result(120)
    (first,) = taken(orders, 1)
    first.nack().result(120)
    rows = read(orders, includeHeaders=True, includeDelivery="true").orderBy("sequence").collect()
    assert rows[0].headers is None
    assert rows[0].message_id is None
    assert (rows[0].redelivered, rows[0].delivery_count) == (True, 2)
    shown = {"kind": "x", "n": "5", "ok": "true", "b": "\\xff", "none": None}
    shown["l"] = '[1, {"a": "b"}]'
    assert rows[1].headers == shown
    carried = read(orders, columns="sequence, correlation_id, reply_to").orderBy("sequence")
    assert [tuple(row) for row in carried.collect()] == [(1, None, None), (2, "c-1", None)]
    assert rows[1].message_id == "id-1"
    assert (rows[1].redelivered, rows[1].delivery_count) == (False, 1)
    assert read(orders, columns="sequence, value").columns == ["sequence", "value"]


def test_offsets_and_times_bound_what_is_read(orders: MirroredQueue, read: Reading) -> None:
    """The start is read, the end is not; times are milliseconds."""
    orders.put_many([b"%d" % number for number in range(50)]).result(120)
    between_ms = int(time.time() * 1000) + 20
    until(lambda: time.time() * 1000 > between_ms + 20)
    orders.put_many([b"%d" % number for number in range(50, 100)]).result(120)

    def sequences(**options: object) -> list[int]:
        frame = read(orders, columns="sequence", **options)
        return sorted(row.sequence for row in frame.collect())

    assert sequences(startingOffsets=11, endingOffsets=21) == list(range(11, 21))
    assert sequences(startingOffsets=f'{{"{orders.name}": 99}}') == [99, 100]
    assert sequences(startingOffsets="earliest", endingOffsets="latest") == list(range(1, 101))
    assert sequences(startingTimestamp=between_ms) == list(range(51, 101))
    assert sequences(endingTimestamp=between_ms) == list(range(1, 51))
    assert sequences(startingOffsets=7, endingOffsets=7) == []


def test_an_empty_queue_is_an_empty_frame(orders: MirroredQueue, read: Reading) -> None:
    """Nothing to read is no error."""
    assert read(orders).count() == 0


def test_partitions_are_ranges_on_all_mirrors(
    orders: MirroredQueue, read: Reading, client: Client
) -> None:
    """minPartitions splits evenly; the preferred endpoints are those of the mirrors, in turn."""
    for _ in range(10):
        orders.put_many([b"x"] * 100).result(120)
    frame = read(orders, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 1000
    options = {"endpoints": ",".join(client.endpoints), "queue": orders.name, "minPartitions": "4"}
    nodes = {node.endpoint: node.name for node in client.nodes()}
    status = in_sync(orders)
    stretches = planned(parse(options), status, {name: at for at, name in nodes.items()})
    readers = [nodes[stretch.endpoints[0]] for stretch in stretches]
    assert sorted(set(readers)) == sorted(status.synchronised_mirrors)
    assert {nodes[stretch.endpoints[-1]] for stretch in stretches} == {status.master}
    assert [len(stretch.ranges) for stretch in stretches] == [1, 1, 1, 1]


def test_several_queues_by_list_and_by_pattern(read: Reading, client: Client) -> None:
    """Each row says of which queue it is."""
    names = ["many-a", "many-b", "many-c"]
    for name in names:
        with client.queue(name, timeout=120) as queue:
            queue.put(name.encode()).result(120)
    wait_known(client, names)
    listed = read("many-a, many-c").collect()
    assert sorted((row.queue, bytes(row.value).decode()) for row in listed) == [
        ("many-a", "many-a"),
        ("many-c", "many-c"),
    ]
    spark = SparkSession.active()
    endpoints = ",".join(client.endpoints)
    matched = spark.read.format("mirrorq").options(endpoints=endpoints, queuePattern="many-[ab]")
    assert sorted(row.queue for row in matched.load().collect()) == names[:2]


def test_what_is_acked_after_planning_is_named_or_counted(
    orders: MirroredQueue, read: Reading
) -> None:
    """A plan names its messages: when some are gone, failOnDataLoss decides."""
    orders.put_many([b"%d" % number for number in range(100)]).result(120)
    strict = read(orders)
    lenient = read(orders, failOnDataLoss=False)
    assert strict.count() == lenient.count() == 100
    messages = taken(orders, 10)
    orders.ack_many([*messages[:2], *messages[3:5]]).result(120)
    with pytest.raises(PySparkException, match=r"2 message\(s\) of queue .* sequences 1 to 2"):
        read(orders, startingOffsets=1).count()
    assert read(orders, startingOffsets=1, failOnDataLoss="false").count() == 96
    assert read(orders).count() == 96
    if PLANS_ONCE:
        with pytest.raises(PySparkException, match="sequences 1 to 2, 4 to 5"):
            strict.collect()
    else:
        assert len(strict.collect()) == 96
    assert len(lenient.collect()) in (96, 100)


def test_another_copy_goes_on_when_a_node_dies(
    spark: SparkSession, own_nodes: Cluster, tmp_path: object
) -> None:
    """In the middle of a read, and when a plan names a node which is gone."""
    endpoints = ",".join(own_nodes.endpoints.values())
    with (
        connected_to(own_nodes) as client,
        client.queue("orders", timeout=60) as queue,
    ):
        in_sync(queue)
        for _ in range(20):
            queue.put_many([b"x" * 1000] * 500).result(60)
        status = in_sync(queue)
    reader = spark.read.format("mirrorq").options(endpoints=endpoints, queue="orders")
    frame = reader.option("minPartitions", "6").load()
    assert frame.rdd.getNumPartitions() == 6
    options = parse({"endpoints": endpoints, "queue": "orders", "timeout": "120s"})
    (stretch,) = planned(options, status, own_nodes.endpoints)
    assert stretch.endpoints[0] == own_nodes.endpoints[status.synchronised_mirrors[0]]
    # What is fetched ahead is not all of it.
    batches = read_stretch(stretch, options, ["sequence"])
    sequences = next(batches)["sequence"].to_pylist()
    own_nodes.kill(status.synchronised_mirrors[0])
    for batch in batches:
        sequences += batch["sequence"].to_pylist()
    assert sequences == list(range(1, 10_001))
    client_of(options, stretch.endpoints).close()
    assert frame.select("sequence").distinct().count() == 10_000
    if not PLANS_ONCE:
        # To plan anew needs a majority.
        return
    assert status.master is not None
    own_nodes.kill(status.master)
    survivor = status.synchronised_mirrors[1]
    assert frame.select("sequence").distinct().count() == 10_000, f"read from {survivor}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "none-such"}, "no queue is named 'none-such'"),
        ({"queue": ""}, "option queue is ''"),
        ({"startingOffset": "1"}, "knows no option 'startingoffset'"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first'"),
        ({"startingOffsets": "1000"}, "the next message of queue"),
        ({"endingOffsets": "1000"}, "option endingOffsets is 1000"),
        ({"endingOffsets": "earliest"}, "option endingOffsets is 'earliest'"),
        ({"minPartitions": "0"}, "option minPartitions is '0'"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe'"),
        ({"columns": "value,size"}, "option columns names 'size'"),
        ({"endpoints": "127.0.0.1:7400"}, "option endpoints"),
        ({"endpoints": "tcp://127.0.0.1:9", "timeout": "1s"}, "option endpoints: no majority"),
        ({"endpoints": "tcp://10.1.2.3:7400"}, "insecure"),
        ({"startingOffsets": '{"other": 3}'}, "which is not read"),
        ({"keys": "/nowhere"}, "option keys"),
        ({"timeout": "soon"}, "option timeout is 'soon': it is a time in seconds"),
    ],
)
def test_a_wrong_option_is_named(
    orders: MirroredQueue, client: Client, options: dict[str, str], says: str
) -> None:
    """Bad input is a sentence that names the option and what to do."""
    given = {"endpoints": ",".join(client.endpoints), "queue": orders.name, **options}
    with pytest.raises(mirrorq.MirrorQError, match=says):
        plan(given)


def plan(given: dict[str, str]) -> None:
    """What Spark's driver does before it starts tasks."""
    schema_of(parse(given))
    snapshot(parse(given))


def test_what_is_wrong_stands_in_the_drivers_message(spark: SparkSession, client: Client) -> None:
    """Neither endpoints nor a queue are guessed; a schema of one's own is refused."""
    with pytest.raises(PySparkException, match="option endpoints is missing"):
        spark.read.format("mirrorq").option("queue", "orders").load().collect()
    endpoints = ",".join(client.endpoints)
    with pytest.raises(PySparkException, match="option queue is missing"):
        spark.read.format("mirrorq").option("endpoints", endpoints).load().collect()
    reader = spark.read.format("mirrorq").options(endpoints=endpoints, queue="x")
    with pytest.raises(PySparkException, match=r"leave \.schema"):
        reader.schema("value string").load().collect()
