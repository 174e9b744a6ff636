"""R7: a member in sync gives its applied state to who joins, part by part; both ends of that.

The parts are of one state, that of the moment at which the first was asked for, whatever has been
applied since: its head, then its pages (`state.pages`). Each has the CRC of all parts up to it, so
that no part can be left out, come twice or be of another state. Who asks for a part of a state that
is not kept here gets no answer, and begins anew.

Who asks has most of the state, as a rule: it was away for a while, or what it was given has become
too old before it was whole. Pages are functions of the state, and copies cut them at the same
places. So with each part it asks for it says the digests of some pages that it has, and what is the
same is not sent. Where it has no such page, or cut it elsewhere, that page is.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from zlib import crc32

import msgspec

from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import Page
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import KnownPage, TransferRequest, TransferState
from mirrorq.replication.state.image import STATE_VERSION
from mirrorq.replication.state.pages import Snapshot
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
    """

    def __init__(self, own: QueueState) -> None:
        self._own = own
        self._unsaid = deque(own.all_pages() if not own.is_small else ())
        """Pages of it that were not spoken of yet."""
        self._said: dict[tuple[int, int], tuple[int, Digest]] = {}
        """(kind, first) -> (last, digest) of those that were."""
        self.count = 0
        """Parts that have come."""
        self._asked = 0
        """Parts up to this one are asked for."""
        self._check = 0
        self._lsn = 0
        self._state: QueueState | None = None

    def due(self) -> range:
        """Parts to ask for now: the first alone, for it may be all."""
        ahead = self.count + PARTS_AHEAD if self.count else 1
        asked, self._asked = self._asked, max(self._asked, ahead)
        return range(asked + 1, self._asked + 1)

    def request(self, queue_id: int, epoch: int, number: int, part: int) -> TransferRequest:
        """For a part. It says of the next pages that this copy has them."""
        known: list[KnownPage] = []
        while self._unsaid and len(known) < KNOWN_PAGES:
            kind, (first, last) = self._unsaid.popleft()
            if self._own.count_within(kind, first, last):
                found = digest(self._own.page(kind, first, last))
                self._said[kind, first] = last, found
                known.append(KnownPage(kind, first, *found))
        until = (self._unsaid[0][0], self._unsaid[0][1][0]) if self._unsaid else ALL_KNOWN
        head = (queue_id, epoch, number, STATE_VERSION, part)
        return TransferRequest(*head, tuple(known), *until)

    def take(self, message: TransferState) -> QueueState | None:
        """The state, when this is the last part.

        Raises ValueError when this is no state, or no part of the one that the others are of.
        """
        if not message.part:
            return QueueState.decode(message.state)
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
        return self._whole() if message.is_last else None

    def _follows(self, message: TransferState) -> bool:
        self._check = crc32(message.state, self._check)
        before, self._lsn = self._lsn, message.lsn
        is_same = message.part == 1 or message.lsn == before
        return is_same and message.part == self.count + 1 and message.check == self._check

    def _add(self, items: list[Item]) -> None:
        for kind, first, data in items:
            if data is None:
                data = self._same(kind, first)
            if self._state is None:
                self._state = QueueState.decode(data)
            else:
                self._state.add_page(Page(kind, first, 0, data))

    def _same(self, kind: int, first: int) -> bytes:
        """The page of this copy that was said to be the same."""
        last, said = self._said.get((kind, first), (0, (0, 0)))
        has_one = last > 0 and self._own.count_within(kind, first, last) > 0
        data = self._own.page(kind, first, last) if has_one else b""
        if digest(data) != said:
            raise ValueError(f"page {first} of kind {kind} is not here as it was")
        return data

    def _whole(self) -> QueueState:
        state = self._state
        if state is None:
            raise ValueError("a state of no parts")
        if state.is_paged:
            state.end_pages()
            state.note_unwritten()
        return state


class Donor:
    """The giving side of one member."""

    def __init__(self) -> None:
        self._given: dict[MemberId, Given] = {}

    def answer(
        self, now_ms: int, to: MemberId, request: TransferRequest, state: QueueState
    ) -> TransferState | None:
        """What to send; None when there is nothing to say."""
        head = (request.queue_id, request.epoch, request.number)
        if not request.part:
            return TransferState(*head, state.applied, state.encode(request.state_version))
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
