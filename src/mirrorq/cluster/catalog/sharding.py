"""Sharded queues in the catalog, and the rings of each. Pure.

One command makes a sharded queue with all its rings, and one command deletes them, so neither is
ever half done. A ring can be lost alone, with its last copy (`forget_node(force=True)`, or a
transient queue after a stop of its nodes). Then its place is empty until the next declaration fills
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from mirrorq.cluster.catalog.records import arguments_differing
from mirrorq.protocol.commands import DeclareQueue, DeclareShards
from mirrorq.protocol.shard_names import shard_name


@frozen
class ShardedRecord:
    """One sharded queue. Its id comes from the same sequence as queue ids."""

    id: int
    name: str
    durable: bool
    rings: tuple[int, ...]
    """Ids of the shards' queues, by shard number."""
    is_ending: bool = False
    """The queue is being deleted: some rings still have messages for other queues."""
    arguments: str = ""
    """Arguments of the declaration; each ring has the same."""

    def names(self) -> tuple[str, ...]:
        """Return the names of the shards."""
        return tuple(shard_name(self.name, shard) for shard in range(len(self.rings)))


class Sharding:
    """The sharded queues of one catalog, and the sharded queue of each ring. Owned by the catalog:
    only commands of the log change it, the same on every node."""

    def __init__(self) -> None:
        self._records: dict[int, ShardedRecord] = {}
        self._ids: dict[str, int] = {}
        self._homes: dict[int, int] = {}

    def image(self) -> tuple[ShardedRecord, ...]:
        """Return all present records, for a snapshot."""
        return tuple(self._records.values())

    def records(self) -> tuple[ShardedRecord, ...]:
        """Return all, in order of id."""
        return tuple(self._records[queue_id] for queue_id in sorted(self._records))

    def get(self, queue_id: int) -> ShardedRecord | None:
        """Return the sharded queue with the id, or None."""
        return self._records.get(queue_id)

    def named(self, name: str) -> ShardedRecord | None:
        """Return the sharded queue with the name, or None."""
        queue_id = self._ids.get(name)
        return None if queue_id is None else self._records[queue_id]

    def home_of(self, ring: int) -> ShardedRecord | None:
        """Return the queue of which a ring is a shard, or None."""
        queue_id = self._homes.get(ring)
        return None if queue_id is None else self._records[queue_id]

    def put(self, record: ShardedRecord) -> None:
        """Make a sharded queue, or replace its record."""
        self._records[record.id] = record
        self._ids[record.name] = record.id
        self._homes.update(dict.fromkeys(record.rings, record.id))

    def mark_deleted(self, record: ShardedRecord) -> None:
        """Mark a sharded queue as being deleted."""
        self.put(evolve(record, is_ending=True))

    def lose(self, ring: int, left: Iterable[int]) -> ShardedRecord | None:
        """Note a lost ring; return its sharded queue if no other ring is left.

        Args:
            left: ids of all existing queues.
        """
        record = self.home_of(ring)
        if record is None:
            return None
        self._homes.pop(ring)
        if any(other in left for other in record.rings):
            return None
        del self._records[record.id]
        del self._ids[record.name]
        return record


def difference(known: ShardedRecord, command: DeclareQueue | DeclareShards) -> str:
    """Return in words how a declaration differs from a sharded queue, "" without a difference.

    A declaration without `shards` takes the queue as found.
    """
    if known.is_ending:
        return (
            f"queue {known.name!r} is being deleted and still has messages for other queues: "
            "declare it again when they have arrived"
        )
    parts = list(_parts(known, command))
    if not parts:
        return ""
    return (
        f"queue {known.name!r} exists with {', '.join(parts)}: declare it with equal properties, "
        "or passive=True, or under another name"
    )


def _parts(known: ShardedRecord, command: DeclareQueue | DeclareShards) -> Iterator[str]:
    if isinstance(command, DeclareQueue):
        if command.exclusive:
            yield f"shards={len(known.rings)}, not exclusive=True"
        if command.auto_delete:
            yield f"shards={len(known.rings)}, not auto_delete=True"
    elif command.shards != len(known.rings):
        yield f"shards={len(known.rings)}, not {command.shards}"
    if command.durable != known.durable:
        yield f"durable={known.durable}, not {command.durable}"
    yield from arguments_differing(known.arguments, command.arguments)
