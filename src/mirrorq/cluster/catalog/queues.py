"""The rings of the catalog, shards too: by id and by name, with their views."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.cluster.catalog.load_counts import LoadCounts
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.catalog.size import Count


class Queues:
    """All queues of one catalog, by id. Owned by the catalog: only commands of the log change it,
    the same on every node."""

    def __init__(self, records: Iterable[QueueRecord] = (), next_id: int = 1) -> None:
        self.records: dict[int, QueueRecord] = {}
        """Records of queues by id, in order of id."""
        self.load_counts = LoadCounts()
        """Load of each node over all queues."""
        self.count = Count()
        self.next_id = next_id
        """Id of the next queue: never used before."""
        self._ids: dict[str, int] = {}
        for record in records:
            self.enter(record)

    def named(self, name: str) -> QueueRecord | None:
        """Return the queue with the name, or None."""
        queue_id = self._ids.get(name)
        return None if queue_id is None else self.records[queue_id]

    def on_node(self, node: str) -> tuple[QueueRecord, ...]:
        """Return the queues with the node as member, in order of id."""
        return tuple(self.records[one] for one in sorted(self.load_counts.copies.get(node, ())))

    def owned_on(self, node: str) -> tuple[QueueRecord, ...]:
        """Return the exclusive queues with an owner on the node, in order of id."""
        return tuple(self.records[one] for one in sorted(self.load_counts.owned.get(node, ())))

    def give_id(self) -> int:
        """Return the id of a new queue."""
        self.next_id += 1
        return self.next_id - 1

    def enter(self, record: QueueRecord) -> None:
        """A queue is new."""
        self.load_counts.enter(record)
        self.count.add(record)
        self.records[record.id] = record
        self._ids[record.name] = record.id

    def change_view(self, before: QueueRecord, after: QueueRecord) -> None:
        """A queue has another view."""
        self.load_counts.leave(before)
        self.load_counts.enter(after)
        self.put(after)

    def put(self, record: QueueRecord) -> None:
        """Replace a queue's record; the view stays."""
        self.count.remove(self.records[record.id])
        self.count.add(record)
        self.records[record.id] = record

    def remove(self, queue_id: int) -> None:
        """A queue is no more."""
        record = self.records.pop(queue_id)
        del self._ids[record.name]
        self.load_counts.leave(record)
        self.count.remove(record)
