"""What ends, comes back or is looked at by the ten thousand does so by portions.

A queue of messages none of which stands beside another, each of another size and millisecond: as
many pieces as messages. The longest step of each thing is the same for 10^3 and 10^4 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from msgspec.structs import replace

from core.entries import CODEC, QUEUE, A, view
from core.test_master import ONE, Queue
from mirrorq.config import Config
from mirrorq.containers.ranges import Range
from mirrorq.protocol.effects import Persisted
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import (
    AckRange,
    Browse,
    Browsed,
    Confirmed,
    Credit,
    Publish,
    Purge,
    Purged,
    Settle,
    Subscribe,
)
from mirrorq.protocol.views import Member, View
from mirrorq.replication.events import (
    Defined,
    SessionGone,
    Tick,
    ViewInstalled,
)
from mirrorq.replication.master.courier import NoTargets
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.replication.state.producer import Producer
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing.disk import QueueFiles

from .work import Work, work_of

FEW, MANY = 1_000, 10_000
GROWTH_MAX = 2.0
STEPS = 8
"""Of the many steps that many messages take, the first ones are counted: in them all of the work
would be done that does not go by portions."""
BEGAN_MS = 1_700_000_000_000
SCATTERED = 200
"""Acks of one op."""
HOUR_US = 3_600_000_000


@cache
def files_of(count: int) -> tuple[bytes, int, int]:
    """So many messages with as many that ended between them: (checkpoint, its lsn, its time)."""
    state = QueueState()
    for number in range(count):
        first, last = 2 * number, 2 * number + 1
        state.live.add(last, last)
        state.columns.append(first, last, 1 + number * 31 % 59, BEGAN_MS + number, 0)
    state.next_sequence = 2 * count
    state.applied = state.horizon = count
    state.history = [(1, count)]
    state.time_us = (BEGAN_MS + count) * 1000
    return state.encode(), state.applied, state.time_us


class Elsewhere(NoTargets):
    """Another queue, which nobody serves just now."""

    def find(self, name: str) -> int:
        return QUEUE + 1


class Deep:
    """A master of such a queue, each of whose steps is counted."""

    def __init__(self, count: int) -> None:
        data, lsn, time_us = files_of(count)
        files = QueueFiles(state=data, state_lsn=lsn, stable=lsn)
        self.queue = Queue(files, epoch=2, wall_us=time_us, targets=Elsewhere())
        self.queue.sync()
        self.queue.attach(ONE)
        self.queue.sync()
        self.queue.heard()
        self.producer = self.queue.open_producer()

    @property
    def state(self) -> QueueState:
        return self.queue.replica.state

    def publication(self, number: int) -> Publish:
        return Publish(CODEC.frame(self.producer, number, 1, 0), False)

    def go_on(self) -> Iterator[None]:
        """Steps, until there is nothing to do at once."""
        queue = self.queue
        while True:
            if queue._writes:
                queue.sync_one()
            elif queue.wake_at_ms is not None and queue.wake_at_ms <= queue.now_ms + 1:
                queue.now_ms += 1
                queue.step(Tick())
            else:
                return
            yield

    def finish(self) -> None:
        for _ in self.go_on():
            pass


def purge(deep: Deep) -> None:
    deep.queue.ask(ONE, Purge(1))


def claim(deep: Deep) -> None:
    deep.queue.ask(ONE, Subscribe(1, 1, exclusive=True, bare=True))


def ack_range(deep: Deep) -> None:
    deep.queue.ask(ONE, AckRange(1, 1, 1, deep.state.next_sequence))


def hold(deep: Deep) -> None:
    """A lease of all."""
    deep.queue.ask(ONE, Subscribe(1, 1, bare=True))
    deep.queue.ask(ONE, Credit(1, deep.state.live.count))
    deep.finish()
    assert deep.queue.replica.master.dispatch.open.unacknowledged == deep.state.live.count


def lose_holder(deep: Deep) -> None:
    deep.queue.step(SessionGone(ONE))


def expire(deep: Deep) -> None:
    deep.queue.wall_us += HOUR_US
    deep.queue.step(Defined(Definition(message_ttl=1)))


def limit_bytes(deep: Deep) -> None:
    """A limit by bytes counts what is ready once in a term, by portions; a put waits for it."""
    deep.queue.step(Defined(Definition(max_length_bytes=1 << 40, overflow="drop-head")))
    deep.queue.publish(deep.producer, 1)


def count_bytes(deep: Deep) -> None:
    limit_bytes(deep)
    deep.finish()
    master = deep.queue.replica.master
    assert not master.length_limit.is_counting
    size = sum(deep.state.columns.total(*piece) for piece in deep.state.live)
    assert master.dispatch.ready.size == size
    assert [one.runs for one in deep.queue.heard() if isinstance(one, Confirmed)]


def put_over_the_limit(deep: Deep) -> None:
    """A limit has become lower, and a put comes before what is too much has gone."""
    lowered = Defined(Definition(max_length=1, overflow="drop-head"))
    deep.queue.step(lowered, deep.queue.request(ONE, deep.publication(1)))


def dead_letters(deep: Deep) -> None:
    """All that is ready expires, and is to go to another queue."""
    deep.queue.wall_us += HOUR_US
    deep.queue.step(Defined(Definition(message_ttl=1, dead_letter_queue="other")))


def drop_head(deep: Deep) -> None:
    deep.queue.step(Defined(Definition(max_length_bytes=1, overflow="drop-head")))


def browse(deep: Deep) -> None:
    deep.queue.ask(ONE, Browse(1, deep.state.next_sequence // 2, 100))


def checkpoint(deep: Deep) -> None:
    """What has changed is on the disk, as pages."""
    queue = deep.queue
    queue.now_ms += 120_000
    queue.step(Tick())
    deep.finish()
    assert not deep.state.snapshots


def held_while_written(deep: Deep) -> None:
    """All is held, and a checkpoint of all has begun: its first part is on the way to the disk."""
    hold(deep)
    deep.queue.now_ms += 120_000
    deep.queue.step(Tick())


def ack_here_and_there(deep: Deep) -> None:
    """Of a deep queue each ack is in another page, which is still to be written."""
    held = deep.queue.pieces()
    chosen = held[:: len(held) // SCATTERED][:SCATTERED]
    pieces = tuple(replace(piece, last=piece.first) for piece in chosen)
    deep.queue.ask(ONE, Settle(1, "ack", pieces))


def put(deep: Deep) -> None:
    deep.queue.publish(deep.producer, 1)
    deep.queue.sync()


def next_checkpoint(deep: Deep) -> None:
    """One more message has come, and is written."""
    deep.queue.now_ms += 120_000
    deep.queue.step(Tick())


def put_after_checkpoint(deep: Deep) -> None:
    checkpoint(deep)
    put(deep)


def take(deep: Deep) -> None:
    """A message is handed out and acked."""
    deep.queue.ask(ONE, Subscribe(1, 1))
    deep.queue.ask(ONE, Credit(1, 1))
    deep.queue.sync()
    (piece,) = deep.queue.pieces()
    deep.queue.ask(ONE, Settle(1, "ack", (piece,)))
    deep.queue.sync()


def nothing(deep: Deep) -> None:
    """No preparation."""


Act = Callable[[Deep], None]


def longest(deep: Deep, prepare: Act, act: Act) -> int:
    """Bytecodes of the longest of the first steps."""
    prepare(deep)
    found = [work_of(lambda: act(deep)).count]
    steps = deep.go_on()
    for _ in range(STEPS):
        found.append(work_of(lambda: next(steps, None)).count)
    return max(found)


@pytest.mark.parametrize(
    ("prepare", "act"),
    [
        (nothing, purge),
        pytest.param(claim, ack_range, marks=pytest.mark.slow),
        pytest.param(hold, lose_holder, marks=pytest.mark.slow),
        pytest.param(nothing, expire, marks=pytest.mark.slow),
        pytest.param(nothing, dead_letters, marks=pytest.mark.slow),
        pytest.param(nothing, limit_bytes, marks=pytest.mark.slow),
        pytest.param(nothing, put_over_the_limit, marks=pytest.mark.slow),
        pytest.param(count_bytes, drop_head, marks=pytest.mark.slow),
        (nothing, browse),
        (checkpoint, put),
        (checkpoint, take),
        (put_after_checkpoint, next_checkpoint),
        (held_while_written, ack_here_and_there),
    ],
)
def test_the_longest_step_is_the_same(prepare: Act, act: Act) -> None:
    """Of ten times as many messages."""
    few, many = (longest(Deep(count), prepare, act) for count in (FEW, MANY))
    assert many < GROWTH_MAX * few


@pytest.mark.parametrize(
    ("prepare", "act", "left"),
    [
        (nothing, purge, 0),
        (claim, ack_range, 0),
        (hold, lose_holder, 3000),
        (nothing, expire, 0),
        (nothing, dead_letters, 0),
        (nothing, limit_bytes, 3001),
        (nothing, put_over_the_limit, 1),
        (nothing, drop_head, 0),
    ],
)
def test_portions_come_to_an_end(prepare: Act, act: Act, left: int) -> None:
    """Of several: all of it is done, once, and is told when it is done."""
    deep = Deep(3000)
    prepare(deep)
    act(deep)
    deep.finish()
    master = deep.queue.replica.master
    assert deep.state.live.count == left
    assert master.dispatch.ready.count == left
    assert master.dispatch.open.unacknowledged == 0
    assert deep.state.outbox.kept.count == (3000 if act is dead_letters else 0)
    assert deep.state.returned.count == (3000 if act is lose_holder else 0)
    told = [reply for reply in deep.queue.heard() if isinstance(reply, Purged)]
    assert [one.count for one in told] == ([3000] if act in (purge, ack_range) else [])


def test_browse_goes_on_from_page_to_page() -> None:
    """What one answer leaves out, the next one has."""
    deep = Deep(3000)
    found: list[int] = []
    start = 1
    while True:
        deep.queue.ask(ONE, Browse(1, start, 2500))
        (answer,) = (reply for reply in deep.queue.heard() if isinstance(reply, Browsed))
        if not answer.ranges:
            break
        found += [n for first, last, _ in answer.ranges for n in range(first, last + 1)]
        start = found[-1] + 1
    assert found == list(range(1, 6000, 2))


def promoted_uncleanly(count: int) -> tuple[Replica, Work]:
    """A member is master that lacks the bodies of two thirds of all messages; and what the op took
    that says so."""
    data, lsn, time_us = files_of(count)
    files = QueueFiles(state=data, state_lsn=lsn, stable=lsn, lacking=stretches_of(count))
    lease = Lease(until_ms=1 << 60)
    replica = Replica(A, QUEUE, Config(), CODEC, files.image(QUEUE), lease)
    view = View(2, (Member(A, True),), "unclean", 2, generation=1)
    effects = replica.step(1000, time_us, ViewInstalled(view))
    state, entry = QueueState.decode(data), replica.ring.log.entries[-1]
    applied = work_of(lambda: state.apply(entry))
    while effects.write is not None:
        effects = replica.step(1000, time_us, Persisted(effects.write_number))
    return replica, applied


def stretches_of(count: int) -> tuple[Range, ...]:
    return (1, count), (count + 10, 4 * count // 3)


def test_an_unclean_promotion_says_what_is_lost_in_few_words() -> None:
    """However many pieces it is in: the op names the stretches, and ends each in one go, which
    takes less than a line a message."""
    for count in (3 * FEW, MANY):
        replica, applied = promoted_uncleanly(count)
        assert applied.count < max(replica.state.lost, 10_000)
        odd = [(last + 1) // 2 - first // 2 for first, last in stretches_of(count)]
        assert replica.state.lost == sum(odd)
        assert replica.state.live.count == count - replica.state.lost
        assert not replica.transfer.missing
        assert replica.is_serving


def test_a_term_begins_alike_however_many_producers_there_are() -> None:
    """What is known of them is looked up, and not copied."""
    found = []
    for count in (FEW, MANY):
        state = QueueState()
        state.applied = state.generation = 1
        state.history = [(1, 1)]
        for number in range(1, count + 1):
            state.producers.add(number, Producer(highest=3))
        files = QueueFiles(state=state.encode(), state_lsn=1, stable=1)
        lease = Lease(until_ms=1 << 60)
        replica = Replica(A, QUEUE, Config(), CODEC, files.image(QUEUE), lease)
        begins = ViewInstalled(view(2, "a", master_epoch=2))
        found.append(work_of(lambda: replica.step(1000, 0, begins)).count)  # noqa: B023
        assert replica.master is not None
        assert replica.master.log.highest.get(count) == 3
        assert replica.master.log.highest.get(count + 1) is None
    assert found[1] < GROWTH_MAX * found[0]


def test_a_term_begins_alike_however_many_messages_stand_apart() -> None:
    """What is ready of them shares what is known of them until either changes."""
    found = []
    for count in (FEW, MANY):
        data, lsn, _ = files_of(count)
        files = QueueFiles(state=data, state_lsn=lsn, stable=lsn)
        image, lease = files.image(QUEUE), Lease(until_ms=1 << 60)
        replica = Replica(A, QUEUE, Config(), CODEC, image, lease)
        begins = ViewInstalled(view(2, "a", master_epoch=2))
        found.append(work_of(lambda: replica.step(1000, 0, begins)))  # noqa: B023
        assert replica.master is not None
        ready = replica.master.dispatch.ready.levels
        assert ready.count == count
        ready.level(0).remove(1, 1)
        assert replica.state.live.count == count
    few, many = found
    assert many.count < GROWTH_MAX * few.count, many.growth_text(few)


def test_damage_is_noted_alike_however_much_is_known_of() -> None:
    """What is missing already is looked up, and not walked."""
    found = []
    for count in (FEW, MANY):
        data, lsn, _ = files_of(2 * count)
        files = QueueFiles(state=data, state_lsn=lsn, stable=lsn, lacking=((1, 2 * count),))
        image, lease = files.image(QUEUE), Lease(until_ms=1 << 60)
        transfer = Replica(A, QUEUE, Config(), CODEC, image, lease).transfer
        assert len(transfer.missing) == count
        damaged = (2 * count - 1, 2 * count + 1)
        pieces = [(number, number) for number in damaged]
        found.append(work_of(lambda: transfer.on_damage(1000, pieces)).count)  # noqa: B023
        assert len(transfer.missing) == count + 1
        assert list(transfer.damaged) == [(damaged[1], damaged[1])]
    assert found[1] < GROWTH_MAX * found[0]
