"""Places in queues' views that are kept for nodes which were lost a moment ago.

With `ha-mode: exactly` a lost mirror is replaced by another node. A process that is only
restarted would then come back to a queue that has moved on, and a whole copy would have been
made for nothing: so its place is kept for a while, and the queue goes on with the rest. The
catalog's leader remembers this for itself; a new leader replaces at once what it finds gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.protocol.identities import MemberId


class GracePeriods:
    """Who was a member until lately, by queue."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._until_ms: dict[int, dict[str, int]] = {}
        """Queue id -> node -> until when its place is kept."""

    def clear(self) -> None:
        self._until_ms.clear()

    def note(self, now_ms: int, queue: QueueRecord, running: Iterable[MemberId]) -> None:
        """Remember which members do not run; forget those that are back."""
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
        """Return the nodes whose places are kept now."""
        kept = self._until_ms.get(queue_id, {})
        return tuple(node for node, until_ms in kept.items() if now_ms < until_ms)

    def ends_ms(self, now_ms: int, queue_id: int) -> int | None:
        """Return when the next of them is given up, None when none is kept."""
        kept = self._until_ms.get(queue_id, {})
        return min((until_ms for until_ms in kept.values() if now_ms < until_ms), default=None)
