"""Writing DataFrames: every row exactly once, whatever Spark does with its tasks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import mirrorq
from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from pyspark_mirrorq.options import parse
from pyspark_mirrorq.staged_commit import commit
from pyspark_mirrorq.staged_rows import buffers
from pyspark_mirrorq.writer import BatchWriter, check_columns

from .conftest import patiently


def bodies(queue: MirroredQueue, first: int = 1) -> list[bytes]:
    """All bodies from a sequence on, in order of sequence."""
    last = bulk.extent(queue, 120).next_sequence - 1
    if last < first:
        return []
    return [body for batch in bulk.reader(queue).read(first, last) for body in batch.bodies()]


def write(frame: DataFrame, client: Client, queue: MirroredQueue | str, **options: object) -> None:
    """Append a frame to a queue."""
    name = queue if isinstance(queue, str) else queue.name
    writer = frame.write.format("mirrorq").mode("append").option("queue", name)
    writer = writer.option("endpoints", ",".join(client.endpoints))
    writer.options(**{one: str(value) for one, value in options.items()}).save()


def test_rows_with_unique_keys_are_stored_once(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """Over jobs, and beside puts; the other columns come along."""
    orders.put(b"by hand", unique="id-3").result(120)
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) AS value",
        "concat('id-', id) AS unique",
        "map('n', CAST(id AS STRING)) AS headers",
        "CAST(id AS STRING) AS message_id",
    )
    for _ in range(2):
        write(frame, client, orders)
    found = {message.body: message for message in orders.browse(count_max=2000)}
    wanted = [b"%d" % number for number in range(1000) if number != 3]
    assert sorted(found) == sorted([b"by hand", *wanted])
    assert orders.qsize() == 1000
    assert (found[b"7"].headers, found[b"7"].message_id) == ({"n": "7"}, "7")
    with pytest.raises(PySparkException, match="column unique is null in 1 of"):
        write(spark.sql("SELECT 'a' AS value, CAST(NULL AS STRING) AS unique"), client, orders)


@pytest.mark.smoke
def test_each_row_is_one_message_with_its_properties(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """Strings and binaries are bodies; headers, message id and key come along."""
    write(spark.range(1000).selectExpr("CAST(id AS STRING) AS value"), client, orders)
    assert sorted(map(int, bodies(orders))) == list(range(1000))
    orders.purge()
    frame = spark.createDataFrame(
        [(b"a", {"n": "1"}, "id-1", "k", "replies"), (b"b", None, None, None, None)],
        "value binary, headers map<string,string>, message_id string, key string, reply_to string",
    )
    write(frame, client, orders)
    found = {message.body: message for message in orders.get_many(2, 120)}
    while len(found) < 2:
        found |= {message.body: message for message in orders.get_many(2, 120)}
    assert found[b"a"].headers == {"n": "1"}
    assert (found[b"a"].message_id, found[b"a"].key) == ("id-1", "k")
    assert (found[b"a"].reply_to, found[b"a"].content_type) == ("replies", None)
    assert (found[b"b"].headers, found[b"b"].message_id) == ({}, None)


@pytest.mark.parametrize(
    ("values", "start", "count"),
    [
        ([b"a", b"bc", b"", b"def"], 0, 4),
        ([b"a", b"bc", b"", b"def"], 1, 2),
        ([b"a", b"bc", b"", b"def"], 3, 1),
        ([b"", b""], 0, 2),
        ([b""], 0, 1),
    ],
)
@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_string()])
def test_bodies_are_cut_out_of_an_arrays_buffers(
    values: list[bytes], start: int, count: int, kind: pa.DataType
) -> None:
    """Also of a slice, of empty bodies, and of what is no binary array yet."""
    given = [value if kind == pa.binary() else value.decode() for value in values]
    offsets, data = buffers(pa.array(given, kind).slice(start, count).cast(pa.binary()))
    ends = offsets.cast("B").cast("i")
    found = [bytes(data[low:high]) for low, high in pairwise(ends)]
    assert found == values[start : start + count]


def test_a_transaction_is_written_once_however_often_it_is_asked(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """txnAppId and txnVersion as Delta's: a version that is committed is not written again."""
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    for version in (3, 3, 4, 3):
        write(frame, client, orders, txnAppId="nightly", txnVersion=version)
    assert len(bodies(orders)) == 20


def test_a_version_that_is_left_out_is_told(
    client: Client, orders: MirroredQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A query with a new checkpoint would lose its first batches in silence."""
    options = parse({"endpoints": ",".join(client.endpoints), "queue": orders.name})
    for body in (b"1", b"2"):
        with bulk.staged(client, "hourly", 0, orders.name, run=body.decode()) as staged:
            attempt = staged.attempt(0, 0)
            attempt.put(body)
            commit(options, [attempt.finish(120)])
    assert bodies(orders) == [b"1"]
    assert "txnAppId 'hourly' has committed version 0 before" in caplog.text


def test_a_task_that_fails_and_is_tried_again_writes_once(
    spark: SparkSession, orders: MirroredQueue, client: Client, tmp_path: Path
) -> None:
    """A first attempt dies after it has staged rows; the second writes all of them, once."""

    def fail_once(rows: object) -> object:
        for count, row in enumerate(rows):  # type: ignore[arg-type,var-annotated]
            context = TaskContext.get()
            if context.attemptNumber() == 0 and context.partitionId() == 1 and count == 400:
                raise RuntimeError("the first attempt fails")
            yield row

    numbers = spark.sparkContext.parallelize(range(1000), 2).mapPartitions(fail_once)
    write(numbers.map(lambda n: (str(n),)).toDF("value string"), client, orders)
    assert sorted(map(int, bodies(orders))) == list(range(1000))


def test_a_job_that_fails_shows_nothing(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """When one partition fails for good, the rows of the others never show."""
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "IF(id = 90, raise_error('no such row'), CAST(id AS STRING)) AS value"
    )
    with pytest.raises(PySparkException, match="no such row"):
        write(frame, client, orders)
    assert bodies(orders) == []


def test_a_stream_writes_each_batch_once(
    spark: SparkSession, orders: MirroredQueue, client: Client, tmp_path: Path
) -> None:
    """A stream is restarted from its checkpoint: nothing is missing, nothing twice."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        stream = spark.readStream.format("text").load(str(source)).writeStream
        stream = stream.format("mirrorq").option("queue", orders.name)
        stream = stream.option("endpoints", ",".join(client.endpoints)).queryName("lines")
        stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        patiently(stream.start)

    (source / "one").write_text("a\nb\n")
    run()
    (source / "two").write_text("c\n")
    run()
    assert sorted(bodies(orders)) == [b"a", b"b", b"c"]
    # The last commit record is lost: Spark runs that batch again.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    assert sorted(bodies(orders)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("body string", "column value is missing"),
        ("value int", "column value is of type int"),
        ("value string, headers string", "column headers is of type string"),
        ("value string, colour string", "column 'colour' cannot be written"),
    ],
)
def test_a_wrong_column_is_named(spark: SparkSession, columns: str, says: str) -> None:
    """What cannot be a message is told before a task starts."""
    options = parse({"endpoints": "tcp://127.0.0.1:1", "queue": "x"})
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(mirrorq.ConfigError, match=says):
        check_columns(options, schema, overwrite=False)


def test_wrong_writes_are_told_in_the_drivers_message(
    spark: SparkSession, orders: MirroredQueue, client: Client
) -> None:
    """A queue that does not exist, an overwrite, a null body, half a transaction."""
    frame = spark.createDataFrame([("a",), (None,)], "value string")
    with pytest.raises(PySparkException, match="no queue is named 'none-such'"):
        write(frame, client, "none-such")
    with pytest.raises(PySparkException, match="column value is null in 1 of"):
        write(frame.coalesce(1), client, orders)
    assert bodies(orders) == []
    overwriting = frame.write.format("mirrorq").mode("overwrite").option("queue", orders.name)
    with pytest.raises(PySparkException, match=r'mode\("append"\)'):
        overwriting.option("endpoints", ",".join(client.endpoints)).save()
    given = {"endpoints": ",".join(client.endpoints), "queue": orders.name, "txnAppId": "x"}
    with pytest.raises(mirrorq.ConfigError, match="go together"):
        BatchWriter(parse(given))
