"""R7: a member in sync gives its applied state to a joining member, part by part; both ends.

All parts belong to one state: the state at the moment at which the joiner asked for the first part.
The head comes first, then the pages (`state.pages`). Each part carries the CRC of all parts up to
this part. So no part can be left out, taken twice or belong to another state. A joiner that asks
for a part of a state that the donor does not keep gets no answer, and begins again.

As a rule the joiner has most of the state: it was away for a while, or its received state became
too old. A page is a function of the state, and copies cut their pages at the same places. With each
request the joiner therefore sends digests of some of its pages, and the donor leaves equal pages
out. Pages of an incomplete state count too, also after a restart of the joiner. A transfer that
breaks off continues at any donor, and only pages that have changed since are sent twice.

Pages go to the disk as they arrive. The joiner asks for further parts when the former are on the
disk, and keeps no page in memory that a start would not read. The pages lie under the lsn of the
state, which is beyond the checkpoint on this disk, so no page counts before its head. The head is
written after the last part, when the check holds. A transfer without an end leaves stale pages
(`checkpoints`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from zlib import crc32

import msgspec
from msgspec.structs import replace

from mirrorq.containers.ranges import Range
from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import COLUMNS, LATER, PRODUCERS, Page
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import KnownPage, TransferRequest, TransferState
from mirrorq.replication.state.columns import Block
from mirrorq.replication.state.pages import PageCache, Snapshot
from mirrorq.replication.state.producer import Chunk
from mirrorq.replication.state.queue_state import QueueState

PART_BYTES = 256 * 1024
"""Approximate bytes of a part: small beside a node's intake of a round."""
PARTS_AHEAD = 4
"""Parts that are requested before the first of them has come."""
KEPT_MS = 30_000
"""A state is dropped when no part was requested for this time."""

KNOWN_PAGES = 16
"""Pages with digests in one request. `PARTS_AHEAD` requests are made in a step: some
milliseconds."""
ALL_KNOWN = (1 << 31, 0)
"""A place behind all pages."""
Digest = tuple[int, int]

Item = tuple[int, int, bytes | None]
"""(kind, first, bytes) of a page; None: the joiner has the page. The first item is no page but the
state's head, or the whole state."""


def digest(page: bytes) -> Digest:
    """Digest of a page: 126 bits, as two numbers that fit into a message's head."""
    found = int.from_bytes(blake2b(page, digest_size=16).digest(), "little")
    return found >> 65, found >> 1 & (1 << 63) - 1


class Given:
    """A state on the way to a joiner."""

    def __init__(self, number: int, state: QueueState) -> None:
        self.number = number
        self.lsn = state.applied
        self.used_ms = 0
        self._state = state
        self._snapshot: Snapshot | None = None
        self._next = 1
        self._check = 0
        self._known: dict[tuple[int, int], Digest] = {}
        """Digests of the joiner's pages."""
        self._until = (0, 0)
        self._head = state.encode() if state.is_small else state.encode_head()
        if not state.is_small:
            wanted = state.all_pages()
            self._snapshot = Snapshot(state, state.applied, wanted, {}, is_awaited=False)
            state.snapshots.append(self._snapshot)

    def know(self, request: TransferRequest) -> None:
        """Take in the joiner's digests of a request."""
        self._until = request.until_kind, request.until_first
        for page in request.known:
            self._known[page.kind, page.first] = page.high, page.low

    def part(self, part: int) -> tuple[bytes, bool, int] | None:
        """(bytes, true for the last part, check) of the next part; None: not available."""
        snapshot = self._snapshot
        if part != self._next or (snapshot is not None and snapshot.is_void):
            return None
        items: list[Item] = [(0, 0, self._head)] if part == 1 else []
        size = len(self._head) if part == 1 else 0
        while snapshot is not None and self._is_next_known(snapshot) and size < PART_BYTES:
            page = snapshot.next_page()
            if page is not None and page.data:
                known = self._known.pop((page.kind, page.first), None)
                is_same = known is not None and known == digest(page.data)
                items.append((page.kind, page.first, None if is_same else page.data))
                size += 0 if is_same else len(page.data)
        data = msgspec.msgpack.encode(items)
        self._next += 1
        self._check = crc32(data, self._check)
        return data, snapshot is None or snapshot.is_at_end, self._check

    def _is_next_known(self, snapshot: Snapshot) -> bool:
        """Return true if the joiner has reported on the next page."""
        following = snapshot.following
        return following is not None and following < self._until

    def close(self) -> None:
        """Drop the state."""
        if self._snapshot is not None:
            self._state.snapshots.remove(self._snapshot)
            self._snapshot = None


class Incoming:
    """A state that comes in parts.

    Args:
        own: state of this copy, which may share pages with the coming state.
        cache: reads pages from this disk.
        retained: pages on this disk of incomplete states, by kind and first.
    """

    def __init__(
        self,
        own: QueueState,
        number: int = 0,
        queue_id: int = 0,
        cache: PageCache | None = None,
        retained: Mapping[tuple[int, int], Page] | None = None,
    ) -> None:
        self.number = number
        self._own = own
        self._queue_id = queue_id
        self._cache = cache or PageCache()
        self._retained = retained if retained and self._cache.can_read else {}
        self._unsaid = deque(self._pages_here())
        """Own and retained pages without a sent digest, in order."""
        self._said: dict[tuple[int, int], tuple[int, Digest]] = {}
        """(kind, first) -> (last, digest) of pages with a sent digest."""
        self.count = 0
        """Number of parts that have come."""
        self._asked = 0
        """Parts up to this number are requested."""
        self._check = 0
        self._lsn = 0
        self._state: QueueState | None = None
        self._fresh: list[Page] = []
        """Pages to be written to the disk."""
        self._fresh_count = 0
        """Number of all pages given out to be written so far."""
        self._landed_count = 0
        """Number of written pages that are on the disk."""
        self._ends: deque[int] = deque()
        """For each part that is not on the disk yet: the `_landed_count` at which it will be."""
        self._later: deque[tuple[int, Page]] = deque()
        """Pages to be added to the state when on the disk: (needed `_landed_count`, page)."""

    def _pages_here(self) -> list[tuple[int, Range]]:
        """(kind, stretch) of own and retained pages. A retained page has no last."""
        own = self._own.all_pages() if not self._own.is_small else []
        if not self._retained:
            return own
        found = [(kind, (first, 0)) for kind, first in self._retained]
        found += [page for page in own if (page[0], page[1][0]) not in self._retained]
        return sorted(found)

    @property
    def is_landing(self) -> bool:
        """Return true if pages are on their way to the disk."""
        return bool(self._ends)

    def due(self) -> range:
        """Parts to request now. The first part is requested alone: it may be the whole state. Later
        parts wait until earlier parts are on the disk: this bounds the parts in memory."""
        ahead = self.count - len(self._ends) + PARTS_AHEAD if self.count else 1
        asked, self._asked = self._asked, max(self._asked, ahead)
        return range(asked + 1, self._asked + 1)

    def request(self, queue_id: int, epoch: int, number: int, part: int) -> TransferRequest:
        """Make the request for a part, with digests of the next pages of this copy."""
        known: list[KnownPage] = []
        while self._unsaid and len(known) < KNOWN_PAGES:
            kind, (first, last) = self._unsaid.popleft()
            data = self._page(kind, first, last)
            if data:
                found = digest(data)
                self._said[kind, first] = last, found
                known.append(KnownPage(kind, first, *found))
        until = (self._unsaid[0][0], self._unsaid[0][1][0]) if self._unsaid else ALL_KNOWN
        head = (queue_id, epoch, number, part)
        return TransferRequest(*head, tuple(known), *until)

    def _page(self, kind: int, first: int, last: int) -> bytes:
        """Encode this copy's page of a stretch; b"" without a page."""
        retained = self._retained.get((kind, first))
        if retained is not None:
            return self._cache.read(self._queue_id, kind, first, retained.lsn)
        if last and self._own.count_within(kind, first, last):
            return self._own.page(kind, first, last)
        return b""

    def add_part(self, message: TransferState) -> QueueState | None:
        """Take a part. Returns the state after the last part.

        Raises ValueError for a malformed part, or a part of another state.
        """
        if message.part <= self.count:
            return None
        if not self._follows(message):
            raise ValueError(f"part {message.part} of a state does not follow the others")
        self.count += 1
        try:
            items = msgspec.msgpack.decode(message.state, type=list[Item])
        except MALFORMED as error:
            raise ValueError(f"part {message.part} of a state: {error}") from error
        self._add(items)
        if self._fresh_count > self._landed_count:
            self._ends.append(self._fresh_count)
        return self._whole() if message.is_last else None

    def take_fresh(self) -> list[Page]:
        """Return the pages to be written to the disk, each once."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def on_staged(self, count: int) -> None:
        """Note that `count` of the written pages are on the disk."""
        self._landed_count = count
        while self._ends and self._ends[0] <= count:
            self._ends.popleft()
        while self._state is not None and self._later and self._later[0][0] <= count:
            self._state.add_page(self._on_disk(self._later.popleft()[1]))

    def _on_disk(self, page: Page) -> Page:
        """Drop a page's data from memory, if the page is on the disk."""
        return replace(page, data=None) if page.lsn and self._cache.can_read else page

    def _follows(self, message: TransferState) -> bool:
        self._check = crc32(message.state, self._check)
        before, self._lsn = self._lsn, message.lsn
        is_same = message.part == 1 or message.lsn == before
        return is_same and message.part == self.count + 1 and message.check == self._check

    def _add(self, items: list[Item]) -> None:
        for kind, first, data in items:
            if self._state is None:
                self._state = self._begun(data)
                continue
            page = self._same(kind, first) if data is None else Page(kind, first, 0, data)
            if data is not None:
                _check(page)
            if page.lsn and kind in LATER:
                page = self._on_disk(page)
            elif not page.lsn and self._lsn > self._own.applied:
                page = replace(page, lsn=self._lsn)
                self._fresh.append(page)
                self._fresh_count += 1
            if kind in LATER:
                self._later.append((self._fresh_count, page))
            else:
                self._state.add_page(page)

    def _begun(self, head: bytes | None) -> QueueState:
        state = QueueState.decode(head or b"")
        state.keep_in(self._cache, self._queue_id)
        if state.applied != self._lsn:
            raise ValueError(f"a state of lsn {state.applied} comes as one of {self._lsn}")
        return state

    def _same(self, kind: int, first: int) -> Page:
        """This copy's page with an equal digest. The lsn is 0 unless the page may stay in its place
        on this disk."""
        last, said = self._said.get((kind, first), (0, (0, 0)))
        data = self._page(kind, first, last)
        if digest(data) != said:
            raise ValueError(f"page {first} of kind {kind} is not here as it was")
        return Page(kind, first, self._lsn_here(kind, first), data)

    def _lsn_here(self, kind: int, first: int) -> int:
        """Lsn under which the page may stay on this disk; 0: the page is written again. A retained
        page stays if the head covers it. Own pages stay unless a checkpoint is in progress."""
        retained = self._retained.get((kind, first))
        if retained is not None:
            return retained.lsn if retained.lsn <= self._lsn else 0
        is_moving = bool(self._own.snapshots) or self._own.is_landing
        return 0 if is_moving else self._own.tables[kind].written_lsn(first)

    def _whole(self) -> QueueState:
        state = self._state
        if state is None:
            raise ValueError("a state of no parts")
        if state.is_paged:
            while self._later:
                state.add_page(self._later.popleft()[1])
            state.end_pages()
            for table in state.tables.values():
                table.touch_unwritten()
        return state


def _check(page: Page) -> None:
    """Raises ValueError for a malformed page. Pages of messages are checked when they are added."""
    data = page.data or b""
    if page.kind == COLUMNS:
        Block.decode(data)
    elif page.kind == PRODUCERS:
        try:
            msgspec.msgpack.decode(data, type=Chunk)
        except MALFORMED as error:
            raise ValueError(f"a page of {len(data)} bytes: {error}") from error


class Donor:
    """The giving side of one member."""

    def __init__(self) -> None:
        self._given: dict[MemberId, Given] = {}

    def answer(
        self, now_ms: int, to: MemberId, request: TransferRequest, state: QueueState
    ) -> TransferState | None:
        """Return the answer to a request; None without an answer."""
        head = (request.queue_id, request.epoch, request.number)
        given = self._given.get(to)
        if request.part == 1:
            self._end(to)
            given = self._given[to] = Given(request.number, state)
        if given is None or given.number != request.number:
            return None
        given.know(request)
        found = given.part(request.part)
        if found is None:
            return None
        data, is_last, check = found
        given.used_ms = now_ms
        if is_last:
            self._end(to)
        return TransferState(*head, given.lsn, data, request.part, is_last, check)

    def on_tick(self, now_ms: int) -> None:
        """Drop states of joiners that have stopped asking."""
        for member in [*self._given]:
            if now_ms - self._given[member].used_ms >= KEPT_MS:
                self._end(member)

    def _end(self, member: MemberId) -> None:
        given = self._given.pop(member, None)
        if given is not None:
            given.close()

    def forget(self) -> None:
        """Drop all states: a new epoch voids requests of the old epoch."""
        for member in [*self._given]:
            self._end(member)
