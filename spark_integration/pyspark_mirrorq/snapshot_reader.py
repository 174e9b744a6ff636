"""Batch reads: planned by the driver, read by workers, from all copies, taking nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_mirrorq.options import Options, check_batch
from pyspark_mirrorq.snapshot import snapshot
from pyspark_mirrorq.stretches import Stretch, read_stretch
from pyspark_mirrorq.workers import Sent

__all__ = ["SnapshotReader"]


class SnapshotReader(Sent, DataSourceReader):  # type: ignore[misc]
    """Reads what lived when the job was planned, from all copies, taking nothing."""

    # pushFilters is left alone: from Spark 4.1 to 4.3 a pushed filter leaks into other scans of
    # the same DataFrame.

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        check_batch(options)
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        return snapshot(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Of an empty snapshot Spark asks for one partition that holds nothing.
        if not isinstance(partition, Stretch):
            return iter(())
        return read_stretch(partition, self._options, self._columns)
