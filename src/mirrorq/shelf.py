"""Where frames are read from: the store, and memory for what is written behind.

With `durability: replicated` a message may be handed out before it is on this disk. Frames
reach the disk in the order of their sequences, so what is not there yet follows what is.

Bodies of messages that were staged lie under the sequences that they had then (`staging`): they
are read there, and stamped with those that they have now, and with the commit's time.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from mirrorq.errors import StoreCorrupt
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
        """Read messages that live, from memory too, wherever their bodies lie: at least one.

        Raises:
            StoreCorrupt: The first frame is not as it was written, or is not there. Its span is
                of the sequences under which the bodies lie.
        """
        replica = self.replicas.get(queue_id)
        if replica is None or not replica.state.staging.origins:
            return self._joined(queue_id, first, last, bytes_max, 0)
        found: list[memoryview] = []
        while first <= last and bytes_max > 0:
            end, shift = replica.state.staging.piece(first, last)
            try:
                read = self._joined(queue_id, first - shift, end - shift, bytes_max, shift)
            except StoreCorrupt:
                if found:
                    return found
                raise
            if shift:
                stamp_us = replica.state.stamps.at(first) * 1000
                moved = (first - shift, end - shift, shift, stamp_us)
                read = [memoryview(frames.shifted(frame, *moved)) for frame in read]
            bytes_max -= sum(map(len, read))
            found += read
            reached = frames.span(read[-1])[1] + shift
            if reached < end:
                return found
            first = end + 1
        return found

    def _joined(
        self, queue_id: int, first: int, last: int, bytes_max: int, shift: int
    ) -> list[memoryview]:
        """As `stored`, of bodies that all are to be there: those before the first hole.

        Raises:
            StoreCorrupt: there is nothing before it.
        """
        try:
            found = self.stored(queue_id, first, last, bytes_max)
        except StoreCorrupt as error:
            if error.span is not None:
                error.behind = min(max(error.span[1], first), last) + 1 + shift
            raise
        place = first
        for index, frame in enumerate(found):
            low, high = frames.span(frame)
            if low > place:
                del found[index:]
                last = low - 1
                break
            place = high + 1
        if not found:
            gap = StoreCorrupt(f"messages {first} to {last} of queue {queue_id} are not there")
            gap.span, gap.behind = (first, last), last + 1 + shift
            raise gap
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
