"""A snapshot on its way, page by page: as its sender counts them, and as its receiver has them.

1. A page is taken only when it is the next one of the snapshot that is being received, so none is
   left out or taken twice.
2. A snapshot is named by the leader's term and by its index: a page of another one begins anew, and
   so does a receiver that was restarted. Its answer tells the sender, whose cursor goes back.
3. Pages are sent ahead of their answers up to `BYTES_IN_FLIGHT_MAX`. Where no answer came for the
   time given, those that are not answered are sent again.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from mirrorq.protocol.effects import RaftSnapshot
from mirrorq.protocol.raft import InstallSnapshot

BYTES_IN_FLIGHT_MAX = 1024 * 1024
"""Of pages sent ahead of their answers, for each replica: so much may come to one write of it."""


@define
class IncomingSnapshot:
    """As the replica has it. It counts when it is whole."""

    first: InstallSnapshot
    """Some message of it."""
    pages: list[bytes] = field(factory=list)

    def is_of(self, message: InstallSnapshot) -> bool:
        """Say whether a page is of this snapshot."""
        return _name(message) == _name(self.first)

    def take(self, message: InstallSnapshot) -> bool:
        """Take a page; say whether it was the next one."""
        is_next = message.number == len(self.pages) < message.count
        if is_next:
            self.pages.append(message.page)
        return is_next

    @property
    def is_whole(self) -> bool:
        return len(self.pages) >= self.first.count

    def snapshot(self) -> RaftSnapshot:
        """Return the whole."""
        first = self.first
        return RaftSnapshot(first.index, first.index_term, first.voters, tuple(self.pages))


def _name(message: InstallSnapshot) -> tuple[object, ...]:
    return message.term, message.index, message.index_term, message.count


@define
class OutgoingSnapshot:
    """As the leader sends it to one replica."""

    snapshot: RaftSnapshot
    answered_ms: int
    """When the replica last had more of it, or it was begun."""
    count: int = 0
    """Of the pages that the replica has."""
    _sent: int = 0
    """Number of the next page to send."""
    _again_ms: int = 0
    """Not before this are pages sent again."""

    def due(self, now_ms: int, patience_ms: int) -> Iterator[int]:
        """Give the numbers of the pages to send now."""
        if now_ms >= max(self.answered_ms + patience_ms, self._again_ms):
            self._again_ms, self._sent = now_ms + patience_ms, self.count
        end = self._window_end()
        numbers = range(self._sent, end)
        self._sent = max(self._sent, end)
        yield from numbers

    def _window_end(self) -> int:
        """Number of the first page that is not to be sent yet. There is always one to send."""
        pages, end = self.snapshot.pages, self.count + 1
        size = sum(map(len, pages[self.count : end]))
        while end < len(pages) and size + len(pages[end]) <= BYTES_IN_FLIGHT_MAX:
            size += len(pages[end])
            end += 1
        return end

    def answered(self, index: int, count: int, now_ms: int) -> None:
        """The replica has so many pages of the snapshot of that index."""
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
