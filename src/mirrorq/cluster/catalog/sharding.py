"""What the catalog knows of sharded queues: which rings each is made of. Pure.

One command makes a sharded queue with all its rings, and one deletes them, so neither is ever
half done. A ring can still be lost alone, with its last copy (`forget_node(force=True)`, or a queue
that is not durable after a stop of its nodes): its place is empty then, until the next declaration
fills it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from mirrorq.cluster.catalog.records import arguments_differing
from mirrorq.protocol.commands import DeclareQueue, DeclareShards
from mirrorq.protocol.shard_names import shard_name


@frozen
class ShardedRecord:
    """One sharded queue. Its id is of the same numbers as those of queues."""

    id: int
    name: str
    durable: bool
    rings: tuple[int, ...]
    """Ids of the queues that are its shards, by their number."""
    is_ending: bool = False
    """It is being deleted: some of its rings still have messages for other queues."""
    arguments: str = ""
    """With which it was declared; each of its rings has them."""

    def names(self) -> tuple[str, ...]:
        """Of its shards."""
        return tuple(shard_name(self.name, shard) for shard in range(len(self.rings)))


class Sharding:
    """The sharded queues of one catalog, and which ring is a shard of which. The catalog's own:
    changed only by commands of the log, the same on every node."""

    def __init__(self, records: Iterable[ShardedRecord] = ()) -> None:
        self._records = {record.id: record for record in records}
        self._ids = {record.name: record.id for record in self._records.values()}
        self._homes = {ring: each.id for each in self._records.values() for ring in each.rings}

    def records(self) -> tuple[ShardedRecord, ...]:
        """Return all, in order of id."""
        return tuple(self._records[queue_id] for queue_id in sorted(self._records))

    def get(self, queue_id: int) -> ShardedRecord | None:
        """Return the sharded queue of this id, or None."""
        return self._records.get(queue_id)

    def named(self, name: str) -> ShardedRecord | None:
        """Return the sharded queue of this name, or None."""
        queue_id = self._ids.get(name)
        return None if queue_id is None else self._records[queue_id]

    def home_of(self, ring: int) -> ShardedRecord | None:
        """Return the queue of which a ring is a shard, or None."""
        queue_id = self._homes.get(ring)
        return None if queue_id is None else self._records[queue_id]

    def put(self, record: ShardedRecord) -> None:
        """Make a sharded queue, or replace what is known of it."""
        self._records[record.id] = record
        self._ids[record.name] = record.id
        self._homes.update(dict.fromkeys(record.rings, record.id))

    def end(self, record: ShardedRecord) -> None:
        """It is being deleted."""
        self.put(evolve(record, is_ending=True))

    def lose(self, ring: int, left: Iterable[int]) -> ShardedRecord | None:
        """A ring is no more; return its queue when that was the last one of it.

        Args:
            left: ids of all queues that there are.
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
    """Return in words how a declaration differs from a sharded queue, "" when it does not.

    One that says nothing of shards takes the queue as it is.
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
