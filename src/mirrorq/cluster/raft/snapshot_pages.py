"""A snapshot on the way, page by page: the sender's cursor and the receiver's pages.

1. A receiver takes a page only in order, so no page is left out or taken twice.
2. Leader's term, index and page count name a snapshot. A page of another snapshot begins anew, and
   so does a restarted receiver. The answer tells the sender, and the sender's cursor goes back.
3. Pages are sent ahead of their answers up to `BYTES_IN_FLIGHT_MAX`. After the given time without
   an answer, unanswered pages are sent again.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from mirrorq.protocol.effects import RaftSnapshot
from mirrorq.protocol.raft import InstallSnapshot

BYTES_IN_FLIGHT_MAX = 1024 * 1024
"""Limit of page bytes sent ahead of the answers to each replica, and so of one write there."""


@define
class IncomingSnapshot:
    """A snapshot at the receiving replica. Valid when all pages are there."""

    first: InstallSnapshot
    """Any message of the snapshot."""
    pages: list[bytes] = field(factory=list)

    def is_of(self, message: InstallSnapshot) -> bool:
        """Return true if a page belongs to this snapshot."""
        return _name(message) == _name(self.first)

    def add_page(self, message: InstallSnapshot) -> bool:
        """Take a page; return true if the page was next in order."""
        is_next = message.number == len(self.pages) < message.count
        if is_next:
            self.pages.append(message.page)
        return is_next

    @property
    def is_whole(self) -> bool:
        return len(self.pages) >= self.first.count

    def snapshot(self) -> RaftSnapshot:
        """Return the whole snapshot."""
        first = self.first
        return RaftSnapshot(first.index, first.index_term, first.voters, tuple(self.pages))


def _name(message: InstallSnapshot) -> tuple[object, ...]:
    return message.term, message.index, message.index_term, message.count


@define
class OutgoingSnapshot:
    """A snapshot as the leader sends it to one replica."""

    snapshot: RaftSnapshot
    answered_ms: int
    """When the replica last reported a change of `count`, or the sending began."""
    count: int = 0
    """Number of pages held by the replica."""
    _sent: int = 0
    """Number of the next page to send."""
    _again_ms: int = 0
    """No page is sent again before this time."""

    def due(self, now_ms: int, patience_ms: int) -> Iterator[int]:
        """Give the numbers of the pages to send now."""
        if now_ms >= max(self.answered_ms + patience_ms, self._again_ms):
            self._again_ms, self._sent = now_ms + patience_ms, self.count
        end = self._window_end()
        numbers = range(self._sent, end)
        self._sent = max(self._sent, end)
        yield from numbers

    def _window_end(self) -> int:
        """Return the number of the first page to hold back. The window has at least one page."""
        pages, end = self.snapshot.pages, self.count + 1
        size = sum(map(len, pages[self.count : end]))
        while end < len(pages) and size + len(pages[end]) <= BYTES_IN_FLIGHT_MAX:
            size += len(pages[end])
            end += 1
        return end

    def answered(self, index: int, count: int, now_ms: int) -> None:
        """The replica has `count` pages of the snapshot with `index`."""
        if index != self.snapshot.index or not 0 <= count < len(self.snapshot.pages):
            return
        if count < self.count:
            self._sent = count
        if count != self.count:
            self.count, self.answered_ms = count, now_ms

    def page(self, term: int, number: int, now_ms: int) -> InstallSnapshot:
        """Return the message of one page."""
        snapshot, pages = self.snapshot, self.snapshot.pages
        page = pages[number] if pages else b""
        head = snapshot.index, snapshot.term, snapshot.voters
        return InstallSnapshot(term, *head, len(pages), number, page, now_ms)
