"""Limit of queues which take a member in at the same time. Pure.

When a node comes back every queue wants the node at once. Each join is a change of view on all
nodes of the queue, a transfer, and a second change when the joiner is in sync. A thousand joins in
one step keep nodes busy for so long as to look dead, which brings further joins. So a few queues
begin, and more a moment later; a cluster of few queues never notices.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from attrs import define, field

BEGIN_MAX = 16
"""Queues which take members in at once."""
PAUSE_MS = 100
"""Pause before the next batch: three nodes on two slow cores keep up with 160 a second."""


@define
class JoinThrottle:
    """Turns of the queues, kept at the catalog's leader."""

    _begun_ms: int = -PAUSE_MS
    _left: int = BEGIN_MAX
    _waiting: dict[int, None] = field(factory=dict)

    def may_begin(self, now_ms: int, queue_id: int) -> bool:
        """Return true if the queue may take members in now; else the queue is due later."""
        if now_ms >= self._begun_ms + PAUSE_MS:
            self._begun_ms, self._left = now_ms, BEGIN_MAX
        if self._left:
            self._left -= 1
            self._waiting.pop(queue_id, None)
            return True
        self._waiting[queue_id] = None
        return False

    @property
    def wake_at_ms(self) -> int | None:
        """When queues are due; None: none waits."""
        return self._begun_ms + PAUSE_MS if self._waiting else None

    def take_due(self, now_ms: int) -> Iterable[int]:
        """Return, once, the queues with a turn now."""
        if not self._waiting or now_ms < self._begun_ms + PAUSE_MS:
            return ()
        due = list(islice(self._waiting, BEGIN_MAX))
        for queue_id in due:
            del self._waiting[queue_id]
        return due
