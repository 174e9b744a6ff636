"""The data source: what Spark finds behind `format("mirrorq")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_mirrorq.columns import checked_columns, schema_of
from pyspark_mirrorq.options import Options, parse
from pyspark_mirrorq.snapshot import snapshot
from pyspark_mirrorq.stream_reader import QueueStream
from pyspark_mirrorq.stretches import Stretch, read_stretch
from pyspark_mirrorq.writer import BatchWriter, StreamWriter, check_columns

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]
    """mirrorq queues as DataFrames. Spark registers it under the name `mirrorq`."""

    @classmethod
    def name(cls) -> str:
        return "mirrorq"

    def schema(self) -> StructType:
        """The columns that go with the options."""
        return schema_of(parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch: a snapshot, taken when Spark plans the job."""
        options = parse(self.options)
        return SnapshotReader(options, checked_columns(options, schema))


    def streamReader(self, schema: StructType) -> QueueStream:  # noqa: N802
        """Streaming: what Spark has committed is acked, or with mode = browse nothing is."""
        options = parse(self.options)
        return QueueStream(options, checked_columns(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Batch write, exactly once."""
        options = parse(self.options)
        check_columns(options, schema, overwrite)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Streaming write, exactly once: a micro-batch is a version."""
        options = parse(self.options)
        check_columns(options, schema, overwrite=False)
        return StreamWriter(options, schema)


class SnapshotReader(DataSourceReader):  # type: ignore[misc]
    """Reads what lived when the job was planned, from all copies, taking nothing."""

    # pushFilters is left alone: from Spark 4.1 to 4.3 a pushed filter leaks into other scans of
    # the same DataFrame.

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        return snapshot(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Of an empty snapshot Spark asks for one partition that holds nothing.
        if not isinstance(partition, Stretch):
            return iter(())
        return read_stretch(partition, self._options, self._columns)
