"""Places in queues' views, kept for nodes lost a moment ago.

With `ha-mode: exactly` another node replaces a lost mirror. A merely restarted process would come
back to a queue which has moved on, after the making of a needless whole copy. So its place is kept
for a while, and the queue goes on with the rest. The memory is the catalog leader's own: a new
leader replaces missing members at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.protocol.identities import MemberId


class GracePeriods:
    """Recent members of each queue."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._until_ms: dict[int, dict[str, int]] = {}
        """Queue id -> node -> end of the time for which its place is kept."""

    def clear(self) -> None:
        self._until_ms.clear()

    def record_absent(self, now_ms: int, queue: QueueRecord, running: Iterable[MemberId]) -> None:
        """Remember members which do not run; forget members which are back."""
        up = [(member.node, member.store) for member in running]
        names = [member.id.node for member in queue.view.members]
        old = self._until_ms.pop(queue.id, {})
        kept = {node: until for node, until in old.items() if now_ms < until or node in names}
        for member in queue.view.members:
            if (member.id.node, member.id.store) in up:
                kept.pop(member.id.node, None)
            else:
                kept.setdefault(member.id.node, now_ms + self._keep_ms)
        if kept:
            self._until_ms[queue.id] = kept

    def forget(self, queue_id: int) -> None:
        """The queue is no more."""
        self._until_ms.pop(queue_id, None)

    def lost(self, now_ms: int, queue_id: int) -> tuple[str, ...]:
        """Return the nodes with places kept now."""
        kept = self._until_ms.get(queue_id, {})
        return tuple(node for node, until_ms in kept.items() if now_ms < until_ms)

    def ends_ms(self, now_ms: int, queue_id: int) -> int | None:
        """Return when the next kept place is given up, None when no place is kept."""
        kept = self._until_ms.get(queue_id, {})
        return min((until_ms for until_ms in kept.values() if now_ms < until_ms), default=None)
