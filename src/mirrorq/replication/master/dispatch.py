"""Ready messages, consumers and open deliveries of one master's term: which message is where.

Nothing here is replicated. The dispatch is made from the applied state when the master's promotion
is applied, and ends with the term. A *delivery* is one contiguous piece of messages given to one
consumer. Its number is unique in the term, so (epoch, sequence, delivery count, number) names a
delivery for ever.

Each message is in exactly one place: ready, in one open delivery, or on its way out. A message on
its way out has its ack, return or purge in the log, not applied yet.

A step looks at the consumers that wait and at the deliveries that it makes or ends. It never looks
at all consumers or all open deliveries: consumers with slow callbacks hold tens of thousands.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from operator import le

from attrs import define

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Deliver, Delivery
from mirrorq.replication.master.limits import Depth, oldest
from mirrorq.replication.master.open_deliveries import ConsumerKey, Extensions, OpenDelivery
from mirrorq.replication.master.ready_bytes import ReadyBytes
from mirrorq.replication.master.suspects import Suspects
from mirrorq.replication.state.contents import Run
from mirrorq.replication.state.priorities import ReadyLevels
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

BACK_COUNT = 16_384
"""Deliveries whose returned messages are remembered: some 4 MB. A late ack for an older delivery
counts as done when its message has ended since, for whatever reason."""
PIECES_MAX = 512
"""Most deliveries in a step."""
ASIDE_COUNT = 512
"""Most ranges of lost messages to be set aside in a step."""
DROP_COUNT = 1 << 62
"""No bound."""
STRETCH_RANGES = 64
"""Ranges of each priority that the beginning of a term sorts in at once."""
STRETCH_WEIGHT = 16
"""Cost of such a sort for each priority, as a number of ranges that are sorted in singly."""
DELIVER_COUNT = 4096
"""Messages in a Deliver. Bounds its size together with the byte bound of the driver."""


@define
class Subscription:
    """A consumer at the master."""

    key: ConsumerKey
    prefetch: int
    exclusive: bool = False
    auto_ack: bool = False
    total: int = 0
    """Credit: number of messages that may be delivered in all, in this attachment."""
    handed: int = 0
    bare: bool = False
    """True if the consumer's deliveries carry no bodies."""
    label: str = ""
    size_left: int | None = None
    """Bytes of bodies that may still be delivered; None: no bound."""

    @property
    def is_tried(self) -> bool:
        """Return true if the consumer has a callback, which works on one message at a time."""
        return self.key[1] != 0 and not self.bare

    @property
    def is_claim(self) -> bool:
        """Return true if no other consumer gets any message."""
        return self.bare and self.exclusive

    @property
    def who(self) -> str:
        return f"{self.label or 'a consumer'} on node {self.key[0].node}"

    @property
    def wants(self) -> int:
        if self.size_left is not None and self.size_left <= 0:
            return 0
        return self.total - self.handed


class Dispatch:
    """Ready messages, consumers in rotation, and open deliveries."""

    def __init__(
        self, state: QueueState, epoch: int, bodies: Transfer, failure_ms: int = 0
    ) -> None:
        self._state = state
        self._epoch = epoch
        self._bodies = bodies
        """Knows which bodies are missing on this disk."""
        self.ready = ReadyLevels(state.live.copy())
        self.came_back: list[Range] = []
        """Messages that became ready again since the master last looked."""
        self.is_cut = False
        """True if the last step made as many deliveries as a step may, and more are possible."""
        self.is_single = False
        """single-active-consumer: one consumer at a time is served."""
        self.consumers: dict[ConsumerKey, Subscription] = {}
        self.consumer_count = 0
        """Number of consumers without `get()`."""
        self.open: dict[int, OpenDelivery] = {}
        self._extensions = Extensions()
        self._suspects = Suspects(failure_ms)
        self.again_ms = FOREVER_MS
        """Time at which a suspect message that waits now may be delivered."""
        self.unacknowledged = 0
        self.aside = RangeSet()
        """Live messages that are not delivered: no member that could be asked has their body."""
        self.losing: deque[RangeSet] = deque()
        """Bodies that no member has: their messages are still to be set aside."""
        self.fetching: dict[ConsumerKey, None] = {}
        """Handles whose get() has fetched messages since their last recall, and that still hold
        messages."""
        self._held: dict[SessionId, dict[int, None]] = {}
        """Open deliveries of each session."""
        self.leaving: deque[int] = deque()
        """Open deliveries of ended consumers. Their messages return by portions, and cannot be
        settled meanwhile."""
        self._back: dict[int, bytes] = {}
        """Delivery number -> returned ranges, as from `RangeSet.to_bytes`. Other messages of a
        closed delivery that have ended were settled under its number: a repeated ack is answered
        with success."""
        self._ready_bytes: ReadyBytes | None = None
        """None until the size is first asked for."""
        self.waiting: dict[ConsumerKey, int] = {}
        """Waiting consumers, in order of their turns -> number of messages wanted."""
        self._wanted = 0
        """Number of messages that all consumers want."""
        self._keys_of: dict[SessionId, dict[ConsumerKey, None]] = {}
        """Consumers by session: a crowd attaches at once, and each session looks for its own."""
        self._exclusive: dict[ConsumerKey, None] = {}
        self._prefetches: dict[int, int] = {}
        """Prefetch -> number of consumers with this prefetch."""
        self._number = 0

    # --- Consumers ----------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> str:
        """Seat a consumer or change it; return the reason of a refusal, or ""."""
        for key in self._exclusive:
            if key != subscription.key:
                return f"{self.consumers[key].who} holds the queue exclusively"
        if subscription.exclusive:
            others = [other for key, other in self.consumers.items() if key != subscription.key]
            if any(other.key[1] != 0 for other in others):
                named = f": {others[0].who}" if subscription.is_claim else ""
                return f"the queue has {len(others)} other consumers{named}"
        held = self._held_by_others(subscription.key) if subscription.is_claim else ""
        if held:
            return held
        known = self.consumers.get(subscription.key)
        if known is None:
            self.admit(subscription)
        else:
            self._count_prefetch(known.prefetch, -1)
            known.prefetch = subscription.prefetch
            self._count_prefetch(known.prefetch, 1)
        return ""

    def admit(self, subscription: Subscription) -> None:
        """Add the consumer."""
        self.consumers[subscription.key] = subscription
        self.consumer_count += subscription.key[1] != 0
        self._count_prefetch(subscription.prefetch, 1)
        self._note_wants(subscription)
        self._keys_of.setdefault(subscription.key[0], {})[subscription.key] = None
        if subscription.exclusive:
            self._exclusive[subscription.key] = None

    def has_consumer(self, session: SessionId) -> bool:
        """Return true if the session has a consumer beside its `get()`."""
        return any(number for _, number in self._keys_of.get(session, ()))

    def _held_by_others(self, key: ConsumerKey) -> str:
        """Text about another consumer that holds messages unacknowledged, "" without any."""
        for delivery in self.open.values():
            if delivery.key != key:
                subscription = self.consumers.get(delivery.key)
                who = (
                    subscription.who
                    if subscription is not None
                    else f"a handle on node {delivery.key[0].node}"
                )
                return f"{who} holds messages unacknowledged, {delivery.left.first} the first"
        return ""

    def claim(self) -> Subscription | None:
        """The consumer with a claim: no other consumer gets messages. None without a claim."""
        exclusive = map(self.consumers.__getitem__, self._exclusive)
        return next((subscription for subscription in exclusive if subscription.is_claim), None)

    def unsubscribe(self, key: ConsumerKey) -> None:
        subscription = self.consumers.pop(key, None)
        if subscription is None:
            return
        self.consumer_count -= key[1] != 0
        self._count_prefetch(subscription.prefetch, -1)
        self._wanted -= self.waiting.pop(key, 0)
        self._exclusive.pop(key, None)
        keys = self._keys_of[key[0]]
        del keys[key]
        if not keys:
            del self._keys_of[key[0]]

    def unsubscribe_session(self, session: SessionId) -> None:
        for key in list(self._keys_of.get(session, ())):
            self.unsubscribe(key)

    def credit(self, key: ConsumerKey, total: int, size: int = 0) -> None:
        """Let a consumer get `total` messages in all; 0: none until new credit."""
        subscription = self.consumers.get(key)
        if subscription is not None:
            subscription.total = max(subscription.total, total) if total else 0
            if size > 0 and not subscription.bare:
                subscription.size_left = size
            self._note_wants(subscription)

    def _note_wants(self, subscription: Subscription) -> None:
        """Note changed wants of a consumer. A consumer that begins to wait has its turn last."""
        wants = max(subscription.wants, 0)
        self._wanted += wants - self.waiting.get(subscription.key, 0)
        if wants:
            self.waiting[subscription.key] = wants
        else:
            self.waiting.pop(subscription.key, None)

    def active_subscription(self) -> Subscription | None:
        """single-active-consumer: the consumer that is served.

        The oldest consumer. Without consumers, the handle whose get() holds unsettled messages,
        else the oldest that waits in a get(). A handle that only might call again blocks nobody.
        """
        subscriptions = self.consumers.values()
        for is_next in (
            lambda subscription: subscription.key[1] != 0,
            lambda subscription: self._holds(subscription.key),
            lambda subscription: subscription.wants > 0,
        ):
            found = next(filter(is_next, subscriptions), None)
            if found is not None:
                return found
        return None

    @property
    def has_waiting(self) -> bool:
        """Return true if a consumer waits for a message."""
        return bool(self.waiting)

    def has_waiting_beside(self, key: ConsumerKey) -> bool:
        """Return true if another consumer waits for a message."""
        return len(self.waiting) > (key in self.waiting)

    def wanted(self) -> int:
        """Number of messages that all consumers would take now."""
        return self._wanted

    def prefetch_max(self) -> int:
        """The largest prefetch of a consumer."""
        return max(self._prefetches, default=0)

    def _count_prefetch(self, prefetch: int, change: int) -> None:
        count = self._prefetches.get(prefetch, 0) + change
        if count:
            self._prefetches[prefetch] = count
        else:
            del self._prefetches[prefetch]

    def fetchers(self) -> list[ConsumerKey]:
        """Handles that hold messages fetched by `get()`."""
        return [(session, 0) for session in self._held if self._holds((session, 0))]

    @property
    def taker_count(self) -> int:
        """Number of callbacks, and of handles whose get() waits for a message or holds one."""
        getters = {session for session, _ in self.fetchers()}
        getters.update(session for session, number in self.waiting if not number)
        return self.consumer_count + len(getters)

    def _holds(self, key: ConsumerKey) -> bool:
        return any(self.open[number].key == key for number in self._held.get(key[0], ()))

    # --- Ready messages -----------------------------------------------------------------

    def sort_in(self) -> Iterator[None]:
        """Sort ready messages into their levels, a little for each item of the iterator. Until its
        end no other method may be called, and the state must not change."""
        return _sorting(self._state, self.ready)

    @property
    def ready_size(self) -> int:
        """Bytes of the ready messages' bodies, as far as counted."""
        return 0 if self._ready_bytes is None else self._ready_bytes.total

    @property
    def is_size_known(self) -> bool:
        """Return true if all ready messages are counted."""
        return self._ready_bytes is not None and self._ready_bytes.is_whole

    def count_size(self) -> None:
        """Count a portion of the ready messages. Counts are kept up to date from then on."""
        if self._ready_bytes is None:
            self._ready_bytes = ReadyBytes(self._state, self.ready)
        self._ready_bytes.go_on()

    def _note_ready(self, priority: int, first: int, last: int, shift: int, sign: int) -> None:
        """Note sequences, at places `shift` behind, that are ready now (1) or not now (-1)."""
        if self._ready_bytes is not None:
            self._ready_bytes.record_change(priority, first, last, shift, sign)

    def drop_oldest(self, excess: Depth, count_max: int = DROP_COUNT) -> tuple[list[Range], Depth]:
        """Take the oldest ready messages out, the lowest priority first, until the excess is gone
        or `count_max` ranges are out.

        Returns the ranges, and the rest of the excess.
        """
        dropped: list[Range] = []
        for priority in reversed(self.ready.priorities):
            level = self.ready.level(priority)
            while level and (excess.count or excess.size) and len(dropped) < count_max:
                first, last, shift = self._front(level)
                last, excess = oldest(self._state.columns, first, last, excess)
                level.remove(first + shift, last + shift)
                self._suspects.remove(first, last)
                self._note_ready(priority, first, last, shift, -1)
                dropped.append((first, last))
        return dropped, excess

    def take_out(self, ranges: RangeSet) -> list[Range]:
        """Take the ready messages of these ranges out, of every priority; return them."""
        taken = RangeSet()
        for first, last in ranges:
            for low, high in self._named(first, last):
                self._take_out(low, high, taken)
        return list(taken)

    def _named(self, first: int, last: int) -> Iterable[Range]:
        """Messages among these numbers. With places, other numbers in the ranges are places, and
        would name the wrong messages."""
        return self._state.live.within(first, last) if self._state.places else ((first, last),)

    def _take_out(self, first: int, last: int, taken: RangeSet) -> None:
        for run in self._state.runs(first, last):
            level, shift = self.ready.level(run.priority), run.shift
            for low, high in level.within(run.first + shift, run.last + shift):
                level.remove(low, high)
                self._suspects.remove(low - shift, high - shift)
                self._note_ready(run.priority, low - shift, high - shift, shift, -1)
                taken.add(low - shift, high - shift)

    def _front(self, level: RangeSet) -> tuple[int, int, int]:
        """(first, last, shift) of the first sequences in a level."""
        first, last = level.front()
        shift = 0
        if self._state.places:
            last, shift = self._state.places.at(first, last)
        return first - shift, last - shift, shift

    def ready_sequences(self) -> Iterator[Range]:
        """Ranges of ready sequences, in the order of delivery."""
        places = self._state.places
        for first, end in self.ready:
            while first <= end:
                last, shift = places.at(first, end) if places else (end, 0)
                yield first - shift, last - shift
                first = last + 1

    # --- Missing bodies ------------------------------------------------------------------

    def whole(self, ranges: list[Range]) -> list[Range]:
        """Messages of these ranges with readable bodies on this disk."""
        missing = self._bodies.missing
        if not missing:
            return ranges
        found = RangeSet(ranges)
        for first, last in ranges:
            for low, high, shift in self._origins(first, last):
                for start, end in missing.within(low, high):
                    found.remove(start + shift, end + shift)
        return list(found)

    def _origins(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Origins of these messages: (first, last, shift). A message's sequence is its origin plus
        shift."""
        staging = self._state.staging
        while first <= last:
            end, shift = staging.piece(first, last)
            yield first - shift, end - shift, shift
            first = end + 1

    def lose(self, bodies: RangeSet) -> None:
        """Note lost bodies. Their messages are set aside, a portion in each step."""
        self.losing.append(bodies)

    def look_for_lost(self, first: int, last: int) -> None:
        """Note messages that become ready: lost messages among them are to be set aside."""
        lost = self._bodies.lost
        if lost:
            origins = self._origins(first, last)
            found = RangeSet(one for low, high, _ in origins for one in lost.within(low, high))
            if found:
                self.lose(found)

    def set_lost_aside(self) -> bool:
        """Set a portion of lost messages aside; return true if more are left."""
        left = ASIDE_COUNT
        while self.losing and left > 0:
            bodies = self.losing[0]
            upto = bodies.reach(bodies.first, bodies.last, left)
            for piece in bodies.within(bodies.first, upto):
                left -= 1
                for lost in self._bodies.lost.within(*piece):
                    self._set_aside(RangeSet(self._state.carried(*lost)))
            bodies.remove(bodies.first, upto)
            if not bodies:
                self.losing.popleft()
        return bool(self.losing)

    def _set_aside(self, messages: RangeSet) -> None:
        for low, high in self.take_out(messages):
            self.aside.add(low, high)

    def find(self, bodies: RangeSet) -> None:
        """Make messages ready again if their bodies are not lost any more."""
        for piece in bodies:
            for first, last in self._state.carried(*piece):
                back = self.aside.within(first, last)
                self.aside.remove(first, last)
                self.give_back(back)

    def _whole_to(self, level: RangeSet) -> int:
        """The first place of a level at or behind which no delivery is possible now: its body is
        missing here. Or the end of the level's first range, if that comes before."""
        first, last, place_shift = self._front(level)
        low, high, shift = next(self._origins(first, last))
        start, _ = self._bodies.missing.first_run(low, high)
        return start + shift + place_shift

    def _set_front_aside(self, level: RangeSet) -> bool:
        """Set the first messages of a level aside if their bodies are lost. Returns true if so."""
        first, last, _ = self._front(level)
        low, high, shift = next(self._origins(first, last))
        start, end = self._bodies.lost.first_run(low, high)
        if start > low:
            return False
        self._set_aside(RangeSet(((first, end + shift),)))
        return True

    def take_aside(self, first: int, last: int) -> list[Range]:
        """End messages that are set aside; return their ranges."""
        taken = self.aside.within(first, last)
        self.aside.remove(first, last)
        return taken

    @property
    def ready_count(self) -> int:
        """Number of messages that no consumer holds, including messages set aside."""
        return self.ready.count + self.aside.count

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
            priority, level = ready.top()
            if not level:
                break
            horizon = self._horizon(priority)
            if missing:
                upto = self._whole_to(level)
                if level.first == upto and self._set_front_aside(level):
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
                first, last, _ = self._front(level)
                share = self._suspects.share(first, min(last, first + share - 1))
            piece = self._take_front(subscription, priority, horizon, share)
            self._suspects.remove(piece.first, piece.last)
            delivery = self.open[piece.number]
            delivery.handed_ms = now_ms
            if is_suspect:
                delivery.is_suspect = True
                self._suspects.trials[subscription.key[0]] = piece.number
            pieces.setdefault(subscription.key, []).append(piece)
            taken = piece.last - piece.first + 1
            counts[subscription.key] = counts.get(subscription.key, 0) + taken
        return [
            (key, Deliver(key[1], tuple(list_), (), self.consumers[key].bare))
            for key, list_ in pieces.items()
        ]

    def _horizon(self, priority: int) -> int:
        state = self._state
        return state.levels[priority].horizon if priority else state.horizon

    def _is_suspect(self, level: RangeSet) -> bool:
        """Return true if the first message of a level may have killed a process."""
        suspects = self._suspects.messages
        return bool(suspects) and self._front(level)[0] in suspects

    def _is_on_trial(self, subscription: Subscription, now_ms: int) -> bool:
        """Return true if the callback's handle has held a suspect message, but not for long. Then
        `again_ms` is set."""
        session = subscription.key[0]
        number = self._suspects.trials.get(session, 0)
        if not subscription.is_tried or not self.is_held(number, session):
            return False
        over_ms = self.open[number].handed_ms + self._suspects.trial_ms
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
        claim = self.claim()
        if claim is not None or self.is_single:
            active = claim or self.active_subscription()
            if active is None or active.wants <= 0 or counts.get(active.key, 0) >= DELIVER_COUNT:
                return None
            if trial_ms is not None and self._is_on_trial(active, trial_ms):
                return None
            return active
        for _ in range(len(self.waiting)):
            key = next(iter(self.waiting))
            self.waiting[key] = self.waiting.pop(key)
            if trial_ms is not None and self._is_on_trial(self.consumers[key], trial_ms):
                continue
            if counts.get(key, 0) < DELIVER_COUNT:
                return self.consumers[key]
        return None

    def _share(self, subscription: Subscription, given: int) -> int:
        """Size of the next delivery. Few messages are spread singly; many go in large pieces."""
        waiting = len(self.waiting)
        is_shared = waiting > 1 and not self.is_single
        fair = max(1, self.ready.count // waiting) if is_shared else self.ready.count
        return min(subscription.wants, fair, DELIVER_COUNT - given)

    def _take_front(
        self, subscription: Subscription, priority: int, horizon: int, share: int
    ) -> Delivery:
        level = self.ready.level(priority)
        first, last = level.front()
        last = min(last, first + share - 1, horizon - 1)
        shift = 0
        if self._state.places:
            last, shift = self._state.places.at(first, last)
        count, last = self._state.count_run(first - shift, last - shift)
        if subscription.size_left is not None:
            last, _ = oldest(
                self._state.columns, first - shift, last, Depth(0, subscription.size_left)
            )
            subscription.size_left -= self._state.columns.total(first - shift, last)
        level.remove(first, last + shift)
        first -= shift
        self._note_ready(priority, first, last, shift, -1)
        self._number += 1
        self.open[self._number] = OpenDelivery(subscription.key, count, first, last)
        self._held.setdefault(subscription.key[0], {})[self._number] = None
        if not subscription.key[1]:
            self.fetching[subscription.key] = None
        taken = last - first + 1
        subscription.handed += taken
        self._note_wants(subscription)
        self.unacknowledged += taken
        return Delivery(self._epoch, self._number, first, last, count)

    # --- Settling -----------------------------------------------------------------------

    def close_piece(self, session: SessionId, piece: Delivery) -> list[Range]:
        """Close the open messages of this piece; return their ranges, [] without any."""
        if piece.epoch != self._epoch:
            return self._take_inherited(piece)
        delivery = self.open.get(piece.number)
        if delivery is None or delivery.count != piece.count:
            return []
        if not self.is_held(piece.number, session):
            return []
        found = delivery.left.within(piece.first, piece.last)
        for first, last in found:
            self.unacknowledged -= delivery.left.remove(first, last)
        if not delivery.left:
            self._close(piece.number)
        return found

    def _close(self, number: int) -> OpenDelivery:
        """Close a delivery of which no message is held."""
        delivery = self.open.pop(number)
        self._unhold(number, delivery.key[0])
        return delivery

    def _unhold(self, number: int, session: SessionId) -> None:
        held = self._held[session]
        del held[number]
        if not held:
            del self._held[session]
            self.fetching.pop((session, 0), None)

    def is_held(self, number: int, session: SessionId) -> bool:
        """Return true if the session holds this open delivery, and the delivery does not leave."""
        return number in self._held.get(session, ())

    def take_back(self, session: SessionId, piece: Delivery) -> list[Range]:
        """Call `close_piece` for messages that will be delivered again."""
        delivery = self.open.get(piece.number)
        found = self.close_piece(session, piece)
        if piece.epoch == self._epoch:
            self._note_back(piece.number, found)
            if delivery is not None and delivery.is_suspect:
                self._suspects.add(found)
        return found

    def _note_back(self, number: int, ranges: Iterable[Range]) -> None:
        if not ranges:
            return
        back = RangeSet.from_bytes(self._back.get(number, b""))
        for first, last in ranges:
            back.add(first, last)
        self._back[number] = back.to_bytes()
        self._forget_back()

    def _forget_back(self) -> None:
        if len(self._back) > BACK_COUNT:
            del self._back[next(iter(self._back))]

    def may_take(self, session: SessionId, piece: Delivery) -> bool:
        """Return true if `close_piece` would close all of this piece. Changes nothing."""
        if piece.epoch != self._epoch:
            found = len(list(self._inherited(piece)))
        else:
            delivery = self.open.get(piece.number)
            if delivery is None or delivery.count != piece.count:
                return False
            if not self.is_held(piece.number, session):
                return False
            found = sum(b - a + 1 for a, b in delivery.left.within(piece.first, piece.last))
        return found == piece.last - piece.first + 1

    def unhand(self, key: ConsumerKey, piece: Delivery) -> None:
        """Undo a delivery that was decided and not sent."""
        delivery = self.open.get(piece.number)
        if delivery is None or piece.epoch != self._epoch:
            return
        if not self.is_held(piece.number, delivery.key[0]):
            return  # the delivery leaves
        back = delivery.left.within(piece.first, piece.last)
        for first, last in back:
            gone = delivery.left.remove(first, last)
            self.unacknowledged -= gone
            if key in self.consumers:
                subscription = self.consumers[key]
                subscription.handed -= gone
                if subscription.size_left is not None:
                    subscription.size_left += self._state.columns.total(first, last)
                self._note_wants(subscription)
        if not delivery.left:
            self._close(piece.number)
        if delivery.is_suspect:
            self._suspects.add(back)
        self.give_back(back)

    def is_known(self, piece: Delivery) -> bool:
        """Return true if the piece may have been settled before, by a request of any session that
        is now repeated. A delivery goes to one handle, so its name identifies the holder."""
        if piece.epoch != self._epoch:
            return piece.epoch >= self._state.fence
        return piece.number <= self._number

    def open_of(self, piece: Delivery) -> list[Range]:
        """Open messages of a piece of this term."""
        delivery = self.open.get(piece.number) if piece.epoch == self._epoch else None
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
        back = self._back.get(piece.number, b"") if piece.epoch == self._epoch else b""
        for first, last in RangeSet.from_bytes(back).within(piece.first, piece.last):
            found.add(first, last)
        return found

    def _take_inherited(self, piece: Delivery) -> list[Range]:
        """Take an ack across a promotion: the count decides if the delivery is the message's last.

        Taken when the message is ready, last raised by a promotion, with the ack's count + 1.
        """
        taken: list[Range] = []
        for run, sequence in list(self._inherited(piece)):
            place = sequence + run.shift
            self.ready.level(run.priority).remove(place, place)
            self._note_ready(run.priority, sequence, sequence, run.shift, -1)
            taken.append((sequence, sequence))
        return taken

    def _inherited(self, piece: Delivery) -> Iterator[tuple[Run, int]]:
        """(run, sequence) of each message that `_take_inherited` would take."""
        state = self._state
        if piece.epoch < state.fence:
            return  # counts of a past that was lost say nothing here
        runs = (state.runs(*named) for named in self._named(piece.first, piece.last))
        for run in chain.from_iterable(runs):
            level, shift = self.ready.level(run.priority), run.shift
            for low, high in level.within(run.first + shift, run.last + shift):
                for sequence in range(low - shift, high - shift + 1):
                    same = state.delivery_count(sequence) == piece.count + 1
                    if same and state.raised_by_promotion(sequence):
                        yield run, sequence

    def give_back(self, ranges: list[Range]) -> None:
        """Make messages ready again that were not seen, or were returned by an applied op."""
        for first, last in ranges:
            self.look_for_lost(first, last)
            for low, high in self._state.live.within(first, last):
                self.came_back.append((low, high))
                for run in self._state.runs(low, high):
                    if not run.is_delayed:
                        self._make_ready(run)

    def _make_ready(self, run: Run) -> None:
        first, last = run.first + run.shift, run.last + run.shift
        if self._ready_bytes is not None:
            # Ready messages are counted already.
            for low, high in self.ready.level(run.priority).within(first, last):
                self._note_ready(run.priority, low - run.shift, high - run.shift, run.shift, -1)
            self._note_ready(run.priority, run.first, run.last, run.shift, 1)
        self.ready.add(run.priority, first, last)

    def holdings(self, session: SessionId) -> list[tuple[int, OpenDelivery]]:
        """Open deliveries of one session, by number."""
        return [(number, self.open[number]) for number in self._held.get(session, ())]

    def rename(self, former: SessionId, session: SessionId) -> None:
        """Move all holdings of a session to another session."""
        held = self._held.pop(former, {})
        if held:
            self._held.setdefault(session, {}).update(held)
        for number in held:
            delivery = self.open[number]
            delivery.key = (session, delivery.key[1])
        self._suspects.trials[session] = self._suspects.trials.pop(former, 0)
        if (former, 0) in self.fetching:
            del self.fetching[former, 0]
            self.fetching[session, 0] = None

    def extend(self, session: SessionId, piece: Delivery, until_ms: int) -> list[Range]:
        """Let the session hold messages of this piece until then; return their ranges."""
        if piece.epoch != self._epoch or not self.is_held(piece.number, session):
            return []
        delivery = self.open[piece.number]
        found = delivery.left.within(piece.first, piece.last)
        if delivery.count != piece.count or not found:
            return []
        self._extensions.set(self.open, piece.number, found, until_ms)
        return found

    @property
    def extended_ms(self) -> int:
        """End of the earliest extended time; FOREVER_MS: never."""
        return self._extensions.next_ms(self.open)

    def take_extended(self, now_ms: int) -> dict[int, RangeSet]:
        """Messages with an extended time that has ended, by the number of the delivery."""
        return self._extensions.take_due(self.open, now_ms)

    def has_extended(self, key: ConsumerKey) -> bool:
        """Return true if the consumer holds a message with an extended time."""
        held = (self.open[number] for number in self._held.get(key[0], ()))
        return any(delivery.has_extended for delivery in held if delivery.key == key)

    def part(self, number: int, ranges: list[Range]) -> int:
        """Split messages of an open delivery off as a new delivery; return its number. The holder
        cannot settle them by the old number."""
        whole = self.open[number]
        if list(whole.left) == ranges:
            return number
        for first, last in ranges:
            whole.left.remove(first, last)
        self._note_back(number, ranges)
        self._number += 1
        ends = ranges[0][0], ranges[-1][1]
        made = OpenDelivery(whole.key, whole.count, *ends, RangeSet(ranges), whole.handed_ms)
        self.open[self._number] = made
        self._held[whole.key[0]][self._number] = None
        return self._number

    def handed_before(self, at_ms: int) -> list[int]:
        """Open deliveries made before this time, the oldest first."""
        old = []
        for number, delivery in self.open.items():
            if delivery.handed_ms >= at_ms:
                break
            old.append(number)
        return old

    def renew(self, number: int, now_ms: int) -> None:
        """Treat a delivery as made now."""
        delivery = self.open.pop(number)
        delivery.handed_ms = now_ms
        self.open[number] = delivery

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest open delivery; None without any."""
        for delivery in self.open.values():
            return delivery.handed_ms
        return None

    def drop(self, number: int) -> None:
        """Let the open messages of a delivery leave: their holder is gone."""
        self._unhold(number, self.open[number].key[0])
        self.leaving.append(number)

    def leave(self, session: SessionId) -> None:
        """Let all that a session held leave: the session is gone."""
        for number in self._held.pop(session, ()):
            self.open[number].is_suspect = True
            self.leaving.append(number)
        self._suspects.trials.pop(session, None)
        self.fetching.pop((session, 0), None)

    def take_leaving(self, count: int) -> list[Range]:
        """Take whole leaving deliveries of about `count` ranges out; return the ranges."""
        taken: list[Range] = []
        while self.leaving:
            number = self.leaving[0]
            delivery = self.open[number]
            left = delivery.left
            if taken and len(taken) + len(left) > count:
                break
            self.leaving.popleft()
            del self.open[number]
            self.unacknowledged -= left.count
            self._note_back(number, left)
            if delivery.is_suspect:
                self._suspects.add(left)
            taken += left
        return taken

    def add_ready(self, first: int, last: int, priority: int = 0) -> None:
        """Add new messages of a priority."""
        self._note_ready(priority, first, last, 0, 1)
        if priority:
            self.ready.add(priority, first, last)
        else:
            self.ready.plain.add(first, last)


def _sorting(state: QueueState, ready: ReadyLevels) -> Iterator[None]:
    """Sort all live messages without a delay to their places."""
    members = {priority: level.members for priority, level in state.levels.items()}
    if members:
        ready.plain = RangeSet()
        for priority, held in members.items():
            ready.add_level(priority, held.copy())
        for first, last in _stretches((state.live, *members.values()), state.next_sequence):
            others = [held.part(first, last) for held in members.values()]
            ready.plain.extend(_without(state.live.part(first, last), others))
            yield from (None for _ in range(STRETCH_WEIGHT * (1 + len(members))))
    for first, last, _ in state.delayed:
        if not members:
            ready.plain.remove(first, last)
            yield
            continue
        for run in state.each_run(first, last):
            ready.level(run.priority).remove(run.first, run.last)
            yield
    for first, last, shift in state.places.by_sequence:
        for run in state.each_run(first, last):
            ready.level(run.priority).remove(run.first, run.last)
            ready.add(run.priority, run.first + shift, run.last + shift)
            yield
    for first, last, _ in state.resting:
        for run in state.each_run(first, last):
            ready.level(run.priority).remove(run.first + run.shift, run.last + run.shift)
            yield


def _stretches(sets: Iterable[RangeSet], end: int) -> Iterator[Range]:
    """Cut all sequences below `end` into stretches with a bounded number of ranges in each set."""
    first = 1
    while first < end:
        last = min(held.reach(first, end - 1, STRETCH_RANGES) for held in sets)
        yield first, last
        first = last + 1


def _without(whole: bytes, others: Iterable[bytes]) -> bytes:
    """Remove ranges from `whole`, encoded as in `RangeSet.part`. The ranges of `others` are
    disjoint and all in `whole`. Takes no step of Python's for each range."""
    firsts, lasts = _edges(whole)
    for data in others:
        begins, ends = _edges(data)
        firsts += map((1).__add__, ends)
        lasts += map((-1).__add__, begins)
    # Kept ranges begin at an old begin or behind a removed range, and end alike.
    firsts.sort()
    lasts.sort()
    kept = list(map(le, firsts, lasts))
    return b"".join(array("Q", compress(edges, kept)).tobytes() for edges in (firsts, lasts))


def _edges(data: bytes) -> tuple[list[int], list[int]]:
    """Firsts and lasts of encoded ranges."""
    half = len(data) // 2
    return array("Q", data[:half]).tolist(), array("Q", data[half:]).tolist()
