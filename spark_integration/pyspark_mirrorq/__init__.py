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
    from pyspark.sql import SparkSession

__all__ = ["register"]

try:
    from pyspark_mirrorq.source import DefaultSource

    __all__ += ["DefaultSource"]
except ImportError:
    # Without PySpark or mirrorq there is nothing to register.
    pass


def register(spark: SparkSession) -> None:
    """Make `format("mirrorq")` known to a session that has not found it by itself.

    Raises:
        ImportError: PySpark 4.0 or later, PyArrow or mirrorq is not installed here.
    """
    from pyspark_mirrorq.source import DefaultSource

    spark.dataSource.register(DefaultSource)
