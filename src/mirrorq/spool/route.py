"""`Route`: one target's route through the spool: its local queue, and its line to the cluster.

*Threads*: any thread may call the methods for users; the local host's thread calls `note_…` and
`on_step`; the forwarder calls the rest.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from attrs import frozen

from mirrorq import clock
from mirrorq.api.batching import PutToken
from mirrorq.api.handle import Handle
from mirrorq.api.publisher import Publisher
from mirrorq.bulk.leases import Claim
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import PreconditionFailed, StoreCorrupt
from mirrorq.protocol.identities import spool_producer
from mirrorq.session.calls import Failed, Stored
from mirrorq.spool.confirmation import Batch, unknown_error
from mirrorq.spool.line import Flight, Line, TargetMark, cut
from mirrorq.spool.local import STORE_S, Aside
from mirrorq.spool.sender import OPEN_S, Sender, Sending, frames_of
from mirrorq.waiting import Once

if TYPE_CHECKING:
    from mirrorq.api.channel import RingChannel
    from mirrorq.api.completion import Outcomes
    from mirrorq.api.host import Declared, Host
    from mirrorq.api.prefetch_buffer import Backlog
    from mirrorq.bulk.reading import Batch as Frames
    from mirrorq.session.calls import Output
    from mirrorq.spool.confirmation import SpoolConfirmation
    from mirrorq.spool.local import LocalStore
    from mirrorq.waiting import Doorbell

log = logging.getLogger("mirrorq")


class Forwarding(Protocol):
    """A spool, as a route needs it."""

    path: Path
    store: LocalStore
    outcomes: Outcomes
    bell: Doorbell
    why: str

    @property
    def dropped_text(self) -> str: ...
    def fill(self, route: Route) -> None: ...
    def host(self) -> Host: ...


@frozen
class SetAside:
    """A message that a spool could not bring to its queue, with no process left to be told."""

    reason: str
    """Reason of the queue."""
    body: bytes
    """Body of the message."""


@frozen
class SpoolStatus:
    """Messages that a spool holds for one queue."""

    messages: int
    """Messages accepted here and not yet confirmed."""
    bytes: int
    """Approximate bytes of the messages, as counted for `spool_bytes_max`."""
    oldest_s: float
    """Seconds for which the oldest message has waited; 0: there is none."""
    connected: bool
    """True while messages are being sent."""
    why: str
    """Why messages are not being sent, "" while sending."""
    set_aside: int
    """Messages that the queue refused: `SpooledQueue.set_aside()`."""
    dropped: int
    """Messages that were dropped since this process began, for their age or for want of room."""

    @classmethod
    def nothing(cls) -> SpoolStatus:
        """Return the status of an empty spool."""
        return cls(0, 0, 0.0, True, "", 0, 0)


class LocalPublisher(Publisher):
    """The puts of a local handle: single puts that were stored together are noted together."""

    def __init__(self, channel: RingChannel, ahead: Callable[[], int], route: Route) -> None:
        super().__init__(channel, ahead)
        self._route = route

    def note_outcomes(self, outcomes: Sequence[Stored | Failed]) -> None:
        for outcome in outcomes:
            token = outcome.token
            singles: Any = token.singles if isinstance(token, PutToken) else None
            if isinstance(outcome, Stored) and singles is not None:
                ended = singles[outcome.index : outcome.index + outcome.count]
                self._route.note_singles(ended, outcome.first_sequence)
            else:
                super().note_outcomes((outcome,))


class LocalHandle(Handle):
    """The handle on a local queue: users put and the forwarder acks through this handle."""

    def __init__(self, route: Route, host: Host, declared: Declared) -> None:
        super().__init__(host, declared, route.name)
        self._route = route

    def _own_outcomes(self) -> Outcomes:
        return self._route.spool.outcomes

    def _own_publisher(self, backlog: Backlog) -> Publisher:
        return LocalPublisher(self, backlog.count, self._route)

    def _end(self, outputs: list[Output], ended_count: int, ended_size: int) -> None:
        super()._end(outputs, ended_count, ended_size)
        self._route.on_step(ended_size)


class Route(Sender):
    """One target's route through the spool.

    Args:
        spool: the spool of the route.
        name: name of the target and of the local queue.
    """

    def __init__(self, spool: Forwarding, name: str) -> None:
        super().__init__(name, spool.bell)
        self.spool = spool
        self.local: LocalHandle
        """Set with `line` and `accepted_to` when the route opens."""
        self.accepted_to = 0
        """All local messages up to here are on the disk, and their confirmations are known."""
        self._noted_to = 0
        self.open = Once(self._open).run
        """Open the local queue, once. From any thread."""
        self.count = self.size = 0
        """Messages and bytes that wait; the bytes are approximate."""
        self.dropped = 0
        self.oldest_ms: int | None = None
        """Time of the oldest put, by `clock.now_ms`; None: no message waits."""
        self._gone = RangeSet()
        """Local messages behind `acked_to` that are known to have ended here."""
        self._batches: WeakValueDictionary[int, Batch] = WeakValueDictionary()
        """First local sequence -> batch, while any of its confirmations is referenced."""
        self._current: Batch | None = None
        """The batch with outcomes for a part of its messages."""
        self._over: list[Batch] = []
        """Batches with outcomes to report."""
        self.outcomes = spool.outcomes
        self.watched: set[Batch] = set()
        self.is_filled = False
        """The route waits for a place at the forwarder, or has a place."""
        self.open_at = 0.0
        self.again_s = 0.0
        self._claim: Claim | None = None
        self._pages_to = 0

    # --- Any thread ---------------------------------------------------------------------------

    def _open(self) -> None:
        store = self.spool.store
        declared = store.node._declare(self.name, timeout=STORE_S)
        local = LocalHandle(self, store.node, declared)
        local.open()
        counts = local.counts(STORE_S)
        self.reader = store.reader(declared.queue_id)
        following = counts.next_sequence
        live = self.reader.live_ranges(1, following - 1) if following > 1 else []
        mark = store.records[self.name].mark
        kept = cut(mark, following)
        if kept is not None and kept != mark:
            store.note_mark(self.name, kept)
        self.line = Line(live[0][0] if live else following, kept, _fresh())
        self.accepted_to = self._noted_to = following - 1
        self.count = sum(last - first + 1 for first, last in live)
        if live:
            self.size = counts.ready_bytes
            self.oldest_ms = clock.now_ms()
            with suppress(StoreCorrupt):
                batch = next(self.reader.read(live[0][0], live[0][0], bytes_max=1))
                self.oldest_ms -= store.age_ms(batch.timestamp_us)
        self.local = local

    @property
    def why(self) -> str:
        """Why waiting messages are not being sent, "" while sending or if no message waits."""
        if self.target is not None or not self.count:
            return ""
        return self.why_not or self.spool.why or "its queue is not opened yet"

    def status(self) -> SpoolStatus:
        """Return the status of the route. Never waits."""
        oldest_ms = self.oldest_ms
        oldest_s = 0.0 if oldest_ms is None else max(clock.now_ms() - oldest_ms, 0) / 1000
        aside, why = self.spool.store.aside_counts.get(self.name, 0), self.why
        return SpoolStatus(self.count, self.size, oldest_s, not why, why, aside, self.dropped)

    # --- The local host's thread ----------------------------------------------------------------

    def note_singles(self, singles: Sequence[SpoolConfirmation], first: int) -> None:
        """Note single puts on the disk; the forwarder sees them at the end of the step."""
        batch = self._new_batch(first, first + len(singles) - 1)
        for index, single in enumerate(singles):
            if single._callbacks or single._accept_callbacks:
                single._take_place(batch, index)
            else:
                single._batch, single._index = batch, index

    def note_many(self, sequences: Sequence[int]) -> tuple[tuple[Batch, int, int], ...]:
        """The same of a put_many."""
        if isinstance(sequences, range):
            runs = [(sequences.start, sequences.stop - 1)]
        else:
            runs = list(RangeSet((one, one) for one in sequences))
        batches = [self._new_batch(first, last) for first, last in runs]
        return tuple((batch, 0, batch.last - batch.first + 1) for batch in batches)

    def _new_batch(self, first: int, last: int) -> Batch:
        batch = Batch(first, last)
        if not batch.is_over:
            self._batches[first] = batch
            self._noted_to = max(self._noted_to, last)
        return batch

    def on_step(self, size: int) -> None:
        """All outcomes of a step are noted."""
        accepted = self._noted_to - self.accepted_to
        if accepted <= 0:
            return
        if self.oldest_ms is None:
            self.oldest_ms = clock.now_ms()
        self.count += accepted
        self.size += size
        self.accepted_to = self._noted_to
        self.spool.fill(self)

    # --- The forwarder --------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if all accepted messages have been sent and acked, or have ended here."""
        return not self.line.flights and self.line.read_to >= self.accepted_to

    def settle(self) -> None:
        """Take new outcomes, report them, and ack the ended messages.

        Raises:
            TimeoutError, MirrorQError: the local disk has not taken the acks; call again.
        """
        self.open()
        if ended := self.take_outcomes():
            self._tell(ended)
            self._ack(ended)
        if self._broken:
            self.drop_target(self._broken)

    def _tell(self, ended: list[Flight]) -> None:
        """End the confirmations of flights; set unreported refusals aside."""
        unheard: list[Aside] = []
        for flight in ended:
            if not flight.is_told:
                sent: Any = flight.payload
                self.count -= flight.count
                self.size = max(self.size - sent.size, 0)
                self.oldest_ms = sent.put_ms if self.count else None
                unheard += self._end_confirmations(flight)
        if unheard:
            self.spool.store.put_aside(unheard)
            log.warning(
                "queue %s refused %d message(s) that an earlier process had spooled: %s. They are "
                "set aside in %s",
                self.name,
                len(unheard),
                unheard[-1].reason,
                self.spool.path,
            )
        for flight in ended:
            flight.is_told = True
        self._tell_over()

    def _end_confirmations(self, flight: Flight) -> list[Aside]:
        """End the confirmations of a flight; return failures without a listener."""
        batch = self._batch_of(flight.first)
        if batch is not None:
            self._current = None if batch.record_flight(flight) else batch
            self._over.append(batch)
            return []
        sent: Any = flight.payload
        messages = sent.messages() if flight.failed else []
        unheard: list[Aside] = []
        for index, count, reason, _ in flight.failed:
            unheard += [Aside(self.name, reason, *one) for one in messages[index : index + count]]
        return unheard

    def _batch_of(self, sequence: int) -> Batch | None:
        """Return the batch in which `sequence` is the next message without an outcome, None if no
        confirmation is referenced."""
        current = self._current
        if current is not None and current.first <= sequence <= current.last:
            return current
        return self._batches.pop(sequence, None) if self._batches else None

    def _tell_over(self) -> None:
        """Report the outcomes of the batches in `_over`."""
        over, self._over = self._over, []
        self.outcomes.notify()
        for batch in over:
            if batch.watched:
                batch.tell()
                if batch.is_over:
                    batch.watched.clear()
                    self.watched.discard(batch)

    def _ack(self, ended: list[Flight]) -> None:
        self._ack_local(ended[0].first, ended[-1].last)
        self.line.on_acked(ended)
        self._gone.remove(1, self.line.acked_to)
        self._check_empty()

    def _ack_local(self, first: int, last: int) -> None:
        if self._claim is None:
            self._claim = Claim(self.local, "the spool's forwarder", STORE_S)
        try:
            self._claim.ack(first, last, STORE_S)
        except PreconditionFailed:
            self._claim = None
            raise

    def _check_empty(self) -> None:
        if self.is_empty:
            self.count = self.size = 0
            self.oldest_ms = None
            self.spool.outcomes.notify()

    def _next_part(self) -> list[Frames] | None:
        """Return the next frame of live, accepted messages, None without a frame."""
        line = self.line
        while self._part is None:
            if self._pages is None:
                if line.read_to >= self.accepted_to:
                    return None
                self._pages_to = self.accepted_to
                self._pages = frames_of(self.reader.read(line.read_to + 1, self._pages_to))
            try:
                part = next(self._pages, None)
            except StoreCorrupt as error:
                self._pages = None
                self._set_damaged_aside(str(error))
                continue
            following = self._pages_to + 1 if part is None else part[0].first
            if following > line.read_to + 1:
                self._note_gone(line.read_to + 1, following - 1)
                line.pass_over(following - 1)
                self._check_empty()
            if part is None:
                self._pages = None
            else:
                self._part = part
        return self._part

    def _set_damaged_aside(self, why: str) -> None:
        """Set the next message aside if unreadable, so that later messages go on."""
        ((place, _), *_) = self.reader.live_ranges(self.line.read_to + 1, self._pages_to)
        with suppress(StoreCorrupt):
            next(self.reader.read(place, place))
            return  # It is another one that is damaged.
        reason = f"its copy in spool {self.spool.path} is damaged: {why}"
        self.spool.store.put_aside([Aside(self.name, reason, b"", b"")])
        log.error("message %d for queue %s is set aside: %s", place, self.name, reason)
        self._ack_local(place, place)
        self._note_gone(place, place, reason)

    def note_drops(self) -> None:
        """Note unread messages that have ended here. At first, note the size and age of all."""
        self.open()
        first, last = self.line.read_to + 1, self.accepted_to
        if self.target is None:
            self._part = self._made = self._pages = None  # what was read may end as well
        if self._part is not None or first > last:
            return
        before = self.dropped
        for low, high in self.reader.live_ranges(first, last):
            if low > first:
                self._note_gone(first, low - 1)
            first = high + 1
        if first <= last:
            self._note_gone(first, last)
        if self.dropped != before:
            counts = self.local.counts(STORE_S)
            self.size = counts.ready_bytes

    def _note_gone(self, first: int, last: int, why: str = "") -> None:
        """Note ended messages: dropped for age or want of room, unless `why` is given."""
        before = self._gone.count
        self._gone.add(first, last)
        count = self._gone.count - before
        if not count:
            return
        self.dropped += count
        self.count = max(self.count - count, 0)
        if not self.count:
            self.oldest_ms = None
        why = why or f"it was dropped: {self.spool.dropped_text}"
        place = first
        while place <= last:
            batch = self._batch_of(place)
            if batch is None:
                # One list at once: the local host adds batches meanwhile.
                known: list[Any] = self._batches.valuerefs()
                place = min((one.key for one in known if place < one.key <= last), default=last + 1)
                continue
            was_sent = place <= self.line.sent_to
            stop = min(last, batch.last, self.line.sent_to if was_sent else last)
            count = stop - place + 1
            gone = Flight(place, count, 0, failed=[(0, count, why, was_sent)])
            self._current = None if batch.record_flight(gone) else batch
            self._over.append(batch)
            place += count
        self._tell_over()

    def age_ms(self, timestamp_us: int) -> int:
        return self.spool.store.age_ms(timestamp_us)

    def _keep_mark(self, mark: TargetMark) -> None:
        self.spool.store.note_mark(self.name, mark)

    def _declared(self) -> tuple[Host, Declared]:
        record, host = self.spool.store.records[self.name], self.spool.host()
        return host, host._declare(
            self.name, durable=record.durable, auto_delete=record.auto_delete, timeout=OPEN_S
        )

    def _on_forgotten(self, sent: Sending, outcome: Failed) -> None:
        log.warning(
            "queue %s has settled what spool %s sends: an old copy of its files is in use. "
            "Messages may come twice",
            self.name,
            self.spool.path,
        )
        self.drop_target("the spool's files are an old copy")
        self.line.renew(_fresh())

    def end_open(self, text: str) -> None:
        """End open confirmations with unknown outcome at the end of the spool."""
        found = [self._current, *(known() for known in self._batches.valuerefs())]
        left = [batch for batch in found if batch is not None]
        for batch in left:
            batch.error = unknown_error(text)
            batch.is_over = True
        self._over += left
        self._tell_over()


def _fresh() -> int:
    return spool_producer(secrets.randbits(61))
