"""How many queues may take a member in at a time. Pure.

When a node comes back every queue wants it at once, and each that takes it in is a change of view
on all its nodes, a transfer, and another change when it is counted in. A thousand of these in one
step keep nodes busy for so long that the others take them for dead, and then there are more of
them. So a few begin, and the next a moment later; a cluster of few queues never notices.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

BEGIN_MAX = 16
"""Queues that take members in at once."""
PAUSE_MS = 200
"""Before the next may: 80 a second are what three nodes on two slow cores keep up with."""


@define
class JoinThrottle:
    """Whose turn it is, as the catalog's leader has it."""

    _begun_ms: int = -PAUSE_MS
    _left: int = BEGIN_MAX
    _waiting: dict[int, None] = field(factory=dict)

    def may_begin(self, now_ms: int, queue_id: int) -> bool:
        """Whether this queue may take members in now; if not, it is due later."""
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
        """Queues whose turn it is."""
        if not self._waiting or now_ms < self._begun_ms + PAUSE_MS:
            return ()
        due = list(self._waiting)[:BEGIN_MAX]
        for queue_id in due:
            del self._waiting[queue_id]
        return due
