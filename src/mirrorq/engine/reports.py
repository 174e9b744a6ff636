"""Message counts of all queues, as reported by their masters: for `status()` on any node. Pure.

A master sends its counts to all nodes at each heartbeat, when they have changed. Nothing is decided
by them, except that an unclean promotion counts its loss against the last report.

Counts change only in a step of the replica. A heartbeat therefore looks only at queues that were
stepped since the last heartbeat: a thousand idle queues cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice, repeat

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.protocol.control import QueueReport
from mirrorq.protocol.identities import MemberId
from mirrorq.replication.replica import Replica

REPORTED_MAX = 256
"""Limit on queues looked at for a report at one heartbeat, and on reports for new nodes looked at
in one step."""


class QueueReports:
    """The last report of each queue's master."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[QueueReport, int]] = {}
        self._told: dict[int, QueueReport] = {}
        self._stepped: dict[int, None] = {}
        """Queues whose counts may differ from the last report."""
        self._to_repeat: deque[tuple[str, int]] = deque()
        """(new node, queue)."""

    def get(self, queue_id: int) -> tuple[QueueReport, int] | None:
        """Return the last report of a queue's master and the time of its arrival."""
        return self._known.get(queue_id)

    def __contains__(self, queue_id: int) -> bool:
        return queue_id in self._known

    def record_report(
        self, now_ms: int, catalog: Catalog, sender: MemberId, report: QueueReport
    ) -> None:
        """Note a master's report, or another node's memory of a report: the newest term counts."""
        known = self._known.get(report.queue_id)
        record = catalog.queue(report.queue_id)
        is_masters = record is not None and record.view.members[0].id == sender
        if is_masters or known is None or known[0].master_epoch < report.master_epoch:
            self._known[report.queue_id] = (report, now_ms)

    def repeat_to(self, node: str) -> None:
        """Note that a new node needs the reports of queues whose master is down."""
        self._to_repeat.extend(zip(repeat(node), tuple(self._known), strict=False))

    @property
    def is_repeating(self) -> bool:
        """Whether reports for new nodes are left to look at."""
        return bool(self._to_repeat)

    def next_repeats(self) -> Iterator[tuple[str, QueueReport]]:
        """Yield at most `REPORTED_MAX` reports, each with the new node, also of live masters."""
        for _ in range(min(REPORTED_MAX, len(self._to_repeat))):
            node, queue_id = self._to_repeat.popleft()
            if queue_id in self._known:
                yield node, self._known[queue_id][0]

    def note_step(self, queue_id: int) -> None:
        """Note that the copy of a queue was stepped."""
        self._stepped[queue_id] = None

    def tell_again(self) -> None:
        """Have all reports sent again: a new node has none."""
        self._stepped.update(dict.fromkeys(self._told))
        self._told.clear()

    def drop(self, queue_id: int) -> None:
        """Forget a deleted queue."""
        self._known.pop(queue_id, None)
        self._told.pop(queue_id, None)

    def drop_copy(self, queue_id: int) -> None:
        """Forget the own reports on a queue: the node has no copy and cannot be its master."""
        self._told.pop(queue_id, None)
        self._stepped.pop(queue_id, None)

    def due(self, replicas: Mapping[int, Replica]) -> list[QueueReport]:
        """Return changed reports to send to all nodes, at most `REPORTED_MAX` queues at one
        heartbeat. The longest waiting queues come first."""
        found = []
        for queue_id in list(islice(self._stepped, REPORTED_MAX)):
            del self._stepped[queue_id]
            report = report_of(replicas[queue_id])
            if report is not None and self._told.get(queue_id) != report:
                self._told[queue_id] = report
                found.append(report)
        return found


def report_of(replica: Replica) -> QueueReport | None:
    """Return the counts of a queue whose master is here and serves; None: it is not."""
    master = replica.master
    if master is None or not master.active:
        return None
    dispatch, tally = master.dispatch, replica.tally
    return QueueReport(
        replica.queue_id,
        master.master_epoch,
        dispatch.ready.count,
        dispatch.open.unacknowledged,
        dispatch.taker_count,
        master.blocked_by,
        replica.state.lost,
        master.delayed_count,
        tally.published,
        tally.delivered,
        tally.acked,
        replica.state.next_sequence,
        replica.state.is_paused,
    )
