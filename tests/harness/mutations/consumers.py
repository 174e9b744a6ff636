"""Rules of delivery, acks and returns that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.ops import PromotedOp
from mirrorq.protocol.sessions import Delivery
from mirrorq.replication.master.attachments import Attachments
from mirrorq.replication.master.core import Master
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.open_deliveries import Extensions, OpenDelivery
from mirrorq.replication.master.purging import Purging
from mirrorq.replication.master.settling import Settling
from mirrorq.replication.master.term import Term
from mirrorq.replication.state.queue_state import QueueState


@named("delivery without lease")
def _no_lease() -> Sequence[Patch]:
    real = Master.settle

    def settle(self: Master, now_ms: int) -> None:
        lease = self._term.lease
        kept, lease.until_ms = lease.until_ms, now_ms + 1
        real(self, now_ms)
        lease.until_ms = kept

    return [(Master, "settle", settle)]


@named("delivery before the promotion is applied")
def _serve_early() -> Sequence[Patch]:
    """The new master ignores what it inherited, acks too."""
    real = Master.begin

    def begin(self: Master, now_ms: int, promoted: PromotedOp) -> None:
        real(self, now_ms, promoted)
        self.active = True

    def on_applied(self: Master, now_ms: int, entry: Any) -> None:
        if not isinstance(entry.payload, PromotedOp):
            real_applied(self, now_ms, entry)

    real_applied = Master.on_applied
    return [(Master, "begin", begin), (Master, "on_applied", on_applied)]


@named("delivery before all that is ready is sorted in")
def _serve_unsorted() -> Sequence[Patch]:
    """The new master takes messages for ready, and for those of no priority, of which it does not
    know better yet."""

    def go_on(self: Term) -> bool:
        real(self)
        return True

    real = Term.go_on
    return [(Term, "go_on", go_on)]


@named("delivery above the horizon")
def _no_horizon() -> Sequence[Patch]:
    def horizon(self: Dispatch, priority: int) -> int:
        return 1 << 62

    return [(Dispatch, "_horizon", horizon)]


@named("ack by epoch and sequence only")
def _ack_by_sequence() -> Sequence[Patch]:
    def take(self: Dispatch, session: Any, piece: Delivery) -> Any:
        found: list[tuple[int, int]] = []
        for number, known in list(self.open.items()):
            for first, last in known.left.within(piece.first, piece.last):
                self.unacknowledged -= known.left.remove(first, last)
                found.append((first, last))
            if not known.left:
                self._close(number)
        for priority in self.ready.priorities:
            level = self.ready.level(priority)
            for first, last in level.within(piece.first, piece.last):
                level.remove(first, last)
                found.append((first, last))
        return found

    return [(Dispatch, "take", take)]


@named("ack refused when it comes again")
def _refused_again() -> Sequence[Patch]:
    """What is open no more is refused, though this very ack may have ended it."""

    def unsettled(self: Dispatch, piece: Delivery) -> RangeSet:
        return RangeSet(((piece.first, piece.last),))

    return [(Dispatch, "unsettled", unsettled)]


@named("give-back without delivery number")
def _giveback_by_sequence() -> Sequence[Patch]:
    real = Dispatch.take

    def take(self: Dispatch, session: Any, piece: Delivery) -> Any:
        for number, known in list(self.open.items()):
            if known.left.within(piece.first, piece.last):
                piece = Delivery(piece.epoch, number, piece.first, piece.last, known.count)
                return real(self, known.key[0], piece)
        return real(self, session, piece)

    return [(Dispatch, "take", take)]


@named("return not counted")
def _return_uncounted() -> Sequence[Patch]:
    def forget(self: QueueState, ranges: Any, lsn: int) -> None:
        return None

    return [(QueueState, "_return", forget)]


@named("promotion not counted")
def _promotion_uncounted() -> Sequence[Patch]:
    real = QueueState._promote

    def promote(self: QueueState, payload: Any, lsn: int) -> Any:
        ended = real(self, payload, lsn)
        self.marks = []
        return ended

    return [(QueueState, "_promote", promote)]


@named("ack told before it is stable")
def _ack_early() -> Sequence[Patch]:
    real = Settling.flush

    def flush(self: Settling) -> None:
        real(self)
        self.discharge(self._term.log.last)

    return [(Settling, "flush", flush)]


@named("purged message stays ready")
def _purged_ready() -> Sequence[Patch]:
    real = Purging._take

    def take(self: Purging, first: int, last: int) -> list[Range]:
        taken = real(self, first, last)
        self._term.dispatch.give_back(taken)
        return taken

    return [(Purging, "_take", take)]


@named("extension forgotten")
def _not_extended() -> Sequence[Patch]:
    """The master says that a message may be held for longer, and takes it back all the same."""

    def set_(self: Extensions, *_: object) -> None:
        pass

    return [(Extensions, "set", set_)]


@named("extended message goes back with its delivery")
def _back_together() -> Sequence[Patch]:
    """What was handed out together goes back together, whoever has asked for more time."""

    def others(self: OpenDelivery) -> list[Range]:
        return list(self.left)

    return [(OpenDelivery, "others", others)]


@named("client's handle another one at its next entry node")
def _line_forgotten() -> Sequence[Patch]:
    """What it had fetched through the node before stays with its session there."""
    real = Attachments.begin

    def begin(self: Attachments, request: Any, body: Any) -> Any:
        return real(self, request, replace(body, line=0, turn=0))

    def former(self: Attachments, session: Any, body: Any) -> None:
        return None

    return [(Attachments, "begin", begin), (Attachments, "former", former)]
