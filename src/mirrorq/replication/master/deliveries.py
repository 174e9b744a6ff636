"""Delivers messages at a master: consumers, deliveries, horizons and recalls."""

from __future__ import annotations

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol import sessions
from mirrorq.protocol.identities import SessionId
from mirrorq.replication.master.consumers import Subscription
from mirrorq.replication.master.open_deliveries import ConsumerKey
from mirrorq.replication.master.settling import WENT_BACK, Settling, pieces_without
from mirrorq.replication.master.term import LEASE_IDLE_MS, Term

EXTENDED_WHY = (
    "it held a message for longer than it had asked for (extend): the message went back. Extend it "
    "again before that time is over"
)
LABEL_CHARS_MAX = 200
"""Greatest length of a consumer's label; longer labels are cut."""


class Deliveries:
    """Seats consumers, delivers ready messages, recalls messages held too long. A part of
    `Master`."""

    def __init__(self, term: Term, settling: Settling) -> None:
        self._term = term
        self._settling = settling
        self._wanted_ms = -LEASE_IDLE_MS
        """Time at which a consumer last waited while messages were ready."""
        self.overdue = term.timers.new()
        """Wakes the master when a message may have been held for too long."""
        self.more = term.timers.new()
        """Wakes the master when more is to be delivered in the next step."""

    # --- Consumers ------------------------------------------------------------------------

    def subscribe(self, session: SessionId, body: sessions.Subscribe) -> None:
        """Seat a consumer, or refuse with a reason."""
        key = (session, body.number)
        subscription = Subscription(
            key,
            body.prefetch,
            body.exclusive,
            body.auto_ack,
            bare=body.bare,
            label=body.label[:LABEL_CHARS_MAX],
        )
        why = self._crowd_text(key) or self._term.dispatch.subscribe(subscription)
        if why:
            self._term.reply(session, sessions.ConsumerRefused(body.number, why))

    def _crowd_text(self, key: ConsumerKey) -> str:
        """Why there is no room for another consumer, "" when there is."""
        term = self._term
        most, consumers = term.definition.max_consumers, term.dispatch.consumers.by_key
        if most is None or not key[1] or key in consumers:
            return ""
        count = term.dispatch.consumers.callback_count
        if count < most:
            return ""
        return f"the queue has {count} consumers, its policy says max-consumers {most}"

    def attach(self, session: SessionId, held: tuple[sessions.Delivery, ...]) -> None:
        """Attach a session again with the messages that its handle has seen. Messages that the
        handle has not seen go back uncounted."""
        dispatch, epoch = self._term.dispatch, self._term.epoch
        dispatch.consumers.remove_session(session)
        keep: dict[int, RangeSet] = {}
        for piece in held:
            if piece.epoch == epoch:
                keep.setdefault(piece.number, RangeSet()).add(piece.first, piece.last)
        for number, delivery in dispatch.open.holdings(session):
            unseen = delivery.left.copy()
            for first, last in keep.get(number, ()):
                unseen.remove(first, last)
            for first, last in list(unseen):
                piece = sessions.Delivery(epoch, number, first, last, delivery.count)
                dispatch.ready.give_back(dispatch.take_back(session, piece))

    def succeed(self, former: SessionId, session: SessionId) -> None:
        """Give all holdings of a session to its successor."""
        dispatch = self._term.dispatch
        dispatch.consumers.remove_session(former)
        dispatch.rename(former, session)

    def drop(self, session: SessionId, seen: int = sessions.ALL_SEEN) -> None:
        """End a session that is gone: held messages go back, counted. Deliveries beyond the number
        `seen` have not reached the session: they go back uncounted."""
        dispatch, epoch = self._term.dispatch, self._term.epoch
        for number, delivery in dispatch.open.holdings(session):
            for first, last in list(delivery.left) if number > seen else ():
                piece = sessions.Delivery(epoch, number, first, last, delivery.count)
                dispatch.ready.give_back(dispatch.take_back(session, piece))
        dispatch.consumers.remove_session(session)
        dispatch.leave(session)

    def expel(self, session: SessionId, consumer: int, why: str) -> None:
        """End a consumer that an operator has disconnected: held messages go back, counted."""
        dispatch, key = self._term.dispatch, (session, consumer)
        if key in dispatch.consumers.by_key:
            for number, delivery in dispatch.open.holdings(session):
                if delivery.key == key:
                    self._settling.drop(number)
            self._cancel(key, why)

    def end_overdue(self, now_ms: int) -> None:
        """Return messages that were held for too long, and cancel their consumers."""
        dispatch, timeout_ms = self._term.dispatch, self.timeout_ms
        for number, due in dispatch.open.take_extended(now_ms).items():
            self._end_hold(number, list(due), EXTENDED_WHY)
        alive: dict[ConsumerKey, bool] = {}
        for number in dispatch.open.handed_before(now_ms - timeout_ms) if timeout_ms else ():
            delivery = dispatch.open.by_number[number]
            key = delivery.key
            if key[1] and key not in alive:
                alive[key] = dispatch.open.has_extended(key)
            # Messages that wait behind a message with an extended time wait, too.
            over = [] if alive.get(key) else delivery.others()
            if not self._end_hold(number, over, self._timeout_why(timeout_ms)):
                dispatch.open.renew(number, now_ms)
        self.set_overdue()

    def _end_hold(self, number: int, over: list[Range], why: str) -> bool:
        """End the hold of these messages of a delivery. Returns true if the whole delivery ends."""
        dispatch = self._term.dispatch
        key = dispatch.open.by_number[number].key
        subscription = dispatch.consumers.by_key.get(key)
        is_leaving = not dispatch.open.is_held(number, key[0])
        # A lease runs for as long as its session gives signs of life.
        is_lease = subscription is not None and subscription.bare
        if not over or is_leaving or is_lease:
            return False
        ending = dispatch.open.part(number, over)
        self._settling.drop(ending)
        if subscription is not None and key[1]:
            self._cancel(key, why)
        return ending == number

    @property
    def timeout_ms(self) -> int:
        """Time in ms for which a message may be held unacknowledged, 0: without end."""
        own = self._term.definition.consumer_timeout
        return self._term.config.consumer_timeout_ms if own is None else own

    def _timeout_why(self, timeout_ms: int) -> str:
        is_own = self._term.definition.consumer_timeout is not None
        by = "the queue's consumer-timeout" if is_own else "consumer_timeout_ms"
        return (
            f"it held a message unacknowledged for {timeout_ms} ms ({by}): the message went back. "
            "Ack sooner, extend the message's time, or raise the queue's"
        )

    def set_overdue(self) -> None:
        """Set the timer for the next message that may have been held for too long."""
        dispatch, timeout_ms = self._term.dispatch, self.timeout_ms
        oldest_ms = dispatch.open.oldest_ms if timeout_ms else None
        next_ms = FOREVER_MS if oldest_ms is None else oldest_ms + timeout_ms + 1
        self.overdue.set(min(next_ms, dispatch.open.extended_ms))

    def extend(self, now_ms: int, session: SessionId, body: sessions.Extend) -> None:
        """Extend the time of held messages, as a handle asks."""
        until_ms = now_ms + body.duration_ms if body.duration_ms else FOREVER_MS
        refused: tuple[sessions.Delivery, ...] = ()
        for piece in body.deliveries:
            found = self._term.dispatch.extend(session, piece, until_ms)
            refused += pieces_without(piece, found)
        self.overdue.set_by(until_ms)
        self._term.reply(
            session, sessions.Settled(body.request, refused, WENT_BACK if refused else "")
        )

    def _cancel(self, key: ConsumerKey, why: str) -> None:
        self._term.dispatch.consumers.remove(key)
        self._term.reply(key[0], sessions.ConsumerRefused(key[1], why))

    # --- Deliveries -----------------------------------------------------------------------

    def deliver_ready(self, now_ms: int, *, is_free: bool) -> None:
        """Deliver ready messages, while the lease runs.

        Args:
            is_free: no other reason forbids deliveries.
        """
        term = self._term
        dispatch = term.dispatch
        has_takers = bool(dispatch.consumers.waiting and dispatch.ready.levels)
        if has_takers:
            self._wanted_ms = now_ms
        if now_ms >= term.lease.until_ms or not is_free:
            return
        if has_takers:
            for (session, _), deliver in dispatch.deliver(now_ms):
                term.reply(session, deliver)
            timeout_ms = self.timeout_ms
            if dispatch.open.by_number and timeout_ms:
                self.overdue.set_by(now_ms + timeout_ms + 1)
            if dispatch.is_cut:
                self.more.set(now_ms)
            elif dispatch.again_ms != FOREVER_MS:
                self.more.set(dispatch.again_ms)
        self._recall()

    def _recall(self) -> None:
        """Recall messages that no call has asked for, while another consumer waits."""
        dispatch = self._term.dispatch
        if not dispatch.open.fetching or dispatch.ready.levels or not dispatch.consumers.waiting:
            return
        for holder in list(dispatch.open.fetching):
            # One recall is enough: the handle gives back all unseen messages that it has fetched.
            if dispatch.consumers.has_waiting_beside(holder):
                del dispatch.open.fetching[holder]
                self._term.reply(holder[0], sessions.Recall(holder[1]))

    def move_horizon(self) -> None:
        """Move the horizons ahead of demand, so that no delivery waits for a round trip."""
        dispatch, state = self._term.dispatch, self._term.state
        if not dispatch.consumers.waiting:
            return
        due = self._term.horizons.due(
            dispatch.ready.levels,
            state.horizon,
            state.levels,
            state.next_sequence,
            dispatch.consumers.wanted,
            dispatch.consumers.prefetch_max(),
        )
        if due is not None:
            self._term.log.propose(due)

    def on_undelivered(self, session: SessionId, deliver: sessions.Deliver) -> None:
        """Take back deliveries that were too late or too large to send: nobody has seen them."""
        for piece in deliver.deliveries:
            self._term.dispatch.unhand((session, deliver.consumer), piece)

    # --- Time -----------------------------------------------------------------------------

    @property
    def lease_wanted_until_ms(self) -> int:
        """End of the need for the lease: an idle queue asks for no lease."""
        return self._wanted_ms + LEASE_IDLE_MS
