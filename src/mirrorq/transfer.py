"""R7: how a joining member gets what it lacks, and how one in sync gives it.

A joiner that its left can serve from the log needs nothing of this. Who is further behind
takes the *applied* state of one member in sync at some lsn S, then ops after S come along
the ring as for everyone, and the bodies of messages that live in that state and are not on
its disk are fetched in chunks while the queue goes on. State replaces, never merges; frames
only fill places that are live in the joiner's own applied state, so a late body revives
nothing.

The joiner's disk is complete up to a sequence that is written with each chunk: a transfer
that was cancelled, or a joiner that was killed in the middle, goes on from there. Sequence
and (epoch, lsn) name the same frame here: everything up to S is stable, a stable op is
never cut, and so its sequences are never given again.

*Natural drain* is the same rule: what is acked before its body came is no longer missing.

Invariants:
1. `missing` holds sequences that live in the own applied state and are not on the own disk.
2. An answer counts only under the number and the epoch of the request now open.
"""

from __future__ import annotations

from mirrorq import view as views
from mirrorq.effects import ReplicaEffects
from mirrorq.messages import (
    Entry,
    FetchFrames,
    FrameChunk,
    MemberId,
    Range,
    TransferRequest,
    TransferState,
    View,
)
from mirrorq.queue_state import QueueState
from mirrorq.ranges import RangeSet

RETRY_MS = 1000
"""A donor that has not answered for this long is not asked again; the next one is."""
AGAIN_MS = 50
"""A state that was not far enough is asked for again after this."""
COMPLETE = (1 << 63) - 1
"""complete_sequence of a copy that lacks nothing."""


class Transfer:
    """The joining side of one member."""

    def __init__(self, me: MemberId, queue_id: int, chunk_bytes: int) -> None:
        self.me = me
        self.queue_id = queue_id
        self.missing = RangeSet()
        """Live here, and not on this disk."""
        self.complete_sequence = 0
        """Every live message up to here is on this disk or in the write being made."""
        self.fetched_count = 0
        self._chunk_bytes = chunk_bytes
        self._number = me.incarnation << 20
        self._open = ""
        self._asked_ms = 0
        self._donor_turn = 0
        self._wait_until_ms = 0
        self._landing: list[tuple[int, Range]] = []

    def begin(self, state: QueueState, complete_sequence: int) -> None:
        """Work out what is missing in a state that was loaded or has just come."""
        self.complete_sequence = complete_sequence
        self.missing = RangeSet(state.live.within(complete_sequence + 1, COMPLETE))
        self._landing.clear()
        self._close()
        if not self.missing:
            self.complete_sequence = COMPLETE

    @property
    def is_complete(self) -> bool:
        return not self.missing

    def forget(self) -> None:
        """A new epoch: what was asked in the old one is void."""
        self._close()
        self._wait_until_ms = 0

    def on_ended(self, ranges: tuple[Range, ...]) -> None:
        """Natural drain: what the own applied state no longer holds is not missing."""
        if self.missing:
            for first, last in ranges:
                self.missing.remove(first, last)
            if not self.missing:
                # Else the next start would take all that came since for missing again.
                self._landing.clear()
                self.complete_sequence = COMPLETE

    # --- Asking -------------------------------------------------------------------------

    def pursue(self, now_ms: int, view: View, has_state: bool, out: ReplicaEffects) -> int | None:
        """Ask for what is due; return when to look again."""
        if self._open and now_ms - self._asked_ms >= RETRY_MS:
            self._close()
            self._donor_turn += 1
        if self._open:
            return self._asked_ms + RETRY_MS
        if now_ms < self._wait_until_ms:
            return self._wait_until_ms
        donor = self._donor(view)
        if donor is None:
            return None
        if not has_state:
            self._ask("state", now_ms)
            request = TransferRequest(self.queue_id, view.epoch, self._number)
            out.send.append((donor, request))
        elif self.missing and not self._landing:
            self._ask("frames", now_ms)
            fetch = FetchFrames(
                self.queue_id,
                view.epoch,
                self._number,
                self.missing.first - 1,
                self.missing.last,
                self._chunk_bytes,
            )
            out.send.append((donor, fetch))
        else:
            return None
        return now_ms + RETRY_MS

    def _ask(self, what: str, now_ms: int) -> None:
        self._number += 1
        self._open = what
        self._asked_ms = now_ms

    def _close(self) -> None:
        self._open = ""

    def _donor(self, view: View) -> MemberId | None:
        """Any member in sync will do; the master is spared while there are mirrors."""
        donors = [member for member in views.in_sync_ids(view) if member != self.me]
        donors = donors[1:] or donors
        return donors[-1 - self._donor_turn % len(donors)] if donors else None

    # --- Answers ------------------------------------------------------------------------

    def accept_state(
        self, now_ms: int, message: TransferState, epoch: int, received: int
    ) -> QueueState | None:
        """The state to stand on from now, or None when this answer does not count."""
        mine = self._open == "state" and message.number == self._number
        if not mine or message.epoch != epoch:
            return None
        self._close()
        if message.lsn < received:
            self._wait_until_ms = now_ms + AGAIN_MS
            return None
        try:
            state = QueueState.decode(message.state)
        except ValueError:
            self._donor_turn += 1
            self._wait_until_ms = now_ms + RETRY_MS
            return None
        return state

    def accept_chunk(
        self, now_ms: int, message: FrameChunk, epoch: int, state: QueueState
    ) -> tuple[Entry, ...] | None:
        """Frames to write now; their sequences stay missing until `on_written`."""
        mine = self._open == "frames" and message.number == self._number
        if not mine or message.epoch != epoch:
            return None
        self._close()
        wanted = tuple(
            entry
            for entry in message.entries
            if entry.payload is None
            and state.epoch_at(entry.lsn) == entry.epoch
            and self.missing.within(entry.header.first_sequence, entry.header.last_sequence)
        )
        if not wanted:
            # What is missing here has ended at the donor: the ops that say so are on the way.
            self._wait_until_ms = now_ms + AGAIN_MS
        self.fetched_count += len(wanted)
        return wanted

    def on_writing(self, number: int, entries: tuple[Entry, ...]) -> int:
        """These frames go to disk in write `number`; return the complete sequence it makes."""
        rest = self.missing.copy()
        for entry in entries:
            piece = (entry.header.first_sequence, entry.header.last_sequence)
            self._landing.append((number, piece))
            rest.remove(*piece)
        self.complete_sequence = rest.first - 1 if rest else COMPLETE
        return self.complete_sequence

    def on_written(self, number: int) -> None:
        while self._landing and self._landing[0][0] <= number:
            first, last = self._landing.pop(0)[1]
            self.missing.remove(first, last)
