"""A dashboard's history of a cluster: rates, depths, and changes of masters. No I/O.

Rates come from totals that begin anew with another master: a falling total is no rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen

from mirrorq.monitoring.status import QueueStatus

POINTS_MAX = 180
"""Number of remembered looks: three minutes."""
CHANGES_MAX = 100
QUEUES_MAX = 200
"""Limit of queues with points: first queues that need an operator, then by name."""


@frozen
class Point:
    """One look at one queue."""

    ready: int
    unacked: int
    published: float
    """Messages a second since the look before, as the next two."""
    delivered: float
    acked: float


@frozen
class Change:
    """A queue has another master, or a later term of the same."""

    at_ms: int
    """Wall clock."""
    queue: str
    before: str | None
    after: str | None
    epoch: int


@define
class _Seen:
    status: QueueStatus
    points: deque[Point] = field(factory=lambda: deque(maxlen=POINTS_MAX))


class History:
    """Belongs to one thread; returned values never change."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the last look, from 1."""
        self.times_ms: deque[int] = deque(maxlen=POINTS_MAX)
        """Wall clock of each look."""
        self.changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        """Changes of masters, oldest first."""
        self.queue_count = 0
        """Number of queues in the cluster; `queues` has at most QUEUES_MAX."""
        self._queues: dict[str, _Seen] = {}
        self._masters: dict[str, tuple[str | None, int]] = {}
        """Queue -> last running master, and its epoch."""

    def note(self, wall_ms: int, queues: Sequence[QueueStatus]) -> None:
        """Another look at the cluster."""
        seconds = (wall_ms - self.times_ms[-1]) / 1000 if self.times_ms else 0.0
        self.number += 1
        self.times_ms.append(wall_ms)
        self.queue_count = len(queues)
        self._note_masters(wall_ms, queues)
        chosen = sorted(queues, key=lambda queue: (not needs_somebody(queue), queue.name))
        before, self._queues = self._queues, {}
        for status in chosen[:QUEUES_MAX]:
            seen = before.get(status.name)
            point = _point(status, seen.status if seen is not None else None, seconds)
            seen = seen or _Seen(status)
            seen.status = status
            seen.points.append(point)
            self._queues[status.name] = seen

    def _note_masters(self, wall_ms: int, queues: Sequence[QueueStatus]) -> None:
        known = self._masters
        self._masters = {}
        for queue in queues:
            before = known.get(queue.name)
            if queue.master is None:
                # The next master follows the last running master.
                self._masters[queue.name] = before or (None, queue.epoch)
                continue
            self._masters[queue.name] = (queue.master, queue.epoch)
            if before is not None and before[0] != queue.master:
                change = Change(wall_ms, queue.name, before[0], queue.master, queue.epoch)
                self.changes.append(change)

    def queues(self) -> list[tuple[QueueStatus, list[Point]]]:
        """Return status and points of each queue: the last point belongs to the last look."""
        return [(seen.status, list(seen.points)) for seen in self._queues.values()]


def needs_somebody(queue: QueueStatus) -> bool:
    """Return true if the page must show the queue before others."""
    return queue.state != "running" or bool(queue.blocked_by or queue.warnings)


def _point(status: QueueStatus, before: QueueStatus | None, seconds: float) -> Point:
    def rate(total: int, total_before: int) -> float:
        return max(total - total_before, 0) / seconds if seconds > 0 else 0.0

    ready, unacked = status.messages_ready, status.messages_unacknowledged
    if before is None or before.master != status.master:
        return Point(ready, unacked, 0.0, 0.0, 0.0)
    return Point(
        ready,
        unacked,
        rate(status.messages_published, before.messages_published),
        rate(status.messages_delivered, before.messages_delivered),
        rate(status.messages_acknowledged, before.messages_acknowledged),
    )
