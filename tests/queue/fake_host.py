"""A host in memory: one thread, the real master of one queue, and faults at will.

It does for handles what a node does (`queue.Host`), without a store, a catalog or a network:
what is written goes to a dict, and what would travel is handed over. The faults are those that
a handle must bear: no master, another master, a broken link, no majority, a disk that waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from mirrorq.api.host import Declared
from mirrorq.api.queue import MirroredQueue
from mirrorq.config import Config
from mirrorq.monitoring.status import QueueStatus
from mirrorq.protocol.effects import Persisted, QueueWrite
from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.policy import DEFAULT, Definition
from mirrorq.protocol.sessions import Browsed, Deliver, SessionReply
from mirrorq.protocol.views import Member, View
from mirrorq.replication.events import (
    Defined,
    LeaseChanged,
    ReplicaEvent,
    Requested,
    SessionGone,
    Tick,
    ViewInstalled,
)
from mirrorq.replication.events import LinkLost as ReplicaLinkLost
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.session.calls import Closed, LinkLost, MasterChanged, ReplyArrived, SessionEvent
from mirrorq.testing.disk import QueueFiles
from mirrorq.wire.ops import FrameCodec

QUEUE_ID = 3
FOREVER_MS = 1 << 60
PATIENCE_S = 20.0
"""A test that waits longer for its condition has failed."""


def wait_until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        pause.wait(0.002)


class FakeHost:
    """Implements `queue.Host`. Use as a context manager."""

    _survives_fork = False

    def __init__(self, config: Config | None = None, name: str = "fake") -> None:
        self.name = name
        self.config = config or Config()
        self.epoch = 0
        self.deleted = False
        self.steps = 0
        """Steps of all handles so far."""
        self._ahead_ms = 0
        """By how much both clocks are ahead of the machine's."""
        self._codec = FrameCodec()
        self._files = QueueFiles()
        self._lease = Lease(until_ms=FOREVER_MS)
        self._definition = DEFAULT
        self._replica: Replica | None = None
        self._writes: deque[tuple[int, QueueWrite]] = deque()
        self._is_holding = False
        self._held_replies: list[SessionReply] | None = None
        self._ports: dict[SessionId, tuple[object, list[SessionEvent]]] = {}
        self._wakes: dict[SessionId, int] = {}
        self._replica_wake_ms: int | None = None
        self._numbers = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._woken: deque[SessionId] = deque()
        self._event = threading.Event()
        self._is_closed = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fake-host", daemon=True)
        self._thread.start()
        self.run(self._serve)

    # --- queue.Host -----------------------------------------------------------------------

    def _open_session(
        self, port: object, queue_id: int, owner: SessionId | None = None
    ) -> SessionId:
        self._numbers += 1
        session = SessionId(self.name, 1, self._numbers)

        def open_it() -> None:
            events: list[SessionEvent] = []
            if self._replica is not None:
                events.append(MasterChanged(self.epoch, True))
            self._ports[session] = (port, events)

        self.run(open_it)
        return session

    def _close_session(self, session: SessionId) -> None:
        def close_it() -> None:
            self._ports.pop(session, None)
            self._wakes.pop(session, None)
            self._master(SessionGone(session))

        self.run(close_it)

    def _wake(self, session: SessionId) -> None:
        self._woken.append(session)
        self._event.set()

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._ahead_ms

    def _wall_us(self) -> int:
        return time.time_ns() // 1000 + self._ahead_ms * 1000

    def pass_time(self, seconds: float) -> None:
        """So much later, at once."""
        self._ahead_ms += int(seconds * 1000)
        self._event.set()

    _stuck_text = ""
    _lineage = 1
    _access_error = None

    def is_paused(self) -> bool:
        return self._lease.paused

    def closed(self) -> bool:
        return self._is_closed

    def _queue_status(self, queue_id: int) -> QueueStatus:
        return QueueStatus("q", "running" if self._replica is not None else "down")

    def _delete_queue(
        self, queue_id: int, *, if_empty: bool, if_unused: bool, timeout: float | None
    ) -> None:
        self.deleted = True
        self.tell(Closed("the queue was deleted"))

    def close(self) -> None:
        if self._is_closed:
            return
        self.tell(Closed("the host is closed"))
        self._is_closed = True
        self._event.set()
        self._thread.join(PATIENCE_S)

    def __enter__(self) -> FakeHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        assert self.failure is None, self.failure

    # --- For tests ------------------------------------------------------------------------

    def queue(self) -> MirroredQueue:
        """A handle on the queue."""
        return MirroredQueue._attach(self, Declared(QUEUE_ID), "q")

    def run(self, function: Callable[[], None]) -> None:
        """Call a function on the host's thread, between rounds, and wait for it."""
        if threading.current_thread() is self._thread:
            function()
            return
        done = threading.Event()

        def call() -> None:
            function()
            done.set()

        self._calls.append(call)
        self._event.set()
        assert done.wait(PATIENCE_S) or self.failure is not None, "the host's thread is stuck"

    def tell(self, event: SessionEvent) -> None:
        """An event for every handle."""

        def tell_all() -> None:
            for _, events in self._ports.values():
                events.append(event)

        self.run(tell_all)

    def down(self) -> None:
        """The master dies with what it had not written; nobody follows."""

        def kill() -> None:
            self._replica = None
            self._writes.clear()
            for _, events in self._ports.values():
                events[:] = [e for e in events if not isinstance(e, ReplyArrived)]
                events.append(MasterChanged(self.epoch, False))

        self.run(kill)

    def up(self) -> None:
        """A master in a new term, on what was written."""
        self.run(self._serve)

    def fail_over(self) -> None:
        """One master dies, the next serves."""
        self.down()
        self.up()

    def break_link(self) -> None:
        """Replies on the way are lost, and both sides know."""

        def lose() -> None:
            for _, events in self._ports.values():
                events[:] = [e for e in events if not isinstance(e, ReplyArrived)]
                events.append(LinkLost())
            self._master(ReplicaLinkLost(self.name))

        self.run(lose)

    def define(self, **definition: Any) -> None:
        """What the policy in force says."""

        def do_define() -> None:
            self._definition = Definition(**definition)
            self._master(Defined(self._definition))

        self.run(do_define)

    def hold_writes(self, hold: bool = True) -> None:
        """The disk does not answer (or does again): nothing becomes stable."""

        def do_hold() -> None:
            self._is_holding = hold

        self.run(do_hold)

    def hold_replies(self, hold: bool = True) -> None:
        """What the master sends is on its way (or arrives after all)."""

        def do_hold() -> None:
            held, self._held_replies = self._held_replies or [], [] if hold else None
            for reply in held:
                self._pass(reply)

        self.run(do_hold)

    @property
    def on_way(self) -> int:
        """Replies that are on their way."""
        return len(self._held_replies or ())

    def pause(self, paused: bool = True) -> None:
        """No contact with a majority: no confirms, no deliveries."""

        def do_pause() -> None:
            self._lease.paused = paused
            self._lease.until_ms = 0 if paused else FOREVER_MS
            self._master(LeaseChanged())

        self.run(do_pause)

    @property
    def live(self) -> int:
        """Messages in the queue."""
        assert self._replica is not None
        return self._replica.state.live.count

    # --- The thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._event.wait(self._patience_s())
                self._event.clear()
                self._round()
        except BaseException as error:
            self.failure = error
            self._is_closed = True
            raise

    def _patience_s(self) -> float:
        times = list(self._wakes.values())
        if self._replica is not None and self._replica_wake_ms is not None:
            times.append(self._replica_wake_ms)
        return min(max(min(times) - self.now_ms(), 0) / 1000, 1.0) if times else 1.0

    def _round(self) -> None:
        while self._calls:
            self._calls.popleft()()
        if self._replica_wake_ms is not None and self._replica_wake_ms <= self.now_ms():
            self._master(Tick())
        while True:
            due = dict.fromkeys(self._woken)
            self._woken.clear()
            now_ms = self.now_ms()
            for session, (_, events) in self._ports.items():
                if events or self._wakes.get(session, FOREVER_MS) <= now_ms:
                    due[session] = None
            for session in due:
                self._step(session)
            if not self._flush() and not due:
                return

    def _step(self, session: SessionId) -> None:
        if session not in self._ports:
            return
        port, events = self._ports[session]
        batch = list(events)
        events.clear()
        requests, wake_ms = port.step(self.now_ms(), batch)  # type: ignore[attr-defined]
        self.steps += 1
        self._wakes.pop(session, None)
        if wake_ms is not None:
            self._wakes[session] = wake_ms
        if requests:
            self._master(*[Requested(request) for request in requests])

    def _flush(self) -> bool:
        moved = False
        while self._writes and not self._is_holding:
            number, write = self._writes.popleft()
            self._files.apply(write)
            self._master(Persisted(number))
            moved = True
        return moved

    def _serve(self) -> None:
        self.epoch += 1
        me = MemberId("m", 1, self.epoch)
        image = self._files.image(QUEUE_ID)
        self._replica = Replica(me, QUEUE_ID, self.config, self._codec, image, self._lease)
        self._master(Defined(self._definition))
        self._master(ViewInstalled(View(self.epoch, (Member(me, True),), "clean", self.epoch)))
        for _, events in self._ports.values():
            events.append(MasterChanged(self.epoch, True))

    def _master(self, *events: ReplicaEvent) -> None:
        if self._replica is None:
            return
        effects = self._replica.step(self.now_ms(), self._wall_us(), *events)
        self._replica_wake_ms = effects.wake_at_ms
        if effects.write is not None:
            self._writes.append((effects.write_number, effects.write))
        for reply in effects.replies:
            self._pass(reply)

    def _pass(self, reply: SessionReply) -> None:
        if self._held_replies is not None:
            self._held_replies.append(reply)
            return
        known = self._ports.get(reply.session)
        if known is not None:
            known[1].append(ReplyArrived(self._filled(reply)))

    def _filled(self, reply: SessionReply) -> SessionReply:
        body = reply.reply
        if isinstance(body, Deliver):
            spans = [(piece.first, piece.last) for piece in body.deliveries]
        elif isinstance(body, Browsed):
            spans = [(first, last) for first, last, _ in body.ranges]
        else:
            return reply
        return replace(reply, reply=replace(body, frames=tuple(self._frames(spans))))

    def _frames(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        for first, last in spans:
            for entry in self._read(first, last):
                header = entry.header
                start = max(first - header.first_sequence, 0)
                stop = min(last + 1 - header.first_sequence, header.count)
                found.append(self._codec.cut(entry.frame, start, stop))
        return found

    def _read(self, first: int, last: int) -> list[Entry]:
        entries = sorted(self._files.frames.items())
        return [e for key, e in entries if key <= last and e.header.last_sequence >= first]
