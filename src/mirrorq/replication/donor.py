"""R7, the other side: a member in sync gives its applied state to who joins, part by part.

The parts are of one state, that of the moment at which the first was asked for, whatever has been
applied since. Each has the CRC of all parts up to it, so that no part can be left out, come twice
or be of another state. Who asks for a part of a state that is not kept here gets no answer, and
begins anew.
"""

from __future__ import annotations

from zlib import crc32

from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import TransferRequest, TransferState
from mirrorq.replication.state.queue_state import QueueState

PART_BYTES = 256 * 1024
"""Of one part: small beside what a node takes in a round."""
KEPT_MS = 30_000
"""A state of which no part was asked for so long is kept no more."""


class Given:
    """A state on its way to one member."""

    def __init__(self, request: TransferRequest, state: QueueState) -> None:
        self.number = request.number
        self.lsn = state.applied
        self.used_ms = 0
        self._data = state.encode(request.state_version)
        self._checks = [0]
        """Of the parts before each one that may be asked for."""

    def part(self, part: int) -> tuple[bytes, bool, int] | None:
        """(bytes, whether it is the last, check) of one that was given, or follows."""
        if not 0 < part <= len(self._checks):
            return None
        stop = part * PART_BYTES
        data = self._data[stop - PART_BYTES : stop]
        check = crc32(data, self._checks[part - 1])
        is_last = stop >= len(self._data)
        if part == len(self._checks) and not is_last:
            self._checks.append(check)
        return data, is_last, check


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
            given = self._given[to] = Given(request, state)
        if given is None or given.number != request.number:
            return None
        found = given.part(request.part)
        if found is None:
            return None
        data, is_last, check = found
        given.used_ms = now_ms
        if is_last:
            del self._given[to]
        return TransferState(*head, given.lsn, data, request.part, is_last, check)

    def on_tick(self, now_ms: int) -> None:
        """Who does not ask for more is not waited for."""
        for member in [*self._given]:
            if now_ms - self._given[member].used_ms >= KEPT_MS:
                del self._given[member]

    def forget(self) -> None:
        """A new epoch: what was asked in the old one is void."""
        self._given.clear()
