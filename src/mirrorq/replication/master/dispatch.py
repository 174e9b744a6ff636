"""Dispatch of one master's term: gives ready messages to consumers, and takes settled ones back.

Nothing here is replicated. The dispatch is made from the applied state when the master's promotion
is applied, and ends with the term. (Epoch, sequence, delivery count, number) names a delivery for
ever.

Each message is in exactly one place: ready (`ready_messages`), in one open delivery
(`open_deliveries`), or on its way out. A message on its way out has its ack, return or purge in the
log, not applied yet.

A step looks at the consumers that wait and at the deliveries that it makes or ends. It never looks
at all consumers or all open deliveries: consumers with slow callbacks hold tens of thousands.
"""

from __future__ import annotations

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Deliver, Delivery
from mirrorq.replication.master.consumers import Consumers, Subscription
from mirrorq.replication.master.open_deliveries import ConsumerKey, OpenDeliveries
from mirrorq.replication.master.ready_messages import ReadyMessages
from mirrorq.replication.master.suspects import Suspects
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

PIECES_MAX = 512
"""Most deliveries in a step."""
DELIVER_COUNT = 4096
"""Messages in a Deliver. Bounds its size together with the byte bound of the driver."""


class Dispatch:
    """Ready messages, consumers in rotation, and open deliveries."""

    def __init__(
        self, state: QueueState, epoch: int, bodies: Transfer, failure_ms: int = 0
    ) -> None:
        self._state = state
        self._epoch = epoch
        self._bodies = bodies
        """Knows which bodies are missing on this disk."""
        self._suspects = Suspects(failure_ms)
        self.ready = ReadyMessages(state, bodies, self._suspects)
        self.consumers = Consumers()
        self.open = OpenDeliveries()
        self.is_cut = False
        """True if the last step made as many deliveries as a step may, and more are possible."""
        self.is_single = False
        """single-active-consumer: one consumer at a time is served."""
        self.again_ms = FOREVER_MS
        """Time at which a suspect message that waits now may be delivered."""

    # --- Consumers ----------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> str:
        """Add a consumer or change it; return the reason of a refusal, or ""."""
        refused = self.consumers.refusal_of(subscription)
        if not refused and subscription.is_claim:
            refused = self._held_by_others(subscription.key)
        if not refused:
            self.consumers.add(subscription)
        return refused

    def _held_by_others(self, key: ConsumerKey) -> str:
        """Text about another consumer that holds messages unacknowledged, "" without any."""
        for delivery in self.open.by_number.values():
            if delivery.key != key:
                subscription = self.consumers.by_key.get(delivery.key)
                who = (
                    subscription.who
                    if subscription is not None
                    else f"a handle on node {delivery.key[0].node}"
                )
                return f"{who} holds messages unacknowledged, {delivery.left.first} the first"
        return ""

    def active_subscription(self) -> Subscription | None:
        """single-active-consumer: the consumer that is served.

        The oldest consumer. Without consumers, the handle whose get() holds unsettled messages,
        else the oldest that waits in a get(). A handle that only might call again blocks nobody.
        """
        subscriptions = self.consumers.by_key.values()
        for is_next in (
            lambda subscription: subscription.key[1] != 0,
            lambda subscription: self.open.has_any(subscription.key),
            lambda subscription: subscription.wants > 0,
        ):
            found = next(filter(is_next, subscriptions), None)
            if found is not None:
                return found
        return None

    @property
    def taker_count(self) -> int:
        """Number of callbacks, and of handles whose get() waits for a message or holds one."""
        getters = {session for session, _ in self.open.fetchers()}
        getters.update(session for session, number in self.consumers.waiting if not number)
        return self.consumers.callback_count + len(getters)

    # --- Deliveries ---------------------------------------------------------------------

    def deliver(self, now_ms: int = 0) -> list[tuple[ConsumerKey, Deliver]]:
        """Give ready messages below their horizons to consumers, in rotation.

        Higher priorities come first: no message overtakes a message that waits for its horizon.
        """
        self.again_ms = FOREVER_MS
        pieces: dict[ConsumerKey, list[Delivery]] = {}
        counts: dict[ConsumerKey, int] = {}
        ready, missing = self.ready, self._bodies.missing
        self.is_cut = False
        count = 0
        while True:
            priority, level = ready.levels.top()
            if not level:
                break
            horizon = self._horizon(priority)
            if missing:
                upto = ready.whole_to(level)
                if level.first == upto and ready.set_front_aside(level):
                    count += 1
                    self.is_cut = count == PIECES_MAX
                    if self.is_cut:
                        break
                    continue
                horizon = min(horizon, upto)
            if level.first >= horizon:
                break
            is_suspect = self._is_suspect(level)
            subscription = self._next_subscription(counts, now_ms if is_suspect else None)
            if subscription is None:
                break
            self.is_cut = count == PIECES_MAX
            if self.is_cut:
                break
            count += 1
            share = self._share(subscription, counts.get(subscription.key, 0))
            if self._suspects.messages and subscription.is_tried:
                first, last, _ = ready.front(level)
                share = self._suspects.share(first, min(last, first + share - 1))
            piece = self._take_front(subscription, priority, horizon, share)
            self._suspects.remove(piece.first, piece.last)
            delivery = self.open.by_number[piece.number]
            delivery.handed_ms = now_ms
            if is_suspect:
                delivery.is_suspect = True
                self._suspects.trials[subscription.key[0]] = piece.number
            pieces.setdefault(subscription.key, []).append(piece)
            taken = piece.last - piece.first + 1
            counts[subscription.key] = counts.get(subscription.key, 0) + taken
        by_key = self.consumers.by_key
        return [
            (key, Deliver(key[1], tuple(list_), (), by_key[key].bare))
            for key, list_ in pieces.items()
        ]

    def _horizon(self, priority: int) -> int:
        state = self._state
        return state.levels[priority].horizon if priority else state.horizon

    def _is_suspect(self, level: RangeSet) -> bool:
        """Return true if the first message of a level may have killed a process."""
        suspects = self._suspects.messages
        return bool(suspects) and self.ready.front(level)[0] in suspects

    def _is_on_trial(self, subscription: Subscription, now_ms: int) -> bool:
        """Return true if the callback's handle has held a suspect message, but not for long. Then
        `again_ms` is set."""
        session = subscription.key[0]
        number = self._suspects.trials.get(session, 0)
        if not subscription.is_tried or not self.open.is_held(number, session):
            return False
        over_ms = self.open.by_number[number].handed_ms + self._suspects.trial_ms
        if now_ms >= over_ms:
            return False
        self.again_ms = min(self.again_ms, over_ms)
        return True

    def _next_subscription(
        self, counts: dict[ConsumerKey, int], trial_ms: int | None
    ) -> Subscription | None:
        """The consumer that gets the next delivery, or None.

        Args:
            trial_ms: the time, if the message may have killed a process; else None.
        """
        consumers = self.consumers
        claim = consumers.claim()
        if claim is not None or self.is_single:
            active = claim or self.active_subscription()
            if active is None or active.wants <= 0 or counts.get(active.key, 0) >= DELIVER_COUNT:
                return None
            if trial_ms is not None and self._is_on_trial(active, trial_ms):
                return None
            return active
        waiting = consumers.waiting
        for _ in range(len(waiting)):
            key = next(iter(waiting))
            waiting[key] = waiting.pop(key)
            if trial_ms is not None and self._is_on_trial(consumers.by_key[key], trial_ms):
                continue
            if counts.get(key, 0) < DELIVER_COUNT:
                return consumers.by_key[key]
        return None

    def _share(self, subscription: Subscription, given: int) -> int:
        """Size of the next delivery. Few messages are spread singly; many go in large pieces."""
        waiting, ready = len(self.consumers.waiting), self.ready.levels.count
        is_shared = waiting > 1 and not self.is_single
        fair = max(1, ready // waiting) if is_shared else ready
        return min(subscription.wants, fair, DELIVER_COUNT - given)

    def _take_front(
        self, subscription: Subscription, priority: int, horizon: int, share: int
    ) -> Delivery:
        first, last, count = self.ready.take_front(priority, horizon, share, subscription.size_left)
        if subscription.size_left is not None:
            subscription.size_left -= self._state.columns.total(first, last)
        self.open.add(subscription.key, count, first, last)
        subscription.handed += last - first + 1
        self.consumers.note_wants(subscription)
        return Delivery(self._epoch, self.open.last_number, first, last, count)

    def unhand(self, key: ConsumerKey, piece: Delivery) -> None:
        """Undo a delivery that was decided and not sent."""
        delivery = self.open.by_number.get(piece.number)
        if delivery is None or piece.epoch != self._epoch:
            return
        if not self.open.is_held(piece.number, delivery.key[0]):
            return  # the delivery leaves
        back = self.open.close(piece.number, piece.first, piece.last)
        subscription = self.consumers.by_key.get(key)
        if subscription is not None:
            for first, last in back:
                subscription.handed -= last - first + 1
                if subscription.size_left is not None:
                    subscription.size_left += self._state.columns.total(first, last)
            self.consumers.note_wants(subscription)
        if delivery.is_suspect:
            self._suspects.add(back)
        self.ready.give_back(back)

    # --- Settling -----------------------------------------------------------------------

    def close_piece(self, session: SessionId, piece: Delivery) -> list[Range]:
        """Close the open messages of this piece; return their ranges, [] without any."""
        if piece.epoch != self._epoch:
            return self.ready.take_inherited(piece)
        return self.open.close_piece(session, piece)

    def take_back(self, session: SessionId, piece: Delivery) -> list[Range]:
        """Call `close_piece` for messages that will be delivered again."""
        delivery = self.open.by_number.get(piece.number)
        found = self.close_piece(session, piece)
        if piece.epoch == self._epoch:
            self.open.note_returned(piece.number, found)
            if delivery is not None and delivery.is_suspect:
                self._suspects.add(found)
        return found

    def may_take(self, session: SessionId, piece: Delivery) -> bool:
        """Return true if `close_piece` would close all of this piece. Changes nothing."""
        if piece.epoch != self._epoch:
            found = len(list(self.ready.inherited(piece)))
        else:
            delivery = self.open.held(session, piece)
            if delivery is None:
                return False
            found = sum(b - a + 1 for a, b in delivery.left.within(piece.first, piece.last))
        return found == piece.last - piece.first + 1

    def is_known(self, piece: Delivery) -> bool:
        """Return true if the piece may have been settled before, by a request of any session that
        is now repeated. A delivery goes to one handle, so its name identifies the holder."""
        if piece.epoch != self._epoch:
            return piece.epoch >= self._state.fence
        return piece.number <= self.open.last_number

    def open_of(self, piece: Delivery) -> list[Range]:
        """Open messages of a piece of this term."""
        is_own = piece.epoch == self._epoch
        delivery = self.open.by_number.get(piece.number) if is_own else None
        return [] if delivery is None else delivery.left.within(piece.first, piece.last)

    def unsettled(self, piece: Delivery) -> RangeSet:
        """Messages of a closed piece that did not end by its ack, as far as the applied state
        tells. They are live, or went back and were ended by their next holder.

        In an earlier term the end of a dead message is unknown: its ack may have been applied
        before the failover.
        """
        found = RangeSet(self._state.live.within(piece.first, piece.last))
        coming = max(piece.first, self._state.next_sequence)
        if coming <= piece.last:
            found.add(coming, piece.last)
        if piece.epoch == self._epoch:
            for first, last in self.open.returned(piece):
                found.add(first, last)
        return found

    def extend(self, session: SessionId, piece: Delivery, until_ms: int) -> list[Range]:
        """Let the session hold messages of this piece until then; return their ranges."""
        return [] if piece.epoch != self._epoch else self.open.extend(session, piece, until_ms)

    # --- Ended consumers ------------------------------------------------------------------

    def rename(self, former: SessionId, session: SessionId) -> None:
        """Move all holdings of a session to another session."""
        self.open.rename(former, session)
        self._suspects.trials[session] = self._suspects.trials.pop(former, 0)

    def leave(self, session: SessionId) -> None:
        """Let all that a session held leave: the session is gone."""
        self.open.leave(session)
        self._suspects.trials.pop(session, None)

    def take_leaving(self, count: int) -> list[Range]:
        """Take whole leaving deliveries of about `count` ranges out; return the ranges."""
        taken: list[Range] = []
        for delivery in self.open.take_leaving(count):
            if delivery.is_suspect:
                self._suspects.add(delivery.left)
            taken += delivery.left
        return taken
