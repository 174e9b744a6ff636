"""Rules of delivery, acks and returns that are left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, answer, instead
from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.sessions import Delivery
from mirrorq.replication.master.attachments import Attachments
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.master import Master
from mirrorq.replication.master.purging import Purging
from mirrorq.replication.master.term import Term
from mirrorq.replication.state.queue_state import QueueState


@instead("delivery without lease", Master, "settle")
def _no_lease(real: Real, self: Master, now_ms: int) -> None:
    lease = self._term.lease
    kept, lease.until_ms = lease.until_ms, now_ms + 1
    real(self, now_ms)
    lease.until_ms = kept


@instead("delivery before all that is ready is sorted in", Term, "begin_portion")
def _serve_unsorted(real: Real, self: Term) -> Any:
    """The new master takes messages for ready, and for those of no priority, of which it does not
    know better yet."""
    real(self)
    return True


answer("delivery above the horizon", Dispatch, "_horizon", 1 << 62)


@instead("ack by epoch and sequence only", Dispatch, "close_piece")
def _ack_by_sequence(real: Real, self: Dispatch, session: Any, piece: Delivery) -> Any:
    found: list[tuple[int, int]] = []
    for number in list(self.open.by_number):
        found += self.open.close(number, piece.first, piece.last)
    for priority in self.ready.levels.priorities:
        level = self.ready.levels.level(priority)
        for first, last in level.within(piece.first, piece.last):
            level.remove(first, last)
            found.append((first, last))
    return found


@instead("ack refused when it comes again", Dispatch, "unsettled")
def _refused_again(real: Real, self: Dispatch, piece: Delivery) -> RangeSet:
    """What is open no more is refused, though this very ack may have ended it."""
    return RangeSet(((piece.first, piece.last),))


@instead("give-back without delivery number", Dispatch, "close_piece")
def _giveback_by_sequence(real: Real, self: Dispatch, session: Any, piece: Delivery) -> Any:
    for number, known in list(self.open.by_number.items()):
        if known.left.within(piece.first, piece.last):
            piece = Delivery(piece.epoch, number, piece.first, piece.last, known.count)
            return real(self, known.key[0], piece)
    return real(self, session, piece)


@instead("promotion not counted", QueueState, "_promote")
def _promotion_uncounted(real: Real, self: QueueState, payload: Any, lsn: int) -> Any:
    ended = real(self, payload, lsn)
    self.marks = []
    return ended


@instead("purged message stays ready", Purging, "_take")
def _purged_ready(real: Real, self: Purging, first: int, last: int, **how: bool) -> Any:
    taken = real(self, first, last, **how)
    self._term.dispatch.ready.give_back(taken)
    return taken


@instead("client's handle another one at its next entry node", Attachments, "attach")
def _line_forgotten(real: Real, self: Attachments, request: Any, body: Any) -> Any:
    """What it had fetched through the node before stays with its session there."""
    return real(self, request, replace(body, line=0, turn=0))


@instead("client's handle another one at its next entry node", Attachments, "former")
def _line_forgotten_former(real: Real, self: Attachments, session: Any, body: Any) -> None:
    return None
