"""The data source: what Spark finds behind `format("mirrorq")`.

Spark begins a process of its own for each step of a query, and waits 10 seconds at most for some:
so what only one step needs, the client above all, is imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_mirrorq.columns import checked_columns, schema_of
from pyspark_mirrorq.options import parse

if TYPE_CHECKING:
    from pyspark_mirrorq.snapshot_reader import SnapshotReader
    from pyspark_mirrorq.stream_reader import QueueStream
    from pyspark_mirrorq.writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]
    """mirrorq queues as DataFrames. Spark registers it under the name `mirrorq`."""

    @classmethod
    def name(cls) -> str:
        return "mirrorq"

    def schema(self) -> StructType:
        """The columns that go with the options."""
        return schema_of(parse(self.options))

    def reader(self, schema: StructType) -> SnapshotReader:
        """Batch: a snapshot, taken when Spark plans the job."""
        from pyspark_mirrorq.snapshot_reader import SnapshotReader

        options = parse(self.options)
        return SnapshotReader(options, checked_columns(options, schema))

    def streamReader(self, schema: StructType) -> QueueStream:  # noqa: N802
        """Streaming: option mode tells whether what Spark has committed is acked."""
        from pyspark_mirrorq.stream_reader import QueueStream

        options = parse(self.options)
        return QueueStream(options, checked_columns(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Batch write, exactly once."""
        from pyspark_mirrorq.writer import BatchWriter, check_columns

        options = parse(self.options)
        check_columns(options, schema, overwrite)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Streaming write, exactly once: a micro-batch is a version."""
        from pyspark_mirrorq.writer import StreamWriter, check_columns

        options = parse(self.options)
        check_columns(options, schema, overwrite=False)
        return StreamWriter(options, schema)
