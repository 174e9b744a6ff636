"""Drain: messages leased to one job, acked when it is done.

The driver holds the lease; workers read the leased sequences from any copy, as a batch does. No
ack happens in a task, so a task that is tried again finds what it found before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from pyspark.sql import DataFrame, SparkSession

from mirrorq.client import Client
from mirrorq.errors import AckRefused, ConfigError
from mirrorq.queue import MirroredQueue
from pyspark_mirrorq.cluster import connected, handle_on, label, master_first
from pyspark_mirrorq.options import parse

__all__ = ["Drain"]

ACK_S = 120.0
"""How long the cluster may take to ack what a job has done: a failover fits in."""


class Drain:
    """A context manager; see `pyspark_mirrorq.drain`."""

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], limit: int | None = None
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"limit is {limit}: drain at least 1 message, or give None for all")
        self._spark = spark
        self._given = dict(options)
        self._options = parse(options)
        if len(self._options.queues) != 1:
            raise ConfigError(f"drain one queue at a time, not {self._options.queues}")
        self._limit = limit
        self._client: Client | None = None
        self.acked = 0
        """How many messages were acked; set when the block has ended well."""

    def __enter__(self) -> Drain:
        options = self._options
        with connected(options) as client:
            order = master_first(options, client, options.queues[0])
        self._client = client = connected(options, order)
        try:
            queue = handle_on(client, options.queues[0], options.timeout_s)
            who = label(f"drain of {options.queues[0]}")
            self._lease = queue.lease(self._limit, who, options.timeout_s)
            self.df = self._frame(queue)
        except BaseException:
            client.close()
            raise
        return self

    @property
    def count(self) -> int:
        """How many messages are leased."""
        return self._lease.count

    def _frame(self, queue: MirroredQueue) -> DataFrame:
        ranges = ",".join(f"{first}-{last}" for first, last in self._lease.ranges) or "none"
        reader = self._spark.read.format("mirrorq").options(**self._given)
        return reader.option("sequences", ranges).load()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._client is not None
        try:
            if kind is None:
                self.acked = self._ack()
            elif not self._client.closed():
                self._lease.give_back(self._options.timeout_s)
        finally:
            # Whatever has not been settled goes back with the connection.
            self._client.close()

    def _ack(self) -> int:
        try:
            return self._lease.ack(ACK_S)
        except AckRefused as error:
            raise AckRefused(
                f"the drain of queue {self._options.queues[0]!r} lost its lease before the job was "
                f"done: {error}. What comes again is in the job's output already: discard that, "
                "or write by sequence so that a second time changes nothing"
            ) from None
