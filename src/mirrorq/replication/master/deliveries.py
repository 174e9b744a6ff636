"""Who is handed what, and when: consumers' places, deliveries, horizons and recalls at a master."""

from __future__ import annotations

from mirrorq.containers.ranges import RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import ConsumerRefused, Deliver, Delivery, Recall, Subscribe
from mirrorq.replication.master.dispatch import ConsumerKey, Subscription
from mirrorq.replication.master.settling import Settling
from mirrorq.replication.master.term import LEASE_IDLE_MS, Term

__all__ = ["Deliveries"]

LABEL_CHARS_MAX = 200
"""What is kept of how a consumer names itself."""


class Deliveries:
    """Seats consumers, hands out what is ready, recalls what is held too long. A part of
    `Master`."""

    def __init__(self, term: Term, settling: Settling) -> None:
        self._term = term
        self._settling = settling
        self._wanted_ms = -LEASE_IDLE_MS
        """When there was last something to hand out."""
        self.overdue = term.timers.new()
        """When some message may have been held for too long."""
        self.more = term.timers.new()
        """More is to be handed out at once, in the next step."""

    # --- Places ---------------------------------------------------------------------------

    def subscribe(self, session: SessionId, body: Subscribe) -> None:
        """Seat a consumer, or tell it why not."""
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
            self._term.reply(session, ConsumerRefused(body.number, why))

    def _crowd_text(self, key: ConsumerKey) -> str:
        """Why there is no room for one consumer more, "" when there is."""
        term = self._term
        most, consumers = term.definition.max_consumers, term.dispatch.consumers
        if most is None or not key[1] or key in consumers:
            return ""
        count = term.dispatch.consumer_count
        if count < most:
            return ""
        return f"the queue has {count} consumers, its policy says max-consumers {most}"

    def attach(self, session: SessionId, held: tuple[Delivery, ...]) -> None:
        """The session begins anew with what it holds. The rest was seen by nobody: it goes back
        uncounted."""
        dispatch, epoch = self._term.dispatch, self._term.epoch
        dispatch.unsubscribe_session(session)
        keep: dict[int, RangeSet] = {}
        for piece in held:
            if piece.epoch == epoch:
                keep.setdefault(piece.number, RangeSet()).add(piece.first, piece.last)
        for number, delivery in dispatch.holdings(session):
            unseen = delivery.left.copy()
            for first, last in keep.get(number, ()):
                unseen.remove(first, last)
            for first, last in list(unseen):
                piece = Delivery(epoch, number, first, last, delivery.count)
                dispatch.give_back(dispatch.take_back(session, piece))

    def succeed(self, former: SessionId, session: SessionId) -> None:
        """A handle goes on as another session: what it holds is that one's."""
        dispatch = self._term.dispatch
        dispatch.unsubscribe_session(former)
        dispatch.rename(former, session)

    def drop(self, session: SessionId) -> None:
        """The session is gone: what it held goes back, counted."""
        dispatch = self._term.dispatch
        dispatch.unsubscribe_session(session)
        dispatch.leave(session)

    def expel(self, session: SessionId, consumer: int, why: str) -> None:
        """Somebody has disconnected one consumer: what it held goes back, counted."""
        dispatch, key = self._term.dispatch, (session, consumer)
        if key in dispatch.consumers:
            for number, delivery in dispatch.holdings(session):
                if delivery.key == key:
                    self._settling.drop(number)
            self._cancel(key, why)

    def end_overdue(self, now_ms: int) -> None:
        """Messages held for too long go back; their consumer hangs and is cancelled."""
        dispatch, timeout_ms = self._term.dispatch, self._term.config.consumer_timeout_ms
        for number in dispatch.handed_before(now_ms - timeout_ms):
            key = dispatch.open[number].key
            subscription = dispatch.consumers.get(key)
            is_leaving = not dispatch.is_held(number, key[0])
            if is_leaving or (subscription is not None and subscription.bare):
                # A lease runs for as long as its session gives signs of life.
                dispatch.renew(number, now_ms)
                continue
            self._settling.drop(number)
            if subscription is not None and key[1]:
                why = (
                    f"it held a message unacknowledged for {timeout_ms} ms (consumer_timeout_ms): "
                    "the message went back. Ack sooner, or raise the time"
                )
                self._cancel(key, why)
        oldest_ms = dispatch.oldest_ms
        self.overdue.set(FOREVER_MS if oldest_ms is None else oldest_ms + timeout_ms + 1)

    def _cancel(self, key: ConsumerKey, why: str) -> None:
        self._term.dispatch.unsubscribe(key)
        self._term.reply(key[0], ConsumerRefused(key[1], why))

    # --- Handing out ----------------------------------------------------------------------

    def run(self, now_ms: int, *, is_free: bool) -> None:
        """Hand out what is ready, while the lease runs.

        Args:
            is_free: nothing else stands in the way.
        """
        term = self._term
        dispatch = term.dispatch
        has_takers = dispatch.hungry and bool(dispatch.ready)
        if has_takers:
            self._wanted_ms = now_ms
        if now_ms >= term.lease.until_ms or not is_free:
            return
        if has_takers:
            for (session, _), deliver in dispatch.deliver(now_ms):
                term.reply(session, deliver)
            if dispatch.open:
                self.overdue.set_by(now_ms + term.config.consumer_timeout_ms + 1)
            if dispatch.is_cut:
                self.more.set(now_ms)
        self._recall()

    def _recall(self) -> None:
        """A consumer waits while handles hold messages that no call has asked for."""
        dispatch = self._term.dispatch
        if not dispatch.fetching or dispatch.ready or not dispatch.hungry:
            return
        for holder in list(dispatch.fetching):
            # Once for all that it has fetched by now: it gives back all that nobody had seen.
            if dispatch.is_hungry_beside(holder):
                del dispatch.fetching[holder]
                self._term.reply(holder[0], Recall(holder[1]))

    def move_horizon(self) -> None:
        """Keep the horizons ahead of demand, so that handing out waits for no round trip."""
        dispatch, state = self._term.dispatch, self._term.state
        if not dispatch.hungry:
            return
        due = self._term.horizons.due(
            dispatch.ready,
            state.horizon,
            state.lanes,
            state.next_sequence,
            dispatch.wanted(),
            dispatch.prefetch_max(),
        )
        if due is not None:
            self._term.log.propose(due)

    def on_undelivered(self, session: SessionId, deliver: Deliver) -> None:
        """Too late or too much to send: nobody has seen these, and they were not handed over."""
        for piece in deliver.deliveries:
            self._term.dispatch.unhand((session, deliver.consumer), piece)

    # --- Time -----------------------------------------------------------------------------

    @property
    def lease_wanted_until_ms(self) -> int:
        """Something is to be handed out, or was lately: an idle queue asks for no lease."""
        return self._wanted_ms + LEASE_IDLE_MS
