"""A Python source and sink that do nothing: what Spark's own way with Python costs.

The source yields record batches of messages from memory, as a batch or at a pace; the sink drops
what it is given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

__all__ = ["BATCH", "PROCESSES", "SIZE", "Bare"]

SIZE = 100
"""Bytes of a message."""
BATCH = 10_000
"""Messages of one record batch."""
PROCESSES = 2


class Bare(DataSource):  # type: ignore[misc]
    """Record batches from memory."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: object) -> DataSourceReader:
        return BareReader(int(self.options["count"]))

    def streamReader(self, schema: object) -> BareStream:  # noqa: N802
        return BareStream(int(self.options["rate"]))

    def writer(self, schema: object, overwrite: bool) -> BareWriter:
        return BareWriter()

    def streamWriter(self, schema: object, overwrite: bool) -> BareStreamWriter:  # noqa: N802
        return BareStreamWriter()


class Counted(WriterCommitMessage):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self.count = count


class BareWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Drops what it is given."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[Counted | None]) -> None:
        pass

    def abort(self, messages: Sequence[Counted | None]) -> None:
        pass


class BareStreamWriter(  # type: ignore[misc]
    # By rows before Spark 4.1.
    getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
):
    """The same, in each micro-batch."""

    def write(self, iterator: Iterator[object]) -> Counted:
        return Counted(sum(1 for _ in iterator))

    def commit(self, messages: Sequence[Counted | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Sequence[Counted | None], batchId: int) -> None:  # noqa: N803
        pass


class BareReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._count // PROCESSES) for _ in range(PROCESSES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = pa.array([b"x" * SIZE] * BATCH, pa.binary())
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        for _ in range(partition.value // BATCH):
            yield batch


class BareStream(DataSourceStreamReader):  # type: ignore[misc]
    """So many messages a second, from memory."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began = time.time()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"seq": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:  # noqa: N802
        count = int((time.time() - self._began) * self._rate)
        return {"seq": count // BATCH * BATCH}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        count = (end["seq"] - start["seq"]) // BATCH
        parts = [count // PROCESSES + (one < count % PROCESSES) for one in range(PROCESSES)]
        return [InputPartition(one * BATCH) for one in parts if one]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = pa.array([b"x" * SIZE] * BATCH, pa.binary())
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        for _ in range(partition.value // BATCH):
            yield batch

    def commit(self, end: object) -> None:
        pass
