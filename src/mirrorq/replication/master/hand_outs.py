"""Who is handed what, and when: consumers' places, hand-outs, horizons and recalls at a master."""

from __future__ import annotations

from mirrorq.containers.ranges import RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import ConsumerRefused, Deliver, HandOut, Recall, Subscribe
from mirrorq.replication.master.delivery import ConsumerKey, ConsumerSeat
from mirrorq.replication.master.reign import LEASE_IDLE_MS, Reign
from mirrorq.replication.master.settling import Settling

__all__ = ["HandOuts"]

LABEL_CHARS_MAX = 200
"""What is kept of how a consumer names itself."""


class HandOuts:
    """One reign's."""

    def __init__(self, reign: Reign, settling: Settling) -> None:
        self._reign = reign
        self._settling = settling
        self._wanted_ms = -LEASE_IDLE_MS
        """When there was last something to hand out."""
        self.overdue = reign.timers.new()
        """When some message may have been held for too long."""
        self.more = reign.timers.new()
        """More is to be handed out at once, in the next step."""

    # --- Places ---------------------------------------------------------------------------

    def subscribe(self, session: SessionId, body: Subscribe) -> None:
        """Seat a consumer, or tell it why not."""
        key = (session, body.number)
        seat = ConsumerSeat(
            key,
            body.prefetch,
            body.exclusive,
            body.auto_ack,
            bare=body.bare,
            label=body.label[:LABEL_CHARS_MAX],
        )
        why = self._crowd_text(key) or self._reign.delivery.subscribe(seat)
        if why:
            self._reign.reply(session, ConsumerRefused(body.number, why))

    def _crowd_text(self, key: ConsumerKey) -> str:
        """Why there is no room for one consumer more, "" when there is."""
        reign = self._reign
        most, consumers = reign.definition.max_consumers, reign.delivery.consumers
        if most is None or not key[1] or key in consumers:
            return ""
        count = reign.delivery.consumer_count
        if count < most:
            return ""
        return f"the queue has {count} consumers, its policy says max-consumers {most}"

    def attach(self, session: SessionId, held: tuple[HandOut, ...]) -> None:
        """The session begins anew with what it holds. The rest was seen by nobody: it goes back
        uncounted."""
        delivery, epoch = self._reign.delivery, self._reign.epoch
        delivery.unsubscribe_session(session)
        keep: dict[int, RangeSet] = {}
        for piece in held:
            if piece.epoch == epoch:
                keep.setdefault(piece.number, RangeSet()).add(piece.first, piece.last)
        for number, handout in delivery.holdings(session):
            unseen = handout.left.copy()
            for first, last in keep.get(number, ()):
                unseen.remove(first, last)
            for first, last in list(unseen):
                piece = HandOut(epoch, number, first, last, handout.count)
                delivery.give_back(delivery.take_back(session, piece))

    def succeed(self, former: SessionId, session: SessionId) -> None:
        """A handle goes on as another session: what it holds is that one's."""
        delivery = self._reign.delivery
        delivery.unsubscribe_session(former)
        delivery.rename(former, session)

    def drop(self, session: SessionId) -> None:
        """The session is gone: what it held goes back, counted."""
        delivery = self._reign.delivery
        delivery.unsubscribe_session(session)
        delivery.leave(session)

    def expel(self, session: SessionId, consumer: int, why: str) -> None:
        """Somebody has disconnected one consumer: what it held goes back, counted."""
        delivery, key = self._reign.delivery, (session, consumer)
        if key in delivery.consumers:
            for number, handout in delivery.holdings(session):
                if handout.key == key:
                    self._settling.drop(number)
            self._cancel(key, why)

    def end_overdue(self, now_ms: int) -> None:
        """Messages held for too long go back; their consumer hangs and is cancelled."""
        delivery, timeout_ms = self._reign.delivery, self._reign.config.consumer_timeout_ms
        for number in delivery.handed_before(now_ms - timeout_ms):
            key = delivery.open[number].key
            seat = delivery.consumers.get(key)
            is_leaving = not delivery.is_held(number, key[0])
            if is_leaving or (seat is not None and seat.bare):
                # A lease runs for as long as its session gives signs of life.
                delivery.renew(number, now_ms)
                continue
            self._settling.drop(number)
            if seat is not None and key[1]:
                why = (
                    f"it held a message unacknowledged for {timeout_ms} ms (consumer_timeout_ms): "
                    "the message went back. Ack sooner, or raise the time"
                )
                self._cancel(key, why)
        oldest_ms = delivery.oldest_ms
        self.overdue.set(FOREVER_MS if oldest_ms is None else oldest_ms + timeout_ms + 1)

    def _cancel(self, key: ConsumerKey, why: str) -> None:
        self._reign.delivery.unsubscribe(key)
        self._reign.reply(key[0], ConsumerRefused(key[1], why))

    # --- Handing out ----------------------------------------------------------------------

    def run(self, now_ms: int, *, is_free: bool) -> None:
        """Hand out what is ready, while the lease runs.

        Args:
            is_free: nothing else stands in the way.
        """
        reign = self._reign
        delivery = reign.delivery
        has_takers = delivery.hungry and bool(delivery.ready)
        if has_takers:
            self._wanted_ms = now_ms
        if now_ms >= reign.lease.until_ms or not is_free:
            return
        if has_takers:
            for (session, _), deliver in delivery.hand_out(now_ms):
                reign.reply(session, deliver)
            if delivery.open:
                self.overdue.set_by(now_ms + reign.config.consumer_timeout_ms + 1)
            if delivery.is_cut:
                self.more.set(now_ms)
        self._recall()

    def _recall(self) -> None:
        """A consumer waits while handles hold messages that no call has asked for."""
        delivery = self._reign.delivery
        if not delivery.fetching or delivery.ready or not delivery.hungry:
            return
        for holder in list(delivery.fetching):
            # Once for all that it has fetched by now: it gives back all that nobody had seen.
            if delivery.is_hungry_beside(holder):
                del delivery.fetching[holder]
                self._reign.reply(holder[0], Recall(holder[1]))

    def move_horizon(self) -> None:
        """Keep the horizons ahead of demand, so that handing out waits for no round trip."""
        delivery, state = self._reign.delivery, self._reign.state
        if not delivery.hungry:
            return
        due = self._reign.horizons.due(
            delivery.ready,
            state.horizon,
            state.lanes,
            state.next_sequence,
            delivery.wanted(),
            delivery.prefetch_max(),
        )
        if due is not None:
            self._reign.log.propose(due)

    def on_undelivered(self, session: SessionId, deliver: Deliver) -> None:
        """Too late or too much to send: nobody has seen these, and they were not handed over."""
        for piece in deliver.handouts:
            self._reign.delivery.unhand((session, deliver.consumer), piece)

    # --- Time -----------------------------------------------------------------------------

    @property
    def lease_wanted_until_ms(self) -> int:
        """Something is to be handed out, or was lately: an idle queue asks for no lease."""
        return self._wanted_ms + LEASE_IDLE_MS
