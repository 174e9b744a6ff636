"""How long messages may be held: by their queue, and by themselves."""

from __future__ import annotations

from random import Random

import pytest

from mirrorq.config import Config
from mirrorq.errors import ConfigError
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import (
    ConsumerRefused,
    Credit,
    Delivery,
    Extend,
    Settle,
    Settled,
    Subscribe,
)
from mirrorq.replication.events import Defined, Tick
from mirrorq.replication.master.open_deliveries import CLEAR_COUNT

from .test_master import ONE, TWO, Queue

TIMEOUT_MS = 5000


def holding(count: int, consumer: int = 0, timeout_ms: int = TIMEOUT_MS) -> tuple[Queue, Delivery]:
    """A queue whose first session holds all its messages by one delivery."""
    queue = Queue(config=Config(consumer_timeout_ms=timeout_ms))
    queue.sync()
    queue.attach(ONE)
    queue.attach(TWO)
    producer = queue.open_producer()
    queue.publish(producer, 1, count)
    queue.ask(ONE, Subscribe(consumer, count))
    queue.ask(ONE, Credit(consumer, count))
    queue.sync()
    queue.heard(TWO)
    (held,) = queue.pieces()
    assert (held.first, held.last) == (1, count)
    return queue, held


def part(piece: Delivery, first: int, last: int) -> Delivery:
    return Delivery(piece.epoch, piece.number, first, last, piece.count)


def passes(queue: Queue, time_ms: int) -> None:
    """Time goes on, and the queue is woken when it wants to be."""
    until_ms = queue.now_ms + time_ms
    while queue.wake_at_ms is not None and queue.wake_at_ms <= until_ms:
        queue.now_ms = max(queue.now_ms, queue.wake_at_ms)
        queue.step(Tick())
        queue.sync()
    queue.now_ms = until_ms
    queue.step(Tick())
    queue.sync()


def ready(queue: Queue) -> list[int]:
    """Sequences that nobody holds."""
    assert queue.replica.master is not None
    dispatch = queue.replica.master.dispatch
    return [n for first, last in dispatch.ready.sequences() for n in range(first, last + 1)]


def test_what_is_extended_stays_and_the_rest_goes_back() -> None:
    """Of one delivery: each message has its own time, longer or shorter than the queue's."""
    queue, held = holding(5)
    queue.ask(ONE, Extend(1, (part(held, 2, 3),), 8000))
    queue.ask(ONE, Extend(2, (part(held, 5, 5),), 1000))
    assert queue.heard() == [Settled(1, ()), Settled(2, ())]
    passes(queue, 999)
    assert ready(queue) == []
    passes(queue, 1)
    assert ready(queue) == [5]
    passes(queue, 3999)
    assert ready(queue) == [5]
    passes(queue, 2)
    assert ready(queue) == [1, 4, 5]
    queue.ask(ONE, Settle(3, "ack", (part(held, 2, 2),)))
    queue.sync()
    assert queue.heard() == [Settled(3, ())]
    passes(queue, 3000)
    assert ready(queue) == [1, 3, 4, 5]


def test_late_acks_of_what_went_back_are_refused() -> None:
    """By the number that their holder knows, also when somebody else has acked since."""
    queue, held = holding(2)
    queue.ask(ONE, Extend(1, (part(held, 1, 1),), 0))
    passes(queue, TIMEOUT_MS + 1)
    queue.consume(TWO)
    (again,) = queue.pieces(TWO)
    assert (again.first, again.last, again.count) == (2, 2, 2)
    queue.ask(TWO, Settle(1, "ack", (again,)))
    queue.sync()
    queue.heard()
    queue.ask(ONE, Settle(2, "ack", (held,)))
    queue.sync()
    (settled,) = queue.heard()
    assert isinstance(settled, Settled)
    assert settled.refused == (part(held, 2, 2),)


def test_extended_again_and_again() -> None:
    """The last word counts; what stood before takes no place."""
    queue, held = holding(1)
    for number in range(20 * CLEAR_COUNT):
        queue.ask(ONE, Extend(number, (held,), 100_000 - number))
        queue.heard()
    assert queue.replica.master is not None
    assert len(queue.replica.master.dispatch.open._extensions._due) <= CLEAR_COUNT + 1
    queue.ask(ONE, Extend(1, (held,), 0))
    passes(queue, 1_000_000)
    assert ready(queue) == []
    queue.ask(ONE, Extend(1, (held,), 10))
    passes(queue, 10)
    assert ready(queue) == [1]


def test_only_who_holds_a_message_extends_it() -> None:
    """Another session, another delivery, one that was acked: refused, and nothing changes."""
    queue, held = holding(2)
    queue.ask(ONE, Settle(1, "ack", (part(held, 1, 1),)))
    queue.sync()
    queue.heard()
    wrong = [
        (TWO, part(held, 2, 2)),
        (ONE, part(held, 1, 1)),
        (ONE, Delivery(held.epoch, held.number + 1, 2, 2, 1)),
        (ONE, Delivery(held.epoch - 1, held.number, 2, 2, 1)),
        (ONE, Delivery(held.epoch, held.number, 2, 2, 2)),
    ]
    for session, piece in wrong:
        queue.ask(session, Extend(7, (piece,), 0))
        (settled,) = queue.heard(session)
        assert isinstance(settled, Settled)
        assert settled.refused == (piece,)
        assert settled.why
    passes(queue, TIMEOUT_MS + 1)
    assert ready(queue) == [2]


def test_what_waits_behind_an_extended_message_waits_as_well() -> None:
    """A consumer that says it lives is not taken to hang; when it says no more it is."""
    queue, held = holding(3, consumer=7)
    queue.ask(ONE, Extend(1, (part(held, 1, 1),), 3 * TIMEOUT_MS))
    queue.heard()
    passes(queue, 3 * TIMEOUT_MS - 1)
    assert ready(queue) == []
    passes(queue, 1)
    assert ready(queue) == [1]
    (refused,) = queue.heard()
    assert isinstance(refused, ConsumerRefused)
    assert "asked for" in refused.why
    passes(queue, TIMEOUT_MS)
    assert ready(queue) == [1, 2, 3]


def test_a_queue_has_its_own_time() -> None:
    """Of its policy, in place of the node's; it counts from the moment it is set; 0 is no end."""
    queue, _ = holding(1)
    queue.step(Defined(Definition(consumer_timeout=0)))
    passes(queue, 100 * TIMEOUT_MS)
    assert ready(queue) == []
    queue.step(Defined(Definition(consumer_timeout=1000)))
    passes(queue, 1)
    assert ready(queue) == [1]
    queue, _ = holding(1, consumer=3, timeout_ms=0)
    passes(queue, 100 * TIMEOUT_MS)
    assert ready(queue) == []
    queue.step(Defined(Definition(consumer_timeout=200 * TIMEOUT_MS)))
    passes(queue, 101 * TIMEOUT_MS)
    (refused,) = queue.heard()
    assert isinstance(refused, ConsumerRefused)
    assert "consumer-timeout" in refused.why


@pytest.mark.parametrize("seed", range(30))
def test_each_message_goes_back_in_its_time(seed: int) -> None:
    """Beside a model that has a moment for each message."""
    random = Random(seed)
    queue, held = holding(12)
    ends = dict.fromkeys(range(1, 13), queue.now_ms + TIMEOUT_MS + 1)
    back: set[int] = set()
    for number in range(60):
        if random.random() < 0.6:
            first = random.randint(1, 12)
            last = random.randint(first, min(first + 3, 12))
            duration_ms = random.choice((0, 500, 4000, 9000))
            queue.ask(ONE, Extend(number, (part(held, first, last),), duration_ms))
            (settled,) = queue.heard()
            assert isinstance(settled, Settled)
            refused = {n for p in settled.refused for n in range(p.first, p.last + 1)}
            assert refused == back & set(range(first, last + 1))
            for sequence in set(range(first, last + 1)) - back:
                ends[sequence] = queue.now_ms + duration_ms if duration_ms else 1 << 60
        passes(queue, random.choice((1, 300, 2500)))
        due = {sequence for sequence, end_ms in ends.items() if end_ms <= queue.now_ms}
        back |= due
        assert set(ready(queue)) == back


def test_the_time_of_a_node_is_off_with_0() -> None:
    assert Config(consumer_timeout_ms=0).consumer_timeout_ms == 0
    for wrong in (1, 999, -1, None):
        with pytest.raises(ConfigError, match="from 1000 up, or 0 for none"):
            Config(consumer_timeout_ms=wrong)  # type: ignore[arg-type]
