"""Size of the catalog, counted as records come and go, and its limits. Pure.

Each node keeps the whole catalog in memory, and a joining node receives the whole. The leader
refuses commands above a limit. Each applying node refuses too, as the leader may let several
commands through at once. Views of queues and records of nodes are bounded by the number of nodes,
and are never refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from attrs import define

from mirrorq.protocol import commands

RECORDS_MAX = {
    "queues": 100_000,
    "exchanges": 1_000_000,
    "bindings": 1_000_000,
    "policies": 1_000,
}
"""Each shard is a queue; the limit of bindings is for all exchanges together."""
BYTES_MAX = 128 * 1024 * 1024
"""Limit of bytes for all records of queues, exchanges, bindings and policies together."""


@define
class Count:
    """Number and bytes of the records of one kind."""

    records: int = 0
    bytes: int = 0

    def add(self, record: object) -> None:
        """A record is there from now on."""
        self.records += 1
        self.bytes += len(msgspec.msgpack.encode(record))

    def remove(self, record: object) -> None:
        """A record is there no more."""
        self.records -= 1
        self.bytes -= len(msgspec.msgpack.encode(record))


_MORE = {
    commands.DeclareQueue: ("queues", "delete some, or let them end by the policy key expires"),
    commands.DeclareShards: ("queues", "delete some, or declare fewer shards"),
    commands.DeclareExchange: ("exchanges", "delete some"),
    commands.Bind: ("bindings", "unbind some, or bind with a pattern of a topic exchange"),
    commands.SetPolicy: ("policies", "clear some, or let one pattern serve more queues"),
}


@define
class CatalogSize:
    """Record counts of one catalog."""

    queues: Count
    exchanges: Count
    bindings: Count
    policies: Count

    @property
    def records(self) -> int:
        """Number of records of all kinds."""
        return sum(count.records for count in self._counts())

    def error(self, command: commands.CatalogCommand, *, replaces: bool = False) -> str:
        """Return why there is no room for the command's records, "" if there is room.

        Args:
            replaces: a record of the same name goes.
        """
        if type(command) not in _MORE:
            return ""
        what, remedy = _MORE[type(command)]
        most = RECORDS_MAX[what]
        more = command.shards if isinstance(command, commands.DeclareShards) else 1 - replaces
        known: Count = getattr(self, what)
        if known.records + more > most:
            return (
                f"the catalog has {known.records} {what} and takes {more} more only up to {most}: "
                f"{remedy}"
            )
        size = sum(count.bytes for count in self._counts())
        added = max(more, 1) * len(msgspec.msgpack.encode(command))
        if size + added > BYTES_MAX:
            return (
                f"the catalog takes {size} bytes on each node, and {added} more would be above "
                f"{BYTES_MAX}: {remedy}"
            )
        return ""

    def _counts(self) -> Iterable[Count]:
        return self.queues, self.exchanges, self.bindings, self.policies
