"""R7: a member in sync gives its applied state to a joining member, part by part; both ends.

All parts belong to one state: the state at the moment at which the joiner asked for the first part.
The head comes first, then the pages (`state.pages`). Each part carries the CRC of all parts up to
it, so no part can be left out, taken twice or belong to another state. A joiner that asks for a
part of a state that the donor does not keep gets no answer, and begins anew.

As a rule the joiner has most of the state: it was away for a while, or the state that it was given
became too old. A page is a function of the state, and copies cut their pages at the same places. So
with each request the joiner sends digests of some of its pages, and the donor leaves equal pages
out. Pages of a state that never became whole count too, also after a restart of the joiner: a
transfer that breaks off continues at any donor, and only the pages that have changed since are sent
twice.

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
"""Of one part, about: small beside what a node takes in a round."""
PARTS_AHEAD = 4
"""Parts that are asked for before the first of them has come."""
KEPT_MS = 30_000
"""A state of which no part was asked for so long is kept no more."""

KNOWN_PAGES = 16
"""Pages whose digests go with one request. `PARTS_AHEAD` of them are made in a step: some
milliseconds."""
ALL_KNOWN = (1 << 31, 0)
"""Behind all pages."""
Digest = tuple[int, int]

Item = tuple[int, int, bytes | None]
"""(kind, first, bytes) of a page; None: it is the one that the joiner has. The first of all is no
page: the state's head, or all of it."""


def digest(page: bytes) -> Digest:
    """What tells a page from any other: 126 bits, in numbers that go into a message's head."""
    found = int.from_bytes(blake2b(page, digest_size=16).digest(), "little")
    return found >> 65, found >> 1 & (1 << 63) - 1


class Given:
    """A state on its way to one member."""

    def __init__(self, number: int, state: QueueState) -> None:
        self.number = number
        self.lsn = state.applied
        self.used_ms = 0
        self._state = state
        self._snapshot: Snapshot | None = None
        self._next = 1
        self._check = 0
        self._known: dict[tuple[int, int], Digest] = {}
        """What the joiner has, by its digests."""
        self._until = (0, 0)
        self._head = state.encode() if state.is_small else state.encode_head()
        if not state.is_small:
            wanted = state.all_pages()
            self._snapshot = Snapshot(state, state.applied, wanted, {}, is_awaited=False)
            state.snapshots.append(self._snapshot)

    def know(self, request: TransferRequest) -> None:
        """What the joiner has, as far as it has said now."""
        self._until = request.until_kind, request.until_first
        for page in request.known:
            self._known[page.kind, page.first] = page.high, page.low

    def part(self, part: int) -> tuple[bytes, bool, int] | None:
        """(bytes, whether it is the last, check) of the next part; None: it is not to be had."""
        snapshot = self._snapshot
        if part != self._next or (snapshot is not None and snapshot.is_void):
            return None
        items: list[Item] = [(0, 0, self._head)] if part == 1 else []
        size = len(self._head) if part == 1 else 0
        while snapshot is not None and self._is_next_known(snapshot) and size < PART_BYTES:
            page = snapshot.take()
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
        """Whether the joiner has said if it has the next page."""
        following = snapshot.following
        return following is not None and following < self._until

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        if self._snapshot is not None:
            self._state.snapshots.remove(self._snapshot)
            self._snapshot = None


class Incoming:
    """A state that comes in parts.

    Args:
        own: what this copy has, some of which it may be.
        cache: reads of this disk what has been written there.
        retained: pages on this disk of states that never were whole, by kind and first.
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
        """Pages of both that were not spoken of yet, in order."""
        self._said: dict[tuple[int, int], tuple[int, Digest]] = {}
        """(kind, first) -> (last, digest) of those that were."""
        self.count = 0
        """Parts that have come."""
        self._asked = 0
        """Parts up to this one are asked for."""
        self._check = 0
        self._lsn = 0
        self._state: QueueState | None = None
        self._fresh: list[Page] = []
        """Pages that go to the disk."""
        self._fresh_count = 0
        """Of all that came until now."""
        self._landed_count = 0
        """Of them those that are there."""
        self._ends: deque[int] = deque()
        """Of the parts that are not on the disk yet: how many pages have to be there."""
        self._later: deque[tuple[int, Page]] = deque()
        """The same of pages that are added to the state as such that are there."""

    def _pages_here(self) -> list[tuple[int, Range]]:
        """Kind and stretch; of what was retained where it begins."""
        own = self._own.all_pages() if not self._own.is_small else []
        if not self._retained:
            return own
        found = [(kind, (first, 0)) for kind, first in self._retained]
        found += [page for page in own if (page[0], page[1][0]) not in self._retained]
        return sorted(found)

    @property
    def is_landing(self) -> bool:
        """Whether something of it is on its way to the disk."""
        return bool(self._ends)

    def due(self) -> range:
        """Parts to ask for now: the first alone, for it may be all; then no more than are to be in
        memory at once."""
        ahead = self.count - len(self._ends) + PARTS_AHEAD if self.count else 1
        asked, self._asked = self._asked, max(self._asked, ahead)
        return range(asked + 1, self._asked + 1)

    def request(self, queue_id: int, epoch: int, number: int, part: int) -> TransferRequest:
        """For a part. It says of the next pages that this copy has them."""
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
        """What is here of a stretch; b"" when that is nothing."""
        retained = self._retained.get((kind, first))
        if retained is not None:
            return self._cache.read(self._queue_id, kind, first, retained.lsn)
        if last and self._own.count_within(kind, first, last):
            return self._own.page(kind, first, last)
        return b""

    def take(self, message: TransferState) -> QueueState | None:
        """The state, when this is the last part.

        Raises ValueError when this is no state, or no part of the one that the others are of.
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
        """Pages that go to the disk, each once."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def on_staged(self, count: int) -> None:
        """So many of them are there."""
        self._landed_count = count
        while self._ends and self._ends[0] <= count:
            self._ends.popleft()
        while self._state is not None and self._later and self._later[0][0] <= count:
            self._state.add_page(self._on_disk(self._later.popleft()[1]))

    def _on_disk(self, page: Page) -> Page:
        """A page that need not be in memory any more; one that no commit writes stays there."""
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
        """The page of this copy that was said to be the same, with its lsn if it may stay where it
        is on this disk."""
        last, said = self._said.get((kind, first), (0, (0, 0)))
        data = self._page(kind, first, last)
        if digest(data) != said:
            raise ValueError(f"page {first} of kind {kind} is not here as it was")
        return Page(kind, first, self._lsn_here(kind, first), data)

    def _lsn_here(self, kind: int, first: int) -> int:
        """Under which lsn such a page may stay; 0: it is written anew. What was retained may if it
        counts with the head, the rest unless a checkpoint is being made or on its way."""
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
    """Raises ValueError when a page is none of its kind. One of messages is read in any case."""
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
        """What to send; None when there is nothing to say."""
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
        """Who does not ask for more is not waited for."""
        for member in [*self._given]:
            if now_ms - self._given[member].used_ms >= KEPT_MS:
                self._end(member)

    def _end(self, member: MemberId) -> None:
        given = self._given.pop(member, None)
        if given is not None:
            given.close()

    def forget(self) -> None:
        """A new epoch: what was asked in the old one is void."""
        for member in [*self._given]:
            self._end(member)
