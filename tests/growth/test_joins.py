"""What a join does in a step depends on its parts, and what it sends on what is missing.

Two members and no network: steps of both are counted in lines, each message and each write in
bytes. Pages and parts are small here, so that a queue of 10^3 messages has some of them, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
from attrs import evolve
from msgspec.structs import replace

from core.entries import CODEC, QUEUE, A, B, op, publish, view
from mirrorq.config import Config
from mirrorq.protocol.effects import Persisted, QueueWrite, ReplicaEffects
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import AckOp, Entry
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.ring import (
    Data,
    FetchFrames,
    FrameChunk,
    RingMessage,
    TransferRequest,
    TransferState,
)
from mirrorq.replication import checkpoints, donor
from mirrorq.replication.events import Defined, ReplicaEvent, RingReceived, Tick, ViewInstalled
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import COLUMNS, MESSAGES, PRODUCERS, PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing.disk import QueueFiles

from .test_depth import FEW, GROWTH_MAX, MANY, files_of
from .work import work_of

BODY_BYTES = 100
PART_BYTES = 8192
BATCH = 64
"""Messages of a request, before it is known how large they are."""
CONFIG = Config(transfer_chunk_bytes=BATCH * BODY_BYTES)
ENTRIES = 1024
SMALL = 20_000
"""Bytecodes: half a millisecond. What is less is not looked at."""
OF_THE_TERM = ((A, "ViewInstalled"), (A, "Persisted"))
"""A donor is a master here: how its term begins is no matter of the join."""
COUNTED = 6
"""Steps of a kind that are counted, and all behind the last part: those between are alike."""
VIEW = view(2, "a", "b", master_epoch=2)
MEMBERS = {A: "donor", B: "joiner"}


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    few = {MESSAGES: ENTRIES, PRODUCERS: 64, COLUMNS: ENTRIES}
    with (
        patch.dict(pages.ENTRIES_MAX, few),
        patch.object(donor, "PART_BYTES", PART_BYTES),
        patch.object(donor, "KNOWN_PAGES", 1),
        patch.object(checkpoints, "PART_BYTES", PART_BYTES),
    ):
        yield


class Side:
    """A member, its disk, and what it has done."""

    def __init__(self, me: MemberId, files: QueueFiles, time_us: int) -> None:
        self.me = me
        self.files = files
        self.time_us = time_us
        self.lease = Lease(until_ms=1 << 60)
        cache = PageCache(lambda _, kind, first, lsn: files.pages[kind, first, lsn].data or b"")
        image = files.image(QUEUE, whole=False)
        self.replica = Replica(me, QUEUE, CONFIG, CODEC, image, self.lease, cache=cache)
        self.steps: dict[str, int] = {}
        """Bytecodes of the longest of each kind."""
        self._kinds: Counter[str] = Counter()
        self.wake_at_ms: int | None = None

    def step(self, now_ms: int, event: ReplicaEvent) -> ReplicaEffects:
        kind = kind_of(event)
        self._kinds[kind] += 1
        if self._kinds[kind] <= COUNTED or kind == "the last part":
            found: list[ReplicaEffects] = []
            work = work_of(lambda: found.append(self.replica.step(now_ms, self.time_us, event)))
            self.steps[kind] = max(self.steps.get(kind, 0), work.count)
            (effects,) = found
        else:
            effects = self.replica.step(now_ms, self.time_us, event)
        if kind == "the last part":
            self._kinds.clear()
        self.wake_at_ms = effects.wake_at_ms
        if effects.write is not None:
            self.files.apply(effects.write)
        return effects


def kind_of(event: ReplicaEvent) -> str:
    if not isinstance(event, RingReceived):
        return type(event).__name__
    if isinstance(event.message, TransferState) and event.message.is_last:
        return "the last part"
    return type(event.message).__name__


class Join:
    """A member joins the other, until it is complete, or has fetched so many chunks."""

    def __init__(self, given: QueueFiles, own: QueueFiles, time_us: int) -> None:
        self.now_ms = 1000
        self.view = VIEW
        image = own.state and QueueState.decode(own.state)
        self._dense = image.next_sequence if image else 1 << 62
        self.sides = {A: Side(A, given, time_us), B: Side(B, own, time_us)}
        self.messages: list[int] = []
        """Bytes of each."""
        self.writes: list[int] = []
        self.sent = {A: 0, B: 0}
        self.parts = self.chunks = 0
        self.state_bytes = 0
        """Of the parts of states that were sent."""
        self._todo: list[tuple[MemberId, ReplicaEvent]] = []

    @property
    def joiner(self) -> Replica:
        return self.sides[B].replica

    @property
    def is_done(self) -> bool:
        """Whether the joiner has all that the other has."""
        is_level = self.joiner.state.applied == self.sides[A].replica.ring.log.received
        return is_level and self.joiner.transfer.is_complete and not self._todo

    def run(self, chunks: int = 0, until: Callable[[], bool] | None = None) -> None:
        """Until it is complete, or has fetched so many chunks; or until something else is so."""
        is_over = until or (lambda: self.chunks >= chunks)
        for me in (A, B):
            self._step(me, ViewInstalled(self.view))
            self._step(me, Defined(Definition(ha_sync_batch_size=BATCH)))
        for _ in range(100_000):
            if is_over() or self.is_done:
                return
            if not self._todo:
                self._wait()
            while self._todo and not is_over():
                self._step(*self._todo.pop(0))
        raise AssertionError("it does not come to its end")

    def break_off(self, dies: MemberId) -> None:
        """One of both dies, with what was on its way, and begins again with what its disk has; to
        the donor's more was put meanwhile, and more acked."""
        files = self.sides[dies].files
        if dies == A:
            away(files, 5)
        self.sides[dies] = Side(dies, files, self.sides[dies].time_us)
        self._todo = [
            (me, event)
            for me, event in self._todo
            if me != dies and not isinstance(event, RingReceived)
        ]
        self.view = view(self.view.epoch + 1, "a", "b", master_epoch=self.view.epoch + 1)

    def _wait(self) -> None:
        wakes = [side.wake_at_ms for side in self.sides.values() if side.wake_at_ms is not None]
        self.now_ms = max(min(wakes), self.now_ms)
        self._todo += [(me, Tick()) for me in self.sides]

    def _step(self, me: MemberId, event: ReplicaEvent) -> None:
        effects = self.sides[me].step(self.now_ms, event)
        for to, message in effects.send:
            self._send(me, to, message)
        for to, fetch in effects.reads:
            self.chunks += 1
            self._send(me, to, chunk_for(fetch, self._dense))
        if effects.write is not None:
            self.writes.append(size_of_write(effects.write))
            self._todo.append((me, Persisted(effects.write_number)))

    def _send(self, me: MemberId, to: MemberId, message: RingMessage) -> None:
        size = size_of(message)
        if isinstance(message, TransferState):
            self.parts += 1
            self.state_bytes += size
        self.messages.append(size)
        self.sent[me] += size
        self._todo.append((to, RingReceived(me, message)))


def chunk_for(fetch: FetchFrames, dense: int) -> FrameChunk:
    """What a donor reads of its disk: every odd sequence lives, and each from `dense` on."""
    there = range(fetch.after_sequence + 1, fetch.upto_sequence + 1)
    entries = [sized(publish(1, n)) for n in there if n % 2 or n >= dense]
    entries = entries[: max(fetch.bytes_max // BODY_BYTES, 1)]
    upto = entries[-1].header.last_sequence if entries else fetch.upto_sequence
    where = (QUEUE, fetch.epoch, fetch.number, fetch.after_sequence)
    return FrameChunk(*where, upto, tuple(entries))


def sized(entry: Entry) -> Entry:
    return replace(entry, frame=bytes(BODY_BYTES))


def size_of(message: RingMessage) -> int:
    """Bytes on the wire, about."""
    match message:
        case TransferState():
            return 50 + len(message.state)
        case TransferRequest():
            return 50 + 32 * len(message.known)
        case FrameChunk() | Data():
            return 50 + sum(len(entry.frame) for entry in message.entries)
        case _:
            return 50


def size_of_write(write: QueueWrite) -> int:
    size = sum(len(page.data or b"") + 25 for page in write.pages)
    size += sum(len(entry.frame) for entry in (*write.append, *write.fetched))
    return size + len(write.state or b"") + 16 * (len(write.release) + len(write.lacking or ()))


def deep(count: int) -> tuple[QueueFiles, int]:
    """A disk with so many messages, none beside another, all different, in pages."""
    data, lsn, time_us = files_of(count)
    state, made, files = QueueState.decode(data), checkpoints.Checkpoints(), QueueFiles()
    assert made.begin_checkpoint(state)
    while made.is_busy:
        found, one = made.part(state)
        head = (one.head, one.lsn) if one else (None, 0)
        files.apply(QueueWrite(QUEUE, pages=tuple(found), state=head[0], state_lsn=head[1]))
    files.stable = lsn
    return files, time_us


@pytest.mark.parametrize("begins", ["empty", "with all of it but one"])
def test_steps_and_messages_of_a_join_are_the_same(begins: str) -> None:
    """Of a queue that is ten times as deep: the longest step of each of both members, the
    largest message, the largest write."""
    found = []
    for count in (FEW, MANY):
        given, time_us = deep(count)
        own = QueueFiles() if begins == "empty" else away(given, 1)[0]
        join = Join(given, own, time_us)
        join.run(chunks=12)
        assert join.parts > 1
        assert join.joiner.ring.has_state
        longest = {
            MEMBERS[me]: max(n for kind, n in side.steps.items() if (me, kind) not in OF_THE_TERM)
            for me, side in join.sides.items()
        }
        found.append({**longest, "message": max(join.messages), "write": max(join.writes)})
    few, many = found
    for what, size in few.items():
        assert many[what] < GROWTH_MAX * max(size, SMALL), (what, size, many[what])


def away(given: QueueFiles, count: int) -> tuple[QueueFiles, int]:
    """A copy of this disk from before so many more messages were put, and as many acked; these
    are on `given` now. What of messages is missing, in bytes."""
    own = QueueFiles(state=given.state, state_lsn=given.state_lsn, pages=dict(given.pages))
    own.stable = given.stable
    image = given.image(QUEUE)
    state, made = QueueState.of_image(image), checkpoints.Checkpoints()
    for _ in range(count):
        state.apply(sized(publish(state.applied + 1, state.next_sequence)))
        first = state.live.first
        state.apply(op(state.applied + 1, AckOp(((first, first),))))
    assert made.begin_checkpoint(state)
    while made.is_busy:
        found, one = made.part(state)
        head = (one.head, one.lsn) if one else (None, 0)
        given.apply(QueueWrite(QUEUE, pages=tuple(found), state=head[0], state_lsn=head[1]))
    given.stable = state.applied
    return own, count * BODY_BYTES


def test_who_comes_back_is_sent_what_it_lacks() -> None:
    """After 1,000 puts into a deep queue, and as many acks at its front: the frames, the pages that
    differ and digests are less than twice the bytes of the frames. The joiner has what is there."""
    given, time_us = deep(10_000)
    own, missing = away(given, 1000)
    join = Join(given, own, time_us)
    join.run(chunks=100)
    assert join.chunks < 100
    told = join.sides[A].replica.state
    assert join.joiner.state.encode() == told.encode()
    assert missing < join.sent[A] < 2 * missing
    assert join.sent[B] < missing


BREAKS = 6
"""Times that a transfer is broken off before it comes to its end."""


@pytest.mark.parametrize("dies", [A, B])
def test_a_transfer_that_breaks_off_goes_on(dies: MemberId) -> None:
    """Time and again the donor dies and is another one, for which the queue has gone on; or the
    joiner dies. What has come of the state is not sent again (from the start at each break it would
    be almost twice the state), and nothing of what never was whole is left on the disk."""
    given, time_us = deep(25_000)
    whole = Join(copied(given), QueueFiles(), time_us)
    whole.run(until=lambda: whole.joiner.state.applied > 0)
    join = Join(copied(given), QueueFiles(), time_us)
    for _ in range(BREAKS):
        upto = join.state_bytes + whole.state_bytes // (BREAKS + 2)
        join.run(until=lambda upto=upto: join.state_bytes >= upto)
        assert not join.joiner.state.applied
        join.break_off(dies)
    join.run(until=lambda: join.joiner.state.applied > 0)
    assert join.joiner.state.encode() == join.sides[A].replica.state.encode()
    assert whole.state_bytes < join.state_bytes < 1.5 * whole.state_bytes
    files = join.sides[B].files
    join.run(until=lambda: files.state is not None and not files.image(QUEUE).stale)
    assert not files.image(QUEUE).stale


def copied(files: QueueFiles) -> QueueFiles:
    return evolve(files, ops=dict(files.ops), frames=dict(files.frames), pages=dict(files.pages))
