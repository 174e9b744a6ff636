"""What is wrong stands in the driver's message: by Spark's own ways, of each kind of query.

That each option, column and offset is refused by name is tested without Spark; here, that the words
come through. Each case is a query of its own: `make spark-cluster` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client

from .conftest import patiently

pytestmark = pytest.mark.soak

READING = [
    ({"colour": "red"}, "knows no option 'colour': it has claimTimeout, columns, endingOffsets"),
    ({"startingOffsets": "2"}, "2 message.*sequences 2 to 3.*set failOnDataLoss to false"),
]
BATCH = [
    ({"mode": "drain"}, "option mode is drain, and a batch read takes nothing"),
    ({"startingOffsets": "5", "endingOffsets": "4"}, "endingOffsets is 4, before startingOffsets"),
    ({"sequences": '{"zz": "1-2"}'}, "option sequences names 'zz', which is not read"),
    ({"sequences": "4-5", "endingOffsets": "5"}, "sequences and endingOffsets exclude each other"),
]
STREAM = ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0'")
NO_MODE = ({}, 'option mode is missing: .*"drain".*"browse"')


@pytest.fixture
def given(orders: MirroredQueue, client: Client) -> Iterator[dict[str, str]]:
    """Options that are right, of a queue whose first three messages are gone."""
    orders.put_many([b"x"] * 5).result(120)
    orders.ack_many([orders.get(timeout=120) for _ in range(3)]).result(120)
    yield {"endpoints": ",".join(client.endpoints), "queue": orders.name}
    # Whatever was asked for in vain has taken nothing and written nothing.
    assert bulk.extent(orders, 120).messages == 2


def refused(run: Callable[[], object], says: str) -> None:
    with pytest.raises(PySparkException, match=f"(?s){says}"):
        run()


@pytest.mark.parametrize(("options", "says"), [*READING, *BATCH])
def test_of_a_batch_read(
    spark: SparkSession, given: dict[str, str], options: dict[str, str], says: str
) -> None:
    reader = spark.read.format("mirrorq").options(**given | options)
    refused(lambda: reader.load().collect(), says)


DRAINS = [({"mode": "drain"} | options, says) for options, says in (*READING, STREAM)]


@pytest.mark.parametrize(("options", "says"), [*DRAINS, NO_MODE])
def test_of_a_stream(
    spark: SparkSession,
    given: dict[str, str],
    tmp_path: Path,
    options: dict[str, str],
    says: str,
) -> None:
    def start() -> StreamingQuery:
        reader = spark.readStream.format("mirrorq").options(**given | options)
        writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path)).start()

    refused(lambda: patiently(start), says)


WRITES = [
    ({"queue": "none-such"}, "'x' AS value", "option queue: no queue is named 'none-such'"),
    ({}, "CAST(NULL AS STRING) AS value", "column value is null in 1 of 1 rows"),
]


@pytest.mark.parametrize(("options", "columns", "says"), WRITES)
def test_of_a_batch_write(
    spark: SparkSession, given: dict[str, str], options: dict[str, str], columns: str, says: str
) -> None:
    writer = spark.range(1).selectExpr(*columns.split(", ")).write.format("mirrorq")
    refused(lambda: writer.mode("append").options(**given | options).save(), says)


@pytest.mark.parametrize(("options", "columns", "says"), WRITES)
def test_of_a_streams_write(
    spark: SparkSession,
    given: dict[str, str],
    tmp_path: Path,
    options: dict[str, str],
    columns: str,
    says: str,
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "rows").write_text("1\n")

    def start() -> StreamingQuery:
        rows: DataFrame = spark.readStream.format("text").load(str(source))
        rows = rows.selectExpr("CAST(value AS BIGINT) AS id").selectExpr(*columns.split(", "))
        writer = rows.writeStream.format("mirrorq").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.options(**given | options).start()

    refused(lambda: patiently(start), says)
