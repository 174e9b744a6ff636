"""Priorities as users see them: put(priority=…), and what get, consume, browse and purge do."""

from __future__ import annotations

from typing import Any

import pytest
from fake_host import FakeHost, wait_until

import mirrorq
from mirrorq.errors import ConfigError

pytestmark = pytest.mark.real


def put_all(queue: mirrorq.MirroredQueue, *messages: tuple[bytes, int]) -> None:
    for body, priority in messages:
        queue.put(body, priority=priority)
    queue.wait_for_confirms(10)


def drain(queue: mirrorq.MirroredQueue, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        with queue.get(timeout=10) as message:
            found.append(message.body)
    return found


def test_higher_priorities_come_first_each_in_order() -> None:
    """get() after all is confirmed: 31, then 5 in the order of puts, then 0."""
    with FakeHost() as host, host.queue() as queue:
        put_all(queue, (b"a", 0), (b"b", 5), (b"c", 31), (b"d", 5), (b"e", 0))
        assert queue.qsize() == 5
        assert drain(queue, 5) == [b"c", b"b", b"d", b"a", b"e"]
        assert queue.empty()


def test_many_messages_of_one_priority_are_one_put() -> None:
    """put_many takes a priority for all of them, and they are fetched together."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"low %d" % n for n in range(300)]).result(10)
        queue.put_many([b"high %d" % n for n in range(300)], priority=1).result(10)
        assert drain(queue, 600) == [
            *[b"high %d" % n for n in range(300)],
            *[b"low %d" % n for n in range(300)],
        ]


def test_a_nack_goes_back_to_its_place_in_its_level() -> None:
    """Before what is behind it in its priority, after all higher ones."""
    with FakeHost() as host, host.queue() as queue:
        put_all(queue, (b"1", 3), (b"2", 3), (b"0", 0))
        first = queue.get(timeout=10)
        assert first.body == b"1"
        put_all(queue, (b"urgent", 4))
        first.nack().result(10)
        assert drain(queue, 4) == [b"urgent", b"1", b"2", b"0"]


def test_priorities_survive_a_failover() -> None:
    """What was held comes again first, redelivered, and each level keeps its order."""
    with FakeHost() as host, host.queue() as queue:
        put_all(queue, (b"low", 0), (b"high", 9), (b"higher", 10), (b"low 2", 0))
        held = queue.get(timeout=10)
        assert (held.body, held.redelivered) == (b"higher", False)
        host.fail_over()
        again = [queue.get(timeout=10) for _ in range(4)]
        assert [m.body for m in again] == [b"higher", b"high", b"low", b"low 2"]
        assert (again[0].redelivered, again[0].delivery_count) == (True, 2)


def test_browse_shows_all_levels_in_order_of_sequence() -> None:
    """Browsing takes nothing and looks at the whole queue."""
    with FakeHost() as host, host.queue() as queue:
        put_all(queue, (b"a", 0), (b"b", 5), (b"c", 0))
        assert [(m.sequence, m.body) for m in queue.browse()] == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert queue.purge() == 3
        assert queue.browse() == []


def test_a_consumer_gets_higher_priorities_first() -> None:
    """With a prefetch of 1 nothing lower is ahead of them in a buffer."""
    with FakeHost() as host, host.queue() as queue:
        put_all(queue, *[(b"%d" % priority, priority) for priority in (0, 4, 2, 31, 2)])
        seen: list[bytes] = []
        consumer = queue.consume(
            lambda message: (seen.append(message.body), message.ack()), prefetch=1
        )
        wait_until(lambda: len(seen) == 5)
        consumer.cancel()
        assert seen == [b"31", b"4", b"2", b"2", b"0"]


@pytest.mark.parametrize("priority", [32, -1, "1", 2.5, True])
def test_a_bad_priority_sends_nothing(priority: Any) -> None:
    """Refused by put and put_many, with the value and the range, before anything is sent."""
    with FakeHost() as host, host.queue() as queue:
        with pytest.raises(ConfigError, match="from 0 to 31"):
            queue.put(b"a", priority=priority)
        with pytest.raises(ValueError, match="from 0 to 31"):
            queue.put_many([b"a"], priority=priority)
        assert queue.wait_for_confirms(10)
        assert queue.qsize() == 0
