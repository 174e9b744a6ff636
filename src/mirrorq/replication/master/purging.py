"""Ends or moves stretches of messages that no consumer holds: purges, messages named by sequences,
and acks by sequence under a claim on the whole queue."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS, Timer
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, OutboxOp, Payload, PurgeOp
from mirrorq.protocol.sessions import AckRange, Purge, Purged, Recall
from mirrorq.replication.master.attachments import Attachments
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.settling import Settling
from mirrorq.replication.master.term import PORTION, Term

LOOKS = 4
"""Portions that one step looks at, until a portion needs an op or there is no more."""


@define
class OpenPurge:
    """A purge that waits until handles have given back the messages that no call has returned.

    Nothing is delivered meanwhile. A handle that does not answer in time keeps its messages.
    """

    session: SessionId
    body: Purge
    number: int
    until_ms: int
    waits: dict[SessionId, int]
    """Handle -> its attachment at the start. A new attachment keeps no unseen messages."""


class Purges:
    """The purges under way in one master's term, in the order of their requests.

    Args:
        overdue: wakes the master when a purge has waited long enough.
    """

    def __init__(self, overdue: Timer) -> None:
        self._overdue = overdue
        self._open: list[OpenPurge] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def open_purge(
        self, session: SessionId, body: Purge, until_ms: int, holders: Mapping[SessionId, int]
    ) -> int:
        """Open a purge that waits for these handles; return the number for the recalls."""
        self._number += 1
        self._open.append(OpenPurge(session, body, self._number, until_ms, dict(holders)))
        self._overdue.set_by(until_ms)
        return self._number

    def on_recalled(self, session: SessionId, number: int) -> None:
        """Note that a handle has given back its unseen messages."""
        for purge in self._open:
            if purge.number == number:
                purge.waits.pop(session, None)

    def take_due(self, now_ms: int, attachments: Attachments) -> list[OpenPurge]:
        """Return the purges that wait for no handle any more."""
        due = []
        for purge in self._open:
            waits = any(attachments.number_of(one) == at for one, at in purge.waits.items())
            if not waits or now_ms >= purge.until_ms:
                due.append(purge)
        if due:
            self._open = [purge for purge in self._open if purge not in due]
            self._overdue.set(min((one.until_ms for one in self._open), default=FOREVER_MS))
        return due


@define
class Stretch:
    """A stretch of messages that is ended by portions. One large op would delay all queues of a
    node, or exceed the size of a frame."""

    session: SessionId
    request: int
    first: int
    last: int
    """Sequences that have not ended yet; first > last: nothing is left."""
    is_purge: bool
    target: int = 0
    """Id of the queue to which the messages go; 0: they end."""
    count: int = 0
    """Number of ended messages."""


class Purging:
    """Makes ops of purges, a portion at a time. A part of `Master`."""

    def __init__(self, term: Term, settling: Settling, departures: Departures) -> None:
        self.open = Purges(term.timers.new())
        """Purges with handles to wait for."""
        self._stretches: Fifo[Stretch] = Fifo()
        self._lsn = 0
        """Lsn that must be applied before the next portion: of the last portion, or of the last op
        before a claim's ack."""
        self._more = term.timers.new()
        """Wakes the master to look at the next portion."""
        self._term = term
        self._settling = settling
        self._departures = departures
        self._held: list[tuple[SessionId, Purge]] = []
        """Purges that wait until the catalog knows that the queue sends to other queues."""

    @property
    def is_open(self) -> bool:
        """True while a purge forbids deliveries."""
        return bool(self.open or self._stretches or self._held)

    def on_purge(self, now_ms: int, session: SessionId, body: Purge) -> None:
        """Begin a purge of ready, delayed, and fetched but unseen messages."""
        term = self._term
        if body.target and not self._departures.may_go_to(body.target):
            why = f"queue {body.target}, or this one, is deleted"
            term.reply(session, Purged(body.request, 0, why))
            return
        if body.target and not self._departures.is_known:
            self._departures.ask()
            self._held.append((session, body))
            return
        holders = {
            session: term.attachments.number_of(session)
            for session, _ in term.dispatch.open.fetchers()
            if session in term.attachments
        }
        until_ms = now_ms + term.config.failure_ms
        number = self.open.open_purge(session, body, until_ms, holders)
        for holder in holders:
            term.reply(holder, Recall(0, number))

    def on_recalled(self, session: SessionId, number: int) -> None:
        """Note that a handle has given back its unseen messages."""
        self.open.on_recalled(session, number)

    def end_portion(self, now_ms: int) -> None:
        """Go on with purges that wait for no handle: end a portion."""
        if self._held and self._departures.is_known:
            held, self._held = self._held, []
            for session, body in held:
                self.on_purge(now_ms, session, body)
        end = self._term.state.next_sequence - 1
        for purge in self.open.take_due(now_ms, self._term.attachments):
            body = purge.body
            first, last = max(body.first, 1), min(body.last, end)
            stretch = Stretch(purge.session, body.request, first, last, True, body.target)
            self._stretches.append(stretch)
        for _ in range(LOOKS):
            if self._is_ready:
                self._go_on(self._stretches[0])
        if self._is_ready:
            self._more.set(now_ms)
        else:
            self._more.clear()

    @property
    def _is_ready(self) -> bool:
        if not self._stretches or self._term.state.applied < self._lsn:
            return False
        # A purge spares messages held at its start. A claim's ack also ends returning messages.
        return self._stretches[0].is_purge or not self._settling.is_returning

    def _go_on(self, stretch: Stretch) -> None:
        """End a portion. After the last portion, answer when its op is stable."""
        term = self._term
        upto = self._reach(stretch.first, stretch.last)
        ended = RangeSet(self._take(stretch.first, upto, with_lost=not stretch.target))
        stretch.first = upto + 1
        if ended:
            term.log.propose(_op_of(stretch, tuple(ended)))
            self._lsn = term.log.last
            stretch.count += ended.count
        if stretch.first > stretch.last:
            self._stretches.popleft()
            self._settling.answer_purge(stretch.session, stretch.request, stretch.count)

    def _reach(self, first: int, last: int) -> int:
        """Last sequence of a portion from `first` on."""
        state, dispatch = self._term.state, self._term.dispatch
        first, end = state.live.first_run(first, last)
        if first > end:
            return last
        if state.places:
            # Messages with places of their own stand in their levels in another order.
            return min(last, first + PORTION - 1)
        levels = dispatch.ready.levels.priorities
        sets = [state.live, dispatch.ready.aside, *map(dispatch.ready.levels.level, levels)]
        upto = min(each.reach(first, last, PORTION // len(levels)) for each in sets)
        return state.delayed.reach(first, upto, PORTION)

    def _take(self, first: int, last: int, *, with_lost: bool) -> list[Range]:
        """Take ready and delayed messages out. Lost messages stay unless `with_lost`: no courier
        could bring them to another queue."""
        dispatch = self._term.dispatch
        return [
            *dispatch.ready.take_out(RangeSet(((first, last),))),
            *(dispatch.ready.take_aside(first, last) if with_lost else ()),
            *self._term.delays.take_out(first, last),
        ]

    def on_ack_range(self, session: SessionId, body: AckRange) -> None:
        """Ack messages that the holder of a claim has read by other means. The answer follows when
        the op is stable. A repeated request ends the rest."""
        term = self._term
        claim = term.dispatch.consumers.claim()
        if claim is None or claim.key != (session, body.number):
            why = f"{claim.who} holds the queue" if claim else "nobody holds the queue exclusively"
            term.reply(session, Purged(body.request, 0, f"the claim has ended: {why}"))
            return
        first, last = max(body.first, 1), min(body.last, term.state.next_sequence - 1)
        self._lsn = term.log.last
        self._stretches.append(Stretch(session, body.request, first, last, False))


def _op_of(stretch: Stretch, ended: tuple[Range, ...]) -> Payload:
    """The op that ends a portion of a stretch."""
    if stretch.target:
        return OutboxOp(ended, stretch.target, "moved")
    return PurgeOp(ended) if stretch.is_purge else AckOp(ended)
