"""R7: a member in sync gives its applied state to who joins, part by part; both ends of that.

The parts are of one state, that of the moment at which the first was asked for, whatever has been
applied since: its head, then its pages (`state.pages`). Each has the CRC of all parts up to it, so
that no part can be left out, come twice or be of another state. Who asks for a part of a state that
is not kept here gets no answer, and begins anew.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import Page
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import TransferRequest, TransferState
from mirrorq.replication.state.pages import Snapshot
from mirrorq.replication.state.queue_state import QueueState

PART_BYTES = 256 * 1024
"""Of one part, about: small beside what a node takes in a round."""
PARTS_AHEAD = 4
"""Parts that are asked for before the first of them has come."""
KEPT_MS = 30_000
"""A state of which no part was asked for so long is kept no more."""

Item = tuple[int, int, bytes]
"""(kind, first, bytes) of a page. The first of all is none: the state's head, or all of it."""


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
        self._head = state.encode() if state.is_small else state.encode_head()
        if not state.is_small:
            wanted = state.all_pages()
            self._snapshot = Snapshot(state, state.applied, wanted, {}, is_awaited=False)
            state.snapshots.append(self._snapshot)

    def part(self, part: int) -> tuple[bytes, bool, int] | None:
        """(bytes, whether it is the last, check) of the next part; None: it is not to be had."""
        snapshot = self._snapshot
        if part != self._next or (snapshot is not None and snapshot.is_void):
            return None
        items: list[Item] = [(0, 0, self._head)] if part == 1 else []
        size = len(self._head) if part == 1 else 0
        while snapshot is not None and not snapshot.is_at_end and size < PART_BYTES:
            page = snapshot.take()
            if page is not None and page.data:
                items.append((page.kind, page.first, page.data))
                size += len(page.data)
        data = msgspec.msgpack.encode(items)
        self._next += 1
        self._check = crc32(data, self._check)
        return data, snapshot is None or snapshot.is_at_end, self._check

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        if self._snapshot is not None:
            self._state.snapshots.remove(self._snapshot)
            self._snapshot = None


class Incoming:
    """A state that comes in parts."""

    def __init__(self) -> None:
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
            if self._state is None:
                self._state = QueueState.decode(data)
            else:
                self._state.add_page(Page(kind, first, 0, data))

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
