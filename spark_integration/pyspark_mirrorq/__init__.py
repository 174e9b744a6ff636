"""mirrorq for Apache Spark: `format("mirrorq")`.

    orders = spark.read.format("mirrorq").option("endpoints", …).option("queue", "orders").load()

Spark finds this module by its name when it is installed as a package, and registers the format;
where it is not (an editable install of another kind), call `register(spark)` once. docs/spark.md
tells the options and what they promise.

Importing this module never raises: Spark imports every module named `pyspark_*` when it looks for
sources, and one that raises would hide all of them. What is missing shows when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from pyspark_mirrorq.draining import Drain

__all__ = ["drain", "register"]

try:
    from pyspark_mirrorq.source import DefaultSource

    __all__ += ["DefaultSource"]
except ImportError:
    # Without PySpark or mirrorq there is nothing to register.
    pass


def register(spark: SparkSession) -> None:
    """Make `format("mirrorq")` known to a session that has not found it by itself.

    Raises:
        ImportError: PySpark 4.0 or later, PyArrow or mirrorq is not installed here, or not for the
            Python that Spark runs.
    """
    from pyspark_mirrorq.source import DefaultSource
    from pyspark_mirrorq.workers import check_python

    check_python(spark)
    spark.dataSource.register(DefaultSource)


def drain(
    spark: SparkSession,
    endpoints: str | Sequence[str],
    queue: str,
    limit: int | None = None,
    **options: object,
) -> Drain:
    """Take messages for one job: leased to it, acked when the block ends well.

        with pyspark_mirrorq.drain(spark, endpoints, "orders", limit=1_000_000) as drained:
            drained.df.write.parquet(path)
        print(drained.acked)

    What is ready when the block begins is leased to this process: nobody else gets it for as long
    as this process lives. When the block raises, or this process ends, it goes back to its place.

    Args:
        endpoints: of nodes, as a list or joined by commas.
        limit: at most so many messages; None: all that are ready.
        options: as of the batch read: includeHeaders, columns, minPartitions, keys, …

    Raises:
        mirrorq.MirrorQError: on entering: the cluster, the queue or an option is not as it should
            be. On leaving: the lease was lost before the job was done; what it says to come again
            was in the job's input.
    """
    from pyspark_mirrorq.draining import Drain

    listed = endpoints if isinstance(endpoints, str) else ",".join(endpoints)
    given = {name: str(value) for name, value in options.items()}
    return Drain(spark, {**given, "endpoints": listed, "queue": queue}, limit)
