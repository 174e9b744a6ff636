"""The way of a message from the session to a `get`, and how far ahead of calls it comes.

get() is the session's consumer number 0. Its credit is what waiting calls ask for, plus a window
that grows while calls take messages as fast as they come. What no call has returned counts as
ready: it goes back when calls stop coming, when another consumer waits for it (Recall), and when
the handle loses its master.

What has come is a `Backlog`: users' threads take from its left end, the host's thread adds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mirrorq.backlog import Backlog
from mirrorq.errors import Empty, NoQuorum, PreconditionFailed, ProtocolError, QueueDown
from mirrorq.message import Chunk, Message, names_of
from mirrorq.messages import HandOut, OpKind
from mirrorq.session import IDLE_GIVEBACK_MS, WINDOW_MAX_FACTOR, Session, Window
from mirrorq.timeouts import check_timeout
from mirrorq.wire import frames

if TYPE_CHECKING:
    from mirrorq.handle import Handle

__all__ = ["NOWAIT_S", "RECALL_ASKS", "Receiver"]

log = logging.getLogger("mirrorq")

NOWAIT_S = 1.0
"""get_nowait() waits so long for the master's word on whether there is a message."""
RECALL_ASKS = 3
"""get_nowait() asks so often while others hold messages: one of them may give some back."""
CALLS_AHEAD = 4
"""Calls that take many at once have so many times that fetched ahead of them, when they come as
fast as messages do: with less they would wait for each credit's way to the master and back."""
CALL_COUNT_MAX = 4096
"""Of a call, as far as that counts: what one Deliver holds."""
AHEAD_BYTES = 32 << 20
"""A handle fetches no more than about this ahead of its callers, whatever they ask for."""
FIRST_BYTES = 64 << 10
"""Size of a message for that bound while none has come."""
LOOK_S = 1.0
"""A waiting get() looks this often whether the handle or its host is closed."""


class Receiver:
    """Everything of one handle that has to do with get()."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._buffer = Backlog()
        self._ready = threading.Condition()
        self.listeners: list[Callable[[], None]] = []
        """Called at each `notify`: who waits without a thread."""
        self._demand = 0
        """Messages that waiting calls would take; changed with `_ready` held."""
        self._low = 0
        """Who leaves so few in the buffer wakes the host, to have more fetched."""
        self._window = Window(WINDOW_MAX_FACTOR * handle._config.prefetch)
        self.asked = 1
        """How many messages the last call asked for."""
        self._message_bytes = FIRST_BYTES
        """How large messages have been of late; bounds how many are fetched at once."""
        self._arrived = 0
        """Messages that came, less those that went back."""
        self._seen_taken = 0
        self._has_arrival = False
        self._is_subscribed = False
        self._refused = ""
        """Why the master did not take get() as a consumer, until the next call."""
        self._hint = 0
        """So many would be taken soon, though no call waits at this handle."""
        self.ahead_bytes = AHEAD_BYTES
        self.idle_at_ms: int | None = None
        """When what is buffered goes back, if no call comes."""

    # --- Users' threads -------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Messages here that no call has returned."""
        return self._buffer.count

    @property
    def refused(self) -> str:
        """Why the master did not take get() as a consumer, "" when it did."""
        return self._refused

    def notify(self) -> None:
        """Something has changed that waiting calls should look at."""
        with self._ready:
            self._ready.notify_all()
        for listener in self.listeners:
            listener()

    def want(self, count: int) -> None:
        """So many messages more (less, when negative) are waited for; also from the loop."""
        with self._ready:
            self._demand += count
            if count > 0:
                self._refused = ""
        if count > 0 or self._buffer.count:
            self._handle._wake()

    @property
    def ahead(self) -> int:
        """How many are fetched ahead of calls."""
        return self._window.size

    def hint(self, count: int) -> None:
        """Have some fetched, though nobody waits here: who takes from several handles in turn
        waits for none of them while another has messages. Until calls stop coming."""
        if self._hint < count and not self._buffer.count:
            self._hint = count
            self._handle._wake()

    def take_buffered(self, count: int) -> list[Message]:
        """Take up to `count` messages that are here; asks for more when few are left."""
        self.asked = count
        found = self._pop(count)
        if found and self._buffer.count <= self._low:
            self._handle._wake()
        return found

    def take_one(self) -> Message | None:
        """As `take_buffered(1)`, the quickest way."""
        self.asked = 1
        message = self._buffer.take_one()
        if message is not None:
            handle = self._handle
            publisher = handle._publisher
            if publisher._waiting:
                publisher.on_taken()
            if self._buffer.count <= self._low and not handle._is_woken:
                handle._wake()
        return message

    def obtain(self, count: int, block: bool, timeout: float | None) -> list[Message]:
        """Take 1 to `count` messages as soon as there is one; [] when there is none in time."""
        if timeout is not None:
            check_timeout(timeout)
        found = self.take_buffered(count)
        if found:
            return found
        deadline = None if timeout is None else time.monotonic() + timeout
        self.want(count)
        try:
            if not block or timeout == 0:
                return self._obtain_now(count)
            return self._obtain_waiting(count, deadline)
        finally:
            self.want(-count)

    def _obtain_waiting(self, count: int, deadline: float | None) -> list[Message]:
        handle = self._handle
        is_warned = False
        while True:
            with self._ready:
                if not self.buffered and not handle._is_shut and not self.refused:
                    left = LOOK_S if deadline is None else deadline - time.monotonic()
                    if left > 0:
                        self._ready.wait(min(left, LOOK_S))
            found = self._pop(count)
            if found:
                return found
            handle._check_open_for_gets()
            self.check_refused()
            if handle._is_shut:
                return self._obtain_now(count)
            if deadline is not None and time.monotonic() >= deadline:
                return []
            if not is_warned and deadline is None:
                reason = handle._why_not(Empty(""))
                if not isinstance(reason, Empty):
                    log.warning("get() waits: %s", reason)
                    is_warned = True

    def _obtain_now(self, count: int) -> list[Message]:
        """Without waiting for a publish: until the master says that nothing is ready.

        What this handle has put before counts as published: it is waited for.
        """
        handle = self._handle
        deadline = time.monotonic() + NOWAIT_S
        publisher = handle._publisher
        own_count = publisher.accepted_count
        asks = 0
        while (left := deadline - time.monotonic()) > 0:
            is_published = publisher.ended_count >= own_count
            try:
                counts = handle._counts(left)
            except (QueueDown, NoQuorum):
                break
            with self._ready:
                if not self.buffered and counts.ready:
                    self._ready.wait(min(left, 0.02))
            found = self._pop(count)
            if found:
                return found
            self.check_refused()
            asks += is_published
            if not is_published or counts.ready:
                continue
            if not counts.unacknowledged or asks >= RECALL_ASKS:
                break
        return self._pop(count)

    def check_refused(self) -> None:
        """Raise PreconditionFailed when the master did not take get() as a consumer."""
        if self.refused:
            raise PreconditionFailed(f"get() on queue {self._handle.name!r}: {self.refused}")

    def _pop(self, count: int) -> list[Message]:
        found = self._buffer.take(count)
        if found:
            self._handle._publisher.on_taken()
        return found

    # --- The host's thread ----------------------------------------------------------------

    def feed(self, chunks: Sequence[Chunk], size: int) -> None:
        """Messages of so many bytes have come."""
        count = sum(chunk.count for chunk in chunks)
        each = size // max(count, 1)
        # Large messages are noticed at once, small ones after a while: memory before speed.
        self._message_bytes = max(each, (self._message_bytes + each) // 2)
        self._arrived += count
        self._has_arrival = True
        self._buffer.add(chunks)
        if self._demand or self.listeners:
            self.notify()

    def fetch(self, session: Session, now_ms: int) -> None:
        """Ask for as many messages as calls want, and what they will want next."""
        if (self._demand or self._hint) and not self._is_subscribed and not self._refused:
            self._is_subscribed = True
            session.subscribe(0, self._handle._config.prefetch, False, False)
        if not self._is_subscribed:
            return
        ahead = CALLS_AHEAD * min(self.asked, CALL_COUNT_MAX)
        self._window.bound(max(WINDOW_MAX_FACTOR * self._handle._config.prefetch, ahead))
        self._watch_idleness(session, now_ms)
        room = max(self.ahead_bytes // max(self._message_bytes, 1), 1)
        wanted = min(self._demand + max(self._window.size, self._hint), room)
        self._low = self._window.size // 2
        session.want(0, self._buffer.count, wanted)

    def _watch_idleness(self, session: Session, now_ms: int) -> None:
        buffered = self._buffer.count
        taken = self._arrived - buffered
        if taken != self._seen_taken:
            self._seen_taken = taken
            self._window.on_taken(now_ms, buffered == 0)
            self.idle_at_ms = None
        if self._has_arrival:
            self._has_arrival = False
            self._window.on_arrival(now_ms)
        if self._demand or not buffered:
            self.idle_at_ms = None
        elif self.idle_at_ms is None:
            self.idle_at_ms = now_ms + IDLE_GIVEBACK_MS
        elif now_ms >= self.idle_at_ms:
            self.give_back(session)

    def give_back(self, session: Session, keep: int | None = None) -> None:
        """Return what no call has taken, all but the first `keep` (None: what calls wait for)."""
        self._window.on_idle()
        self._hint = 0
        self.idle_at_ms = None
        unseen = self._empty(self._demand if keep is None else keep)
        if unseen:
            session.withdraw(0, tuple(unseen))

    def drop(self, session: Session) -> None:
        """What is buffered is void."""
        # Who has lost a master first asks for what calls wait for: acks of what users hold are
        # to find their messages where they were.
        self._window.on_idle()
        self._hint = 0
        self.idle_at_ms = None
        session.drop(self._empty(0))

    def _empty(self, keep: int) -> list[HandOut]:
        """Take all but the first `keep` out of the buffer; return their names."""
        unseen = self._buffer.shrink(keep)
        self._arrived -= sum(run.stop - run.start for run in unseen)
        return names_of(unseen)

    def reclaim(self, message: Message) -> Message | None:
        """Take the next delivery of a message out of the buffer, if it is there."""
        return self._buffer.take_out(message.sequence, message.delivery_count + 1)

    def on_refused(self, why: str) -> None:
        """The master does not take get() as a consumer."""
        self._is_subscribed = False
        self._hint = 0
        self._refused = why
        self.notify()


def chunks_of(
    handle: Handle, consumer: int, handouts: Sequence[HandOut], parts: Sequence[bytes]
) -> list[Chunk]:
    """What is in the frames that hold the bodies of these hand-outs.

    Raises:
        ProtocolError: a frame is damaged.
    """
    chunks: list[Chunk] = []
    pieces = iter(handouts)
    piece = next(pieces, None)
    for frame in parts:
        header = frames.check(frame)
        if header.kind != OpKind.PUBLISH:
            raise ProtocolError(f"op {header.lsn} of kind {header.kind} holds no messages")
        first, count = header.first_sequence, header.count
        while piece is not None and not piece.first <= first <= piece.last:
            piece = next(pieces, None)
        if piece is None:
            break
        chunks.append(Chunk(handle, consumer, piece, first, count, header.timestamp_us, frame))
    return chunks
