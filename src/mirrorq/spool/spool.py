"""`Spool`: one file, one thread that writes and sends, and a `Route` for each queue.

*Threads*: users' threads append to the inbox and wait; the hosts' threads append outcomes; threads
that open handles append what they have. All else is the spool's thread's own. No lock is shared
with a user's thread (`waiting`).

The order of a round is what makes it safe: what came in is written, together with what has ended
and with how far may be sent (`Line.sent_to`), in one synced commit; only after it is anything
accepted, confirmed, or sent.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from mirrorq.api import exit_flush
from mirrorq.api.completion import Outcomes
from mirrorq.api.handle import Handle
from mirrorq.api.waits import in_thread
from mirrorq.errors import (
    ConfirmUnknown,
    Full,
    MirrorQError,
    NotConfirmed,
    PreconditionFailed,
    ShutDown,
    StoreError,
    StoreFull,
)
from mirrorq.protocol.identities import spool_producer
from mirrorq.session.calls import Failed, Stored
from mirrorq.spool.confirmation import Batch, SpoolConfirmation
from mirrorq.spool.incoming import NewRecord, gathered
from mirrorq.spool.line import Flight
from mirrorq.spool.records import decoded, encoded
from mirrorq.spool.route import AGAIN_S, Route, Sending, SetAside, SpoolStatus
from mirrorq.store.spool_file import (
    LineHead,
    SpoolFile,
    SpoolRecord,
    SpoolWrites,
)
from mirrorq.waiting import Doorbell, Latch, begin_thread, take_back

if TYPE_CHECKING:
    from mirrorq.api.host import Host
    from mirrorq.config import Config

log = logging.getLogger("mirrorq")

WINDOW_BYTES = 4 << 20
"""So much of a file is looked at, and given free for sending, at once."""
OPEN_S = 10.0
"""One try."""
FULL_S = 1.0
"""What the disk did not take is tried again after this."""
CLOSE_S = 5.0


class Spool:
    """A file of accepted puts, and what brings them to their queues.

    Args:
        path: directory of the file; no other process has it open at the same time.
        config: its `spool_…` settings.
        host: gives the node or client over which queues are reached; may raise, and is asked again.

    Raises:
        StoreLocked, StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path, config: Config, host: Callable[[], Host]) -> None:
        self.path = path
        self.config = config
        self._host = host
        self._pid = os.getpid()
        self.outcomes = Outcomes()
        self._inbox: deque[tuple[Route, SpoolConfirmation]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._outcomes_due: deque[tuple[Sending, Stored | Failed]] = deque()
        self._bell = Doorbell()
        self._is_closing = False
        self._is_closed = False
        self._failure: BaseException | None = None
        self._ended = Latch()
        self._full_until = 0.0
        self._is_taking = False
        """What has left the inbox is not on the disk yet."""
        self._being_written: list[NewRecord] = []
        """What the commit under way brings, and whose users are not told yet."""
        self.watched: set[Batch] = set()
        """Batches whose callbacks are due: nobody else may keep them."""
        self.put_size = self.taken_size = 0
        self._file = SpoolFile(path, config.spool_bytes_max)
        try:
            heads = self._file.heads()
        except BaseException:
            self._file.close()
            raise
        self._routes = {
            head.name: Route(number, head, self._heard) for number, head in heads.items()
        }
        _open.add(self)
        begin_thread(threading.Thread(target=self._run, name="mirrorq-spool", daemon=True))

    # --- Users' threads ---------------------------------------------------------------------

    def route(self, name: str, *, durable: bool, auto_delete: bool) -> Route:
        """The way of a queue; one is made for a name that is new."""
        self.check_open()
        found = self._routes.get(name)
        if found is None:
            done = Latch()
            self._call(lambda: self._make(name, durable, auto_delete, done))
            while not done.wait(1.0):
                self.check_open()  # it may have ended just before it was asked
            self.check_open()
            found = self._routes.get(name)
            if found is None:
                raise Full(f"spool {self.path} has no room for the first put into queue {name!r}")
        self._bell.ring()
        return found

    def check_open(self) -> None:
        """Raises: ShutDown: it is closed, has failed, or belongs to the process before a fork."""
        self.check_well()
        if self._is_closing:
            raise ShutDown(f"spool {self.path} is closed")
        if os.getpid() != self._pid:
            raise ShutDown(
                f"spool {self.path} was opened by process {self._pid}, before this one was forked: "
                "open one with a path of its own"
            )

    def check_well(self) -> None:
        """Raises: ShutDown: it has failed."""
        if self._failure is not None:
            raise ShutDown(f"spool {self.path} has failed: {self._failure}") from self._failure

    def accept(
        self, route: Route, item: SpoolConfirmation, block: bool, timeout: float | None
    ) -> None:
        """Take a put, when there is room.

        Raises:
            Full: none within `timeout` seconds, and why.
            ShutDown: the spool is closed.
        """
        size = item._size
        if self._is_closing or self._failure is not None or os.getpid() != self._pid:
            self.check_open()
        if not self._has_room(route, size):
            self._wait_for_room(route, size, block, timeout)
        self.put_size += size
        route.put_size += size
        entry = (route, item)
        self._inbox.append(entry)
        if self._is_closed and take_back(self._inbox, entry):
            raise ShutDown(f"spool {self.path} is closed")
        self._bell.ring()

    def _has_room(self, route: Route, size: int) -> bool:
        in_memory = self.put_size - self.taken_size
        if in_memory > 0 and in_memory + size > self.config.unconfirmed_bytes_max:
            return False
        if self.config.spool_overflow == "drop-head":
            return True
        held = route.head.size + route.put_size - route.taken_size
        return held <= 0 or held + size <= self.config.spool_bytes_max

    def _wait_for_room(self, route: Route, size: int, block: bool, timeout: float | None) -> None:
        def may_go_on() -> bool:
            return self._has_room(route, size) or self._is_closing or self._failure is not None

        if self.config.spool_overflow == "reject-publish":
            block = False
        self._bell.ring()  # its thread corrects the counts
        if not self.outcomes.wait_for(may_go_on, timeout if block else 0):
            raise Full(
                f"the spool of queue {route.head.name!r} holds {route.head.count} messages "
                f"({route.head.size} bytes; spool_bytes_max is {self.config.spool_bytes_max}): it "
                f"waits because {route.why or 'the queue takes them more slowly than they come'}"
            )
        self.check_open()

    def flush(self, timeout: float | None) -> bool:
        """Wait until everything that was put is accepted; say whether it is."""
        self._bell.ring()

        def is_written() -> bool:
            # In this order: `_is_taking` is set before anything leaves the inbox.
            return (not self._inbox and not self._is_taking) or self._is_closed

        return self.outcomes.wait_for(is_written, timeout)

    def status(self, route: Route) -> SpoolStatus:
        """What a line holds now. Never waits."""
        head = route.head
        oldest_s = 0.0
        if head.count and not self._is_closed:
            with suppress(StoreError):  # it was closed just now
                oldest_s = self._oldest_s(route)
        is_connected = route.handle is not None
        return SpoolStatus(
            head.count,
            head.size,
            oldest_s,
            is_connected,
            route.why,
            head.aside_count,
            route.dropped,
        )

    def _oldest_s(self, route: Route) -> float:
        """How long the first record has waited. It may be large: it is read once."""
        first = self._file.first(route.number)
        ordinal, stamp_ms = route.first
        if first != ordinal:
            found = self._file.after(route.number, first - 1, 1)
            known = decoded(found[0]) if found else None
            stamp_ms = None if known is None else known.stamp_ms
            route.first = (first, stamp_ms)
        return 0.0 if stamp_ms is None else max(time.time() - stamp_ms / 1000, 0.0)

    @property
    def is_closed(self) -> bool:
        """Whether nothing happens here any more."""
        return self._is_closed

    def aside(self, route: Route) -> list[tuple[int, int, SetAside]]:
        """(ordinal, count, what) of all that was set aside for a queue."""
        found = []
        for ordinal, count, one in self._file.set_aside(route.number):
            known = None if one.is_damaged else decoded(SpoolRecord(ordinal, count, 0, one.record))
            bodies = () if known is None else tuple(known.bodies)
            found.append((ordinal, count, SetAside(one.reason, bodies, count, one.record)))
        return found

    def drop_aside(self, route: Route) -> int:
        """Forget it; returns how many messages that were."""

        def drop() -> int:
            places = [(route.number, o, c) for o, c, _ in self._file.set_aside(route.number)]
            head = msgspec.structs.replace(route.head, aside_count=0)
            self._file.commit(SpoolWrites(taken=places, heads={route.number: head}))
            route.head = head
            return sum(count for _, _, count in places)

        return int(self.on_thread(drop))

    @property
    def routes(self) -> dict[str, Route]:
        """All queues that it has ever had something for."""
        return dict(self._routes)

    def on_thread(self, function: Callable[[], Any]) -> Any:
        """Have something done on the spool's thread, and wait for it.

        Raises:
            What it raises; ShutDown: the spool is closed.
        """
        done = Latch()
        found: list[tuple[Any, BaseException | None]] = []

        def call() -> None:
            try:
                found.append((function(), None))
            except BaseException as error:
                found.append((None, error))
            done.set()

        self._call(call)
        while not done.wait(1.0):
            self.check_open()
        value, error = found[0]
        if error is not None:
            raise error
        return value

    def _call(self, function: Callable[[], None]) -> None:
        self._calls.append(function)
        self._bell.ring()

    def close(self) -> None:
        """Write what was put, and end. What is not confirmed stays in the file, and is sent when it
        is opened again. May be repeated."""
        if not self._is_closing:
            self.flush(CLOSE_S)
        self._is_closing = True
        self._bell.ring()
        self._ended.wait(CLOSE_S)
        self.outcomes.close(CLOSE_S)

    # --- Hosts' threads -------------------------------------------------------------------

    def _heard(self, sent: Sending, outcome: Stored | Failed) -> None:
        self._outcomes_due.append((sent, outcome))
        self._bell.ring()

    def _open(self, route: Route) -> None:
        """On a thread of its own: have a handle on the queue."""
        handle: Handle | None = None
        error: BaseException | None = None
        try:
            host = self._host()
            head = route.head
            declared = host._declare(
                head.name,
                durable=head.durable,
                exclusive=False,
                auto_delete=head.auto_delete,
                passive=False,
                timeout=OPEN_S,
            )
            if declared.shards:
                raise PreconditionFailed(
                    f"queue {head.name!r} is sharded: only queues without shards can be spooled"
                )
            handle = Handle(host, declared, head.name)
            handle.identity = (head.producer, route.line.base)
            handle.open()
            exit_flush.forget(handle)
        except BaseException as caught:
            error = caught
            if handle is not None:
                handle.abandon()
                handle = None
        self._call(lambda: self._on_opened(route, handle, error))
        if self._is_closed and handle is not None:
            handle.abandon()

    # --- The spool's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._is_closing and not self._inbox):
                self._bell.wait(self._round())
        except BaseException as error:
            self._failure = error
            log.exception("spool %s has failed: what is in its file stays there", self.path)
        finally:
            self._end()

    def _end(self) -> None:
        self._is_closed = self._is_closing = True
        while self._calls:
            with suppress(StoreError):  # who has asked sees that it is closed
                self._calls.popleft()()
        for route in self._routes.values():
            self._drop_handle(route)
        try:
            self._file.close()
        finally:
            self._end_open()
            self._ended.set()
            self.outcomes.notify()

    def _end_open(self) -> None:
        """Nobody here will hear what becomes of what has no outcome yet."""
        why = f"has failed: {self._failure}" if self._failure is not None else "was closed"
        for _, item in self._take_inbox():
            batch = Batch()
            batch.error = NotConfirmed(f"spool {self.path} did not take the message: it {why}")
            batch.is_over = True
            item._take_place(((batch, 0, 1),))
        left = [record.batch for record in self._being_written]
        for route in self._routes.values():
            left += [batch for batch, _ in route.over]
            left += route.batches.values()
        error = ConfirmUnknown(
            f"it is not known what becomes of the message: spool {self.path} {why}. What is in its "
            "file is sent when that is opened again"
        )
        for batch in left:
            batch.error = batch.error or error
            batch.is_over = True
        self._tell_all(left)

    def _round(self) -> float | None:
        """Do what is due; return after how many seconds to look again."""
        while self._calls:
            self._calls.popleft()()
        self._take_outcomes()
        now = time.monotonic()
        if now >= self._full_until:
            self._drop_old()
            self._write(self._take_inbox())
        for route in self._routes.values():
            if route.broken is not None and not route.has_news:
                self._begin_again(route, route.broken)
        self._forward()
        self._reopen(now)
        return self._next_look(now)

    def _next_look(self, now: float) -> float | None:
        if any(route.has_news for route in self._routes.values()) or self._inbox:
            return max(self._full_until - now, 0.0)
        due = [r.open_at for r in self._routes.values() if r.handle is None and not r.is_opening]
        wait = max(min(due) - now, 0.0) if due else None
        if self.config.spool_age_ms_max and due:
            wait = min(wait or 1.0, 1.0)
        return wait

    def _make(self, name: str, durable: bool, auto_delete: bool, done: Latch) -> None:
        try:
            if name not in self._routes:
                number = max((one.number for one in self._routes.values()), default=0) + 1
                head = LineHead(name, _new_producer(), durable=durable, auto_delete=auto_delete)
                self._file.commit(SpoolWrites(heads={number: head}))
                self._routes[name] = Route(number, head, self._heard)
        except StoreFull as error:
            log.warning("%s", error)
        finally:
            done.set()

    # --- What comes ---------------------------------------------------------------------------

    def _take_inbox(self) -> list[tuple[Route, SpoolConfirmation]]:
        self._is_taking = bool(self._inbox)
        taken = []
        for _ in range(len(self._inbox) if self._is_taking else 0):
            try:
                taken.append(self._inbox.popleft())
            except IndexError:
                break
        return taken

    def _write(self, entries: list[tuple[Route, SpoolConfirmation]]) -> None:
        """One commit of all that came and all that went."""
        changed = [route for route in self._routes.values() if route.has_news]
        if not entries and not changed:
            self._is_taking = False
            self._correct()
            return
        records = self._being_written = gathered(entries, self.config.frame_bytes_max)
        if self.config.spool_overflow == "drop-head":
            self._make_room(records)
            changed = [route for route in self._routes.values() if route.has_news]
        made = self._commit(changed, records)
        for route, entry in entries:
            self.taken_size += entry._size
            route.taken_size += entry._size
        self._correct()
        if not made and records:
            error = NotConfirmed(
                f"spool {self.path} could not take the message: its disk, or spool_bytes_max "
                f"{self.config.spool_bytes_max}, is full. Put it again later"
            )
            for record in records:
                record.batch.error = error
                record.batch.is_over = True
        self._being_written = []
        self._is_taking = False
        self._tell(changed, [record.batch for record in records])

    def _correct(self) -> None:
        """Where nothing waits, what users have counted is what was taken."""
        if not self._inbox:
            self.put_size = self.taken_size
            for route in self._routes.values():
                route.put_size = route.taken_size

    def _commit(self, changed: list[Route], records: list[NewRecord]) -> bool:
        """Write; False: there was no room for what came."""
        writes = SpoolWrites()
        for route in changed:
            self._write_gone(route, writes)
        gone_heads = {number: msgspec.structs.replace(h) for number, h in writes.heads.items()}
        now_ms = int(time.time() * 1000)
        for record in records:
            record.write(writes, now_ms)
        try:
            self._file.commit(writes)
        except StoreFull as error:
            log.warning("%s", error)
            writes.puts, writes.heads = [], gone_heads
            if not self._commit_gone(writes):
                # Even what frees room finds none: it is tried again.
                self._full_until = time.monotonic() + FULL_S
                return False
            self._settle(changed, writes)
            return False
        self._settle(changed, writes)
        for record in records:
            record.on_written()
        return True

    def _commit_gone(self, writes: SpoolWrites) -> bool:
        try:
            self._file.commit(writes)
        except StoreFull:
            return False
        return True

    def _write_gone(self, route: Route, writes: SpoolWrites) -> None:
        head = msgspec.structs.replace(route.head)
        number = route.number
        for _, count, size in (*route.gone, *route.damaged):
            head.count -= count
            head.size -= size
        writes.ended += [(number, ordinal, count) for ordinal, count, _ in route.gone]
        writes.damaged += [(number, ordinal, count) for ordinal, count, _ in route.damaged]
        for ordinal, count, reason, data in route.aside:
            writes.aside.append((number, ordinal, count, reason, data))
        head.aside_count += sum(one[1] for one in route.aside)
        head.aside_count += sum(one[1] for one in route.damaged)
        head.base = route.line.base
        head.sent_to = route.sent_due
        writes.heads[number] = head

    def _settle(self, changed: list[Route], writes: SpoolWrites) -> None:
        """It is on the disk."""
        for route in self._routes.values():
            head = writes.heads.get(route.number)
            if head is None:
                continue
            route.head = head
            route.line.sent_to = head.sent_to
            route.line.kept_base = head.base
            if route in changed:
                route.gone, route.aside, route.damaged = [], [], []
                route.ready += route.window
                route.window = []

    def _tell(self, changed: list[Route], batches: list[Batch]) -> None:
        for route in changed:
            if route.gone:
                continue  # it was not written after all
            over, route.over = route.over, []
            for batch, error in over:
                batch.error = batch.error or error
                batch.is_over = True
                batches.append(batch)
        self._tell_all(batches)

    def _tell_all(self, batches: list[Batch]) -> None:
        self.outcomes.notify()
        for batch in batches:
            if batch.watched:
                batch.tell()
                if batch.is_over:
                    batch.watched.clear()
                    self.watched.discard(batch)

    # --- What goes ----------------------------------------------------------------------------

    def _take_outcomes(self) -> None:
        for _ in range(len(self._outcomes_due)):
            sent, outcome = self._outcomes_due.popleft()
            route = sent.route
            if sent.generation != route.generation:
                continue
            flight, line = sent.flight, route.line
            if isinstance(outcome, Stored):
                line.on_stored(flight, outcome.index, outcome.count, outcome.first_sequence)
            elif outcome.unknown and not outcome.is_lost:
                route.broken = outcome.reason
            else:
                line.on_failed(
                    flight, outcome.index, outcome.count, outcome.reason, is_lost=outcome.is_lost
                )
        for route in self._routes.values():
            for flight in route.line.ended():
                self._on_ended(route, flight)

    def _on_ended(self, route: Route, flight: Flight) -> None:
        """All of a record has an outcome: it leaves the file with the next commit."""
        route.gone.append((flight.ordinal, flight.count, route.sizes.pop(flight.ordinal)))
        batch = route.batches.pop(flight.ordinal, None)
        if batch is not None:
            batch.stored, batch.failed = flight.stored, flight.failed
            batch.is_lost = flight.is_lost
            route.over.append((batch, None))
        elif flight.failed:
            self._put_aside(route, flight)

    def _put_aside(self, route: Route, flight: Flight) -> None:
        """The queue refused it, and nobody is here to hear that."""
        reason = flight.failed[0][2]
        found = self._file.after(route.number, flight.ordinal - 1, 1)
        known = decoded(found[0]) if found and found[0].ordinal == flight.ordinal else None
        if known is None:
            return
        places = [i for first, count, _ in flight.failed for i in range(first, first + count)]
        said = known.properties
        refused = msgspec.structs.replace(
            known,
            bodies=[known.bodies[i] for i in places],
            properties=said if isinstance(said, bytes) else [said[i] for i in places],
        )
        route.aside.append((flight.ordinal, len(places), reason, encoded(refused)))
        log.warning(
            "queue %s refused %d message(s) that an earlier process had spooled: %s. They are set "
            "aside in %s",
            route.head.name,
            len(places),
            reason,
            self.path,
        )

    def _drop_old(self) -> None:
        """What is too old and was certainly not sent."""
        for route in self._routes.values():
            waits = route.head.next_ordinal - 1 > route.sent_due and not route.gone
            if waits and self.config.spool_age_ms_max:
                self._drop(route, 0)

    def _make_room(self, records: list[NewRecord]) -> None:
        """Drop the oldest that were never sent, where what comes does not fit."""
        wanted: dict[Route, int] = {}
        for record in records:
            wanted[record.route] = wanted.get(record.route, 0) + record.size
        for route, size in wanted.items():
            leaving = sum(one[2] for one in route.gone)
            excess = route.head.size - leaving + size - self.config.spool_bytes_max
            if excess > 0 and not route.gone:
                self._drop(route, excess)

    def _drop(self, route: Route, excess: int) -> None:
        """Drop records, from the first that was never sent: so many bytes, and what is too old."""
        now_ms = int(time.time() * 1000)
        oldest_ms = now_ms - (self.config.spool_age_ms_max or now_ms)
        start = max(route.sent_due, route.read_to)
        for record in self._file.after(route.number, start, max(excess, WINDOW_BYTES)):
            known = decoded(record)
            if known is None:
                return
            if known.stamp_ms < oldest_ms:
                why = f"it waited for longer than spool_age_ms_max {self.config.spool_age_ms_max}"
            elif excess > 0:
                why = f"the spool is full (spool_bytes_max {self.config.spool_bytes_max})"
            else:
                return
            excess -= record.size
            self._give_up(route, record, f"{why}, and nothing of it was sent")

    def _give_up(self, route: Route, record: SpoolRecord, why: str) -> None:
        route.gone.append((record.ordinal, record.messages, record.size))
        route.dropped += record.messages
        batch = route.batches.pop(record.ordinal, None)
        if batch is not None:
            route.over.append((batch, NotConfirmed(f"the message was dropped: {why}")))
        else:
            log.warning("%d message(s) for queue %s: %s", record.messages, route.head.name, why)

    # --- Sending ------------------------------------------------------------------------------

    def _forward(self) -> None:
        for route in self._routes.values():
            if route.handle is not None and route.broken is None:
                self._send(route)
                is_short = not (route.ready or route.window or route.gone)
                if is_short and route.broken is None and not route.is_all_read:
                    self._read(route)
                    self._send(route)

    def _send(self, route: Route) -> None:
        handle = route.handle
        assert handle is not None
        now_ms = int(time.time() * 1000)
        while route.ready:
            record, known = route.ready[0]
            flight = route.line.send(record.ordinal, record.messages)
            sent = Sending(route, flight, known, now_ms)
            try:
                in_thread(handle.puts.accepting_free(sent, block=False))
            except MirrorQError as error:
                route.line.flights.pop()
                if not isinstance(error, Full):
                    route.broken = str(error)
                    self._bell.ring()
                return
            route.sizes[record.ordinal] = record.size
            route.ready.popleft()

    def _read(self, route: Route) -> None:
        """Have the next records of the file ready, or given free for it by a commit."""
        now_ms = int(time.time() * 1000)
        records = self._file.after(route.number, route.read_to, WINDOW_BYTES)
        if not records:
            route.read_to = route.head.next_ordinal - 1
        for record in records:
            known = decoded(record)
            if known is None:
                self._skip(route, record)
                return
            may_drop = route.line.may_drop(record.ordinal)
            route.read_to = record.ordinal
            if may_drop and known.ttl_ms and known.stamp_ms + known.ttl_ms < now_ms:
                self._give_up(route, record, f"its ttl of {known.ttl_ms} ms was over")
            elif may_drop:
                route.window.append((record, known))
            else:
                route.ready.append((record, known))
        if route.window or route.gone:
            route.sent_due = max(route.sent_due, route.read_to)
            self._bell.ring()

    def _skip(self, route: Route, record: SpoolRecord) -> None:
        """A record that cannot be read goes aside. If it may have been sent, its numbers are over:
        what is before it has to end first, and what is behind it begins under a new handle."""
        if not route.line.may_drop(record.ordinal):
            if route.line.flights or route.ready or route.gone:
                return
            route.line.skip(record.messages)
        route.damaged.append((record.ordinal, record.messages, record.size))
        log.error(
            "%d message(s) for queue %s in spool %s cannot be read (the bytes on the disk have "
            "changed): set aside",
            record.messages,
            route.head.name,
            self.path,
        )
        route.broken = "a damaged record was set aside"
        self._bell.ring()

    # --- Handles ------------------------------------------------------------------------------

    def _reopen(self, now: float) -> None:
        for route in self._routes.values():
            if route.handle is None and not route.is_opening and now >= route.open_at:
                if route.has_news:
                    continue  # `base` is to be on the disk first
                route.is_opening = True
                try:
                    start_new_thread(self._open, (route,))
                except RuntimeError as error:  # the machine has no more threads just now
                    self._on_opened(route, None, error)

    def _on_opened(self, route: Route, handle: Handle | None, error: BaseException | None) -> None:
        route.is_opening = False
        if handle is not None:
            route.handle = handle
            route.again_s = AGAIN_S[0]
            if route.why and route.head.count:
                log.info("queue %s is reached: %d spooled message(s) are sent", route.head.name,
                         route.head.count)  # fmt: skip
            route.why = ""
            return
        why = str(error)
        if why.partition(":")[0] != route.why.partition(":")[0]:
            log.warning("puts into queue %s are spooled: %s", route.head.name, why)
        route.why = why
        route.open_at = time.monotonic() + route.again_s
        route.again_s = min(2 * route.again_s, AGAIN_S[1])

    def _begin_again(self, route: Route, why: str) -> None:
        """What was on its way is sent anew, over another handle, under the same numbers."""
        route.broken = None
        route.why = why
        route.open_at = time.monotonic() + route.again_s
        route.again_s = min(2 * route.again_s, AGAIN_S[1])
        self._drop_handle(route)
        route.line.begin_again()
        route.ready.clear()
        route.window.clear()
        route.sizes.clear()
        route.read_to = 0

    def _drop_handle(self, route: Route) -> None:
        handle, route.handle = route.handle, None
        route.generation += 1
        if handle is not None:
            try:
                handle.abandon()
            except MirrorQError as error:
                log.debug("a handle on queue %s: %s", route.head.name, error)


def _new_producer() -> int:
    return spool_producer(secrets.randbits(61))


_open: WeakSet[Spool] = WeakSet()


def _flush_all() -> None:
    """The process ends: what was put and is not yet on the disk is waited for."""
    for spool in list(_open):
        if spool._is_closed or spool._pid != os.getpid():
            continue
        if not spool.flush(spool.config.exit_flush_ms / 1000):
            log.warning("the process ends before all that was put is in spool %s", spool.path)


atexit.register(_flush_all)
