"""Acks and returns at a master: all of one step become one op of each kind.

The answer follows when the op is stable. A refusal waits, too, until everything before it is
stable.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, OutboxOp, ReturnLaterOp, ReturnOp
from mirrorq.protocol.sessions import Delivery, Purged, Settle, Settled
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.term import PORTION, Term
from mirrorq.replication.state.image import NUMBER_MAX

WENT_BACK = (
    "it had gone back to the queue, after a failover or because it was held for too long: it comes "
    "again, or somebody else has it"
)
"""Usual reason for a refused settlement."""


@define
class PendingSettle:
    """A waiting answer."""

    session: SessionId
    request: int
    refused: tuple[Delivery, ...]
    why: str
    late: tuple[Delivery, ...] = ()
    """Deliveries that are not open any more. Once all earlier ops are applied, it is decided
    whether the ack is a repeat."""


@define
class Duties:
    """Answers that wait until an lsn is applied."""

    settles: list[PendingSettle] = field(factory=list)
    purges: list[tuple[SessionId, int, int]] = field(factory=list)


class Settling:
    """Takes acks, nacks and releases of deliveries. A part of `Master`."""

    def __init__(self, term: Term, endings: Endings, departures: Departures) -> None:
        self.held_moves: list[tuple[SessionId, Settle]] = []
        """Moves that wait until the catalog knows that the queue sends to other queues."""
        self._term = term
        self._endings = endings
        self._departures = departures
        self._acks: list[Range] = []
        self._returns: list[Range] = []
        self._rejects: list[Range] = []
        self._moves: dict[int, list[Range]] = {}
        """Target -> messages to be moved by this step's op."""
        self._settles: list[PendingSettle] = []
        self.duties: dict[int, Duties] = {}
        """Lsn -> answers that are due once applied."""
        self.has_work = False
        """True when settlements are to be flushed."""
        self._return_lsn = 0
        """Lsn of the last return."""
        self._returns_in_log: Fifo[tuple[int, int]] = Fifo()
        """(lsn, messages) of returns that may not be applied."""
        self._leaving_lsn = 0
        """Lsn of the last op that returned messages of ended consumers."""

    # --- Requests -------------------------------------------------------------------------

    def on_settle(self, session: SessionId, body: Settle) -> None:
        """Settle deliveries that a handle holds, or take them back."""
        self.has_work = True
        if body.kind == "move" and not self._departures.is_known:
            self._departures.ask()
            self.held_moves.append((session, body))
            return
        if body.kind == "move" and not (body.target and self._departures.may_go_to(body.target)):
            why = f"queue {body.target}, to which it was to be moved, is deleted"
            pending = PendingSettle(session, body.request, (), why)
            for piece in body.deliveries:
                self._judge(pending, piece, [])
            self._settles.append(pending)
            return
        pending = PendingSettle(session, body.request, (), "")
        for piece in body.deliveries:
            self._settle(pending, body, piece)
        if body.kind != "giveback":
            self._settles.append(pending)

    def _settle(self, pending: PendingSettle, body: Settle, piece: Delivery) -> None:
        """Settle a piece of a delivery; note parts that are not the session's, or not any more."""
        dispatch, session = self._term.dispatch, pending.session
        goes_back = body.kind in ("giveback", "nack")
        taken = (dispatch.take_back if goes_back else dispatch.close_piece)(session, piece)
        if body.kind == "giveback":
            dispatch.ready.give_back(taken)
            return
        if body.kind == "nack" and body.delay_ms:
            due_us = min(self._term.log.time_us + body.delay_ms * 1000, NUMBER_MAX)
            self._term.delays.give_back(taken, due_us)
        else:
            self._way_of(body).extend(taken)
        self._judge(pending, piece, taken, goes_back=goes_back)

    def _judge(
        self,
        pending: PendingSettle,
        piece: Delivery,
        taken: list[Range],
        *,
        goes_back: bool = False,
    ) -> None:
        """Note the parts of a piece that are refused, or that may have been settled before."""
        dispatch = self._term.dispatch
        if not dispatch.is_known(piece):
            pending.refused += pieces_without(piece, taken)
            return
        held = dispatch.open_of(piece)
        pending.refused += tuple(_part(piece, first, last) for first, last in held)
        if goes_back and piece.epoch == self._term.epoch:
            # An earlier copy of this nack, or the end of the consumer, has returned the rest.
            return
        pending.late += pieces_without(piece, (*taken, *held))

    def _way_of(self, body: Settle) -> list[Range]:
        """List of this step's messages that are settled in the same way."""
        match body.kind:
            case "ack":
                return self._acks
            case "reject":
                return self._rejects
            case "move":
                return self._moves.setdefault(body.target, [])
            case _:
                return self._returns

    def drop(self, number: int) -> None:
        """Return the rest of a delivery by portions, as counted returns: its consumer is gone."""
        self._term.dispatch.open.drop(number)

    # --- The end of a step ----------------------------------------------------------------

    def resume_moves(self) -> None:
        """Resume moves that waited for the catalog."""
        if self._departures.is_known:
            held, self.held_moves = self.held_moves, []
            for session, body in held:
                self.on_settle(session, body)

    def flush(self) -> None:
        """Propose the acks and returns of this step, in one op of each kind."""
        self.has_work = False
        log = self._term.log
        if self._acks:
            log.propose(AckOp(tuple(RangeSet(self._acks))))
            self._acks = []
        for target, ranges in self._moves.items():
            if ranges:
                log.propose(OutboxOp(tuple(RangeSet(ranges)), target, "moved"))
        self._moves = {}
        if self._rejects:
            self._endings.end_messages(self._rejects, "rejected")
            self._rejects = []
        dispatch = self._term.dispatch
        is_leaving = bool(dispatch.open.leaving) and self._term.state.applied >= self._leaving_lsn
        if is_leaving:
            self._returns += dispatch.take_leaving(PORTION)
        if self._returns:
            self._return(RangeSet(self._returns))
            self._returns = []
        if is_leaving:
            self._leaving_lsn = log.last
        for due_us, later in self._term.delays.returns():
            self._return(later, due_us)
        if self._settles:
            # A refusal, too, is told only when everything before it is stable.
            self._duty().settles.extend(self._settles)
            self._settles = []

    def _return(self, ranges: RangeSet, due_us: int | None = None) -> None:
        """Return messages, now or later. Messages above the delivery limit end."""
        term = self._term
        limit = term.definition.delivery_limit
        if limit is not None:
            spent = term.state.returned_often(ranges, limit)
            for first, last in spent:
                ranges.remove(first, last)
            self._endings.end_messages(spent, "delivery_limit")
        if ranges and due_us is not None:
            term.log.propose(ReturnLaterOp(tuple(ranges), due_us))
        elif ranges:
            term.log.propose(ReturnOp(tuple(ranges)))
            self._return_lsn = term.log.last
        if ranges:
            self._returns_in_log.append((term.log.last, ranges.count))

    @property
    def returning_count(self) -> int:
        """Number of messages on their way back: in this step or in an op not yet applied."""
        term, in_log = self._term, self._returns_in_log
        while in_log and in_log[0][0] <= term.state.applied:
            in_log.popleft()
        in_step = (last - first + 1 for first, last in (*self._returns, *term.delays.returning))
        return sum(count for _, count in in_log) + sum(in_step)

    @property
    def is_returning(self) -> bool:
        """Return true if a message is on its way back to its place."""
        term = self._term
        return term.state.applied < self._return_lsn or bool(term.dispatch.open.leaving)

    # --- Answers --------------------------------------------------------------------------

    def _duty(self) -> Duties:
        return self.duties.setdefault(self._term.log.last, Duties())

    def answer_purge(self, session: SessionId, request: int, count: int) -> None:
        """Answer with this count when all ops in the log are stable."""
        self._duty().purges.append((session, request, count))

    def _settled(self, settle: PendingSettle) -> Settled:
        """The answer, after all ops before it are applied."""
        refused, unsettled = settle.refused, self._term.dispatch.unsettled
        for piece in settle.late:
            refused += tuple(_part(piece, first, last) for first, last in unsettled(piece))
        return Settled(settle.request, refused, settle.why or (WENT_BACK if refused else ""))

    def discharge(self, lsn: int) -> None:
        """Send the answers that wait for this stable and applied op."""
        duties = self.duties.pop(lsn, None)
        if duties is None:
            return
        reply = self._term.reply
        for settle in duties.settles:
            reply(settle.session, self._settled(settle))
        for session, request, count in duties.purges:
            reply(session, Purged(request, count))


def pieces_without(piece: Delivery, done: Iterable[Range]) -> tuple[Delivery, ...]:
    """The parts of a delivery that are not in `done`."""
    rest = RangeSet(((piece.first, piece.last),))
    for first, last in done:
        rest.remove(first, last)
    return tuple(_part(piece, low, high) for low, high in rest)


def _part(piece: Delivery, first: int, last: int) -> Delivery:
    return Delivery(piece.epoch, piece.number, first, last, piece.count)
