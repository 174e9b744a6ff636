"""Where frames are read from: the store, and memory for what is written behind.

With `durability: replicated` a message may be handed out before it is on this disk. Frames
reach the disk in the order of their sequences, so what is not there yet follows what is.

Bodies of messages that were staged lie under the sequences that they had then (`staging`): they
are read there, and stamped with those that they have now, and with the commit's time.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from mirrorq.replica import Replica
from mirrorq.store import Store
from mirrorq.wire import frames

__all__ = ["Shelf"]


@frozen
class Shelf:
    """Reads frames of a node's queues. Used on the node thread only."""

    store: Store
    replicas: Mapping[int, Replica]

    def read(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read messages as `Store.read` does, from memory too, wherever their bodies lie.

        Raises:
            StoreCorrupt: A frame is not as it was written.
        """
        replica = self.replicas.get(queue_id)
        if replica is None or not replica.state.staging.origins:
            return self.stored(queue_id, first, last, bytes_max)
        found: list[memoryview] = []
        while first <= last and bytes_max > 0:
            end, shift = replica.state.staging.piece(first, last)
            read = self.stored(queue_id, first - shift, end - shift, bytes_max)
            if shift:
                stamp_us = replica.state.stamps.at(first) * 1000
                moved = (first - shift, end - shift, shift, stamp_us)
                read = [memoryview(frames.shifted(frame, *moved)) for frame in read]
            bytes_max -= sum(map(len, read))
            found += read
            first = end + 1
        return found

    def stored(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read as `Store.read` does, from memory too: frames as they were written.

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
