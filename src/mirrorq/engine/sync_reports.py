"""Progress of joining members, as reported to each node: for `status()` on any node.

A joining member reports to all nodes at each heartbeat, when its progress has changed. Nothing is
decided by the reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from attrs import frozen

from mirrorq.engine.reports import REPORTED_MAX
from mirrorq.protocol.control import SyncReport
from mirrorq.protocol.identities import MemberId
from mirrorq.replication.replica import Replica


@frozen
class SyncProgress:
    """Progress of a queue's synchronisation, summed over all joining members."""

    messages: int
    messages_left: int
    bytes_left: int
    ms_left: int
    """Milliseconds; 0: not known."""

    @property
    def share(self) -> float:
        """Synchronised share, from 0 to 1."""
        return 1 - self.messages_left / self.messages if self.messages else 0.0


class SyncReports:
    """The newest report of each joining member."""

    def __init__(self, me: MemberId) -> None:
        self._me = me
        self._known: dict[int, dict[MemberId, SyncReport]] = {}
        """Queue -> member -> last report."""
        self._told: dict[int, SyncReport] = {}
        self._left: dict[int, None] = {}
        """Queues left to look at in this round."""

    def record_report(self, member: MemberId, report: SyncReport) -> None:
        known = self._known.setdefault(report.queue_id, {})
        for older in [one for one in known if one.node == member.node]:
            del known[older]
        known[member] = report

    def tell_again(self) -> None:
        """Have all reports sent again: a new node has none."""
        self._told.clear()

    def drop(self, queue_id: int) -> None:
        """Forget a deleted queue."""
        self._told.pop(queue_id, None)
        self._known.pop(queue_id, None)

    def due(
        self, now_ms: int, joining: Mapping[int, None], replicas: Mapping[int, Replica]
    ) -> list[SyncReport]:
        """Return changed reports to send to all nodes, at most `REPORTED_MAX` queues at once.

        Args:
            joining: the queues whose copy here is not in sync.
        """
        found = []
        self._left = self._left or dict.fromkeys(joining)
        for queue_id in list(islice(self._left, REPORTED_MAX)):
            del self._left[queue_id]
            if queue_id not in joining:
                continue
            replica = replicas[queue_id]
            report = _report_of(now_ms, replica)
            if report is None:
                self._told.pop(replica.queue_id, None)
            elif self._told.get(replica.queue_id) != report:
                self._told[replica.queue_id] = report
                found.append(report)
        return found

    def of(
        self, now_ms: int, members: Iterable[MemberId], queue_id: int, own: Replica | None
    ) -> SyncProgress | None:
        """Return the progress of the given members together; None when there are none."""
        reports = []
        for member in members:
            report = self._known.get(queue_id, {}).get(member)
            if member == self._me and own is not None:
                report = _report_of(now_ms, own)
            reports.append(report or SyncReport(queue_id, 0, 0, 0, 0))
        if not reports:
            return None
        return SyncProgress(
            sum(report.messages for report in reports),
            sum(report.messages_left for report in reports),
            sum(report.bytes_left for report in reports),
            max(report.ms_left for report in reports),
        )


def _report_of(now_ms: int, replica: Replica) -> SyncReport | None:
    ring, transfer = replica.ring, replica.transfer
    if not ring.is_member or ring.in_sync or not ring.has_state:
        return None
    left = transfer.missing.count
    meter = transfer.meter
    return SyncReport(
        replica.queue_id,
        replica.state.live.count,
        left,
        meter.bytes_of(left),
        meter.ms_for(now_ms, left) if replica.may_fetch else 0,
    )
