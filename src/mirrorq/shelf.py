"""Where frames are read from: the store, and memory for what is written behind.

With `durability: replicated` a message may be handed out before it is on this disk. Frames
reach the disk in the order of their sequences, so what is not there yet follows what is.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from mirrorq.replica import Replica
from mirrorq.store import Store

__all__ = ["Shelf"]


@frozen
class Shelf:
    """Reads frames of a node's queues. Used on the node thread only."""

    store: Store
    replicas: Mapping[int, Replica]

    def read(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read as `Store.read` does, from memory too.

        Raises:
            StoreCorrupt: A frame is not as it was written.
        """
        replica = self.replicas.get(queue_id)
        behind = replica.ring.behind(first, last) if replica is not None else []
        if not behind:
            return self.store.read(queue_id, first, last, bytes_max)
        edge = behind[0].header.first_sequence
        found = self.store.read(queue_id, first, edge - 1, bytes_max) if first < edge else []
        size = sum(map(len, found))
        for entry in behind:
            if size >= bytes_max and found:
                break
            found.append(memoryview(entry.frame))
            size += len(entry.frame)
        return found
