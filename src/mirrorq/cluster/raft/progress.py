"""A leader's knowledge of one other replica's log, and how much may be sent to the replica now."""

from __future__ import annotations

from collections import deque
from enum import Enum

from mirrorq.cluster.raft.snapshot_pages import OutgoingSnapshot
from mirrorq.protocol.effects import RaftSnapshot

IN_FLIGHT_COUNT_MAX = 16
"""Append requests with entries sent ahead of their answers, for each replica."""


class ProgressMode(Enum):
    """How the leader sends to one replica."""

    PROBE = "probe"
    """The point of agreement of the logs is unknown: one request at a time."""
    STREAM = "stream"
    """The logs agree: entries are sent ahead of the answers."""
    SNAPSHOT = "snapshot"
    """A snapshot is on the way: only heartbeats until the replica has answered."""


class Progress:
    """How far one replica's log agrees with the leader's, and the requests on the way. Owned by the
    leader, made anew in each term."""

    def __init__(self, next_index: int) -> None:
        self.mode = ProgressMode.PROBE
        self.match_index = 0
        """The replica's log is known to agree up to here, on disk."""
        self.next_index = next_index
        """First entry not sent yet."""
        self.contact_ms: int | None = None
        """Send time of the latest answered request; None before the first."""
        self.heard_ms: int | None = None
        """When the replica's latest answer came; None before the first."""
        self.outgoing: OutgoingSnapshot | None = None
        """With mode SNAPSHOT."""
        self._is_probing = False
        self._in_flight: deque[int] = deque()
        """Last index of each unanswered request with entries."""

    @property
    def is_paused(self) -> bool:
        """Return true if new entries must wait for an answer; heartbeats go on and get answers."""
        if self.mode is ProgressMode.PROBE:
            return self._is_probing
        if self.mode is ProgressMode.STREAM:
            return len(self._in_flight) >= IN_FLIGHT_COUNT_MAX
        return True

    def heard(self, sent_ms: int, now_ms: int) -> None:
        """An answer to a request with the given send time has come."""
        self.heard_ms = now_ms
        self.contact_ms = sent_ms if self.contact_ms is None else max(self.contact_ms, sent_ms)

    def sent(self, last_index: int, with_entries: bool) -> None:
        """A request ending at log index `last_index` was sent."""
        if self.mode is ProgressMode.PROBE:
            self._is_probing = True
        elif self.mode is ProgressMode.STREAM and with_entries:
            self._in_flight.append(last_index)
            self.next_index = last_index + 1

    def begin_snapshot(self, snapshot: RaftSnapshot, now_ms: int) -> None:
        """The replica gets the snapshot, page by page."""
        self._enter(ProgressMode.SNAPSHOT)
        self.outgoing = OutgoingSnapshot(snapshot, now_ms)
        self.next_index = snapshot.index + 1

    def matched(self, index: int) -> bool:
        """The replica's log agrees up to `index`. Return true if `match_index` grew."""
        if self.mode is ProgressMode.SNAPSHOT and index < self.next_index - 1:
            # The answer is older than the sending of the snapshot.
            return False
        is_news = index > self.match_index
        self.match_index = max(self.match_index, index)
        while self._in_flight and self._in_flight[0] <= index:
            self._in_flight.popleft()
        if self.mode is not ProgressMode.STREAM:
            self._enter(ProgressMode.STREAM)
            self.next_index = self.match_index + 1
        self.next_index = max(self.next_index, self.match_index + 1)
        return is_news

    def refused(self, previous_index: int, agreement: int) -> None:
        """A request after `previous_index` did not fit: probe where the logs may agree."""
        if previous_index <= self.match_index or self.mode is ProgressMode.SNAPSHOT:
            # A late answer, or a heartbeat beside a lost snapshot: no news about the log.
            return
        if self.mode is ProgressMode.PROBE and previous_index != self.next_index - 1:
            return
        self._enter(ProgressMode.PROBE)
        self.next_index = max(self.match_index + 1, min(previous_index, agreement + 1))

    def _enter(self, mode: ProgressMode) -> None:
        self.mode = mode
        self.outgoing = None
        self._is_probing = False
        self._in_flight.clear()
