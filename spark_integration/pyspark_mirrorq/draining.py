"""Drain: messages leased to one job, acked when it is done.

The driver holds the lease; workers read the leased sequences from any copy, as a batch does. No
ack happens in a task, so a task that is tried again finds what it found before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from pyspark.sql import DataFrame, SparkSession

from mirrorq import bulk
from mirrorq.bulk.leases import RangeLease
from mirrorq.client.client import Client
from mirrorq.errors import (
    AckRefused,
    ConfigError,
    ConfirmUnknown,
    MirrorQError,
    NoQuorum,
    QueueDown,
    ShutDown,
)
from pyspark_mirrorq.cluster import connected, label, master_first
from pyspark_mirrorq.options import check_drain, parse
from pyspark_mirrorq.shards import parts_of
from pyspark_mirrorq.workers import check_python

__all__ = ["Drain", "acked"]

ACK_S = 120.0
"""How long the cluster may take to ack what a job has done: a failover fits in."""


class Drain:
    """A context manager; see `pyspark_mirrorq.drain`."""

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], limit: int | None = None
    ) -> None:
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"limit is {limit!r}: drain at least 1 message, or give None for all")
        self._spark = spark
        self._given = dict(options)
        self._options = parse(options)
        check_drain(self._options)
        if len(self._options.queues) != 1:
            raise ConfigError(f"drain one queue at a time, not {self._options.queues}")
        self._limit = limit
        self._client: Client | None = None
        self._leases: dict[str, RangeLease] = {}
        """By name of the queue, or of each of its shards."""
        self.acked = 0
        """How many messages were acked; set when the block has ended well."""

    def __enter__(self) -> Drain:
        if self._client is not None and not self._client.is_closed:
            raise ConfigError("this drain has messages already: leave its block first")
        check_python(self._spark)
        options = self._options
        self._leases, self.acked = {}, 0
        with connected(options) as client:
            order = master_first(options, client, options.queues[0])
        self._client = client = connected(options, order)
        try:
            self._take(client)
            self.df = self._frame()
        except BaseException:
            client.close()
            raise
        return self

    @property
    def count(self) -> int:
        """How many messages are leased."""
        return sum(lease.count for lease in self._leases.values())

    def _take(self, client: Client) -> None:
        options = self._options
        who = label(f"drain of {options.queues[0]}")
        for part in parts_of(client, options.queues[0], options.timeout_s):
            left = None if self._limit is None else self._limit - self.count
            if left != 0:
                self._leases[part.name] = bulk.lease(part, left, who, options.timeout_s)

    def _frame(self) -> DataFrame:
        named = {
            name: ",".join(f"{first}-{last}" for first, last in lease.ranges) or "none"
            for name, lease in self._leases.items()
        }
        reader = self._spark.read.format("mirrorq").options(**self._given)
        return reader.option("sequences", json.dumps(named)).load()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._client is not None
        try:
            if kind is None:
                self.acked = acked(self._options.queues[0], self._leases)
            elif not self._client.is_closed:
                for lease in self._leases.values():
                    with suppress(MirrorQError):  # The block's own exception says more.
                        lease.give_back(self._options.timeout_s)
        finally:
            # Whatever has not been settled goes back with the connection.
            self._client.close()


def acked(queue: str, leases: Mapping[str, RangeLease]) -> int:
    """Ack what a job has done; return how many messages.

    Args:
        queue: its name, for errors.
        leases: by name of the queue, or of each of its shards. Each is acked, whatever becomes of
            the others.

    Raises:
        AckRefused: a lease was lost: its messages come again.
        ConfirmUnknown: an ack had no answer: its messages come again, or do not.
    """
    count = 0
    lost: list[str] = []
    unknown: list[str] = []
    for name, lease in leases.items():
        try:
            count += lease.ack(ACK_S)
        except (AckRefused, ShutDown) as error:
            lost.append(f"{name}: {error}")
        except (ConfirmUnknown, NoQuorum, QueueDown) as error:
            unknown.append(f"{name}: {error}")
    advice = (
        "is in the job's output already: discard that, or write by sequence so that a second time "
        "changes nothing"
    )
    if lost:
        raise AckRefused(
            f"the drain of queue {queue!r} lost its lease before the job was done: "
            f"{'; '.join(lost + unknown)}. What comes again {advice}"
        )
    if unknown:
        raise ConfirmUnknown(
            f"the drain of queue {queue!r} got no answer to its ack: "
            f"{'; '.join(unknown)}. The messages may come again. What does {advice}"
        )
    return count
