"""Delays as users see them: put(delay=…), nack(delay=…), and what counts a delayed message."""

from __future__ import annotations

from typing import Any

import pytest
from fake_host import FakeHost, wait_until

import mirrorq
from mirrorq.api.consumer import PAUSE_FIRST_S, PAUSE_MAX_S, pause_s
from mirrorq.errors import ConfigError, Empty

pytestmark = pytest.mark.real

LONG_S = 3600
MINUTE_S = 60
"""Less than a message may be held for."""
SHORT_S = 0.05


def test_a_delayed_message_comes_when_it_is_due() -> None:
    """Confirmed at once, ready later; it then stands behind what is ready."""
    with FakeHost() as host, host.queue() as queue:
        assert queue.put(b"later", delay=LONG_S).result(10) == 1
        queue.put(b"now").result(10)
        host.pass_time(LONG_S)
        wait_until(lambda: queue.qsize() == 2)
        assert [queue.get(timeout=10).body for _ in range(2)] == [b"now", b"later"]


def test_a_message_that_is_not_due_is_not_ready() -> None:
    """It is in the queue, counted as delayed, and browse shows it."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"later", delay=LONG_S).result(10)
        counts = queue._handle.counts()
        assert (counts.ready, counts.unacknowledged, counts.delayed) == (0, 0, 1)
        assert queue.empty()
        assert [message.body for message in queue.browse()] == [b"later"]
        with pytest.raises(Empty):
            queue.get(block=False)
        assert queue.get_many(5, timeout=0.01) == []


def test_delays_end_in_the_order_of_their_times_each_in_its_level() -> None:
    """The priority of a delayed message counts when it is due."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"2", b"3"], delay=2 * LONG_S)
        queue.put(b"1", delay=LONG_S)
        queue.put(b"0", delay=3 * LONG_S, priority=1)
        queue.wait_for_confirms(10)
        for ready in (1, 3, 4):
            assert queue.qsize() < ready
            host.pass_time(LONG_S)
            wait_until(lambda ready=ready: queue.qsize() == ready)
        assert [queue.get(timeout=10).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_a_delay_goes_on_over_a_failover() -> None:
    """The next master ends it; what is due meanwhile is late, not lost."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"soon", delay=SHORT_S).result(10)
        queue.put(b"never", delay=LONG_S).result(10)
        host.fail_over()
        message = queue.get(timeout=20)
        assert (message.body, message.redelivered) == (b"soon", False)
        assert queue._handle.counts().delayed == 1


def test_a_nack_with_a_delay_comes_again_at_its_place() -> None:
    """Others are served meanwhile; then it comes before what is behind it, counted."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"a", b"b", b"c"]).result(10)
        first = queue.get(timeout=10)
        assert first.nack(delay=MINUTE_S).result(10) is None
        other = queue.get(timeout=10)
        assert other.body == b"b"
        host.pass_time(MINUTE_S)
        wait_until(lambda: queue._handle.counts().delayed == 0)
        other.nack().result(10)
        again = [queue.get(timeout=10) for _ in range(3)]
        assert [(m.body, m.delivery_count) for m in again] == [(b"a", 2), (b"b", 2), (b"c", 1)]


def test_a_delayed_retry_goes_on_over_a_failover() -> None:
    """It rests on the next master too, until its time."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"a", b"b"]).result(10)
        queue.get(timeout=10).nack(delay=LONG_S).result(10)
        host.fail_over()
        assert queue.get(timeout=20).body == b"b"
        counts = queue._handle.counts()
        assert (counts.ready, counts.unacknowledged, counts.delayed) == (0, 1, 1)


def test_purge_ends_delayed_messages_too() -> None:
    """Published or given back with a delay; what is held stays."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"a", b"b", b"c"]).result(10)
        queue.put(b"d", delay=LONG_S).result(10)
        queue.get(timeout=10).nack(delay=LONG_S).result(10)
        held = queue.get(timeout=10)
        assert queue.purge() == 3
        assert [message.sequence for message in queue.browse()] == [held.sequence]
        held.ack().result(10)
        assert host.live == 0


def test_join_waits_for_delayed_messages() -> None:
    """as_queue().join() is for an empty queue, and a delayed message is in it."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"later", delay=SHORT_S).result(10)
        adapter = queue.as_queue()
        assert adapter.unfinished_tasks == 1
        assert adapter.get(timeout=20) == b"later"
        adapter.task_done()
        adapter.join()


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), "1", True, 1e12])
def test_a_bad_delay_sends_nothing(delay: Any) -> None:
    """Refused with the value before anything is sent, by put, put_many and nack."""
    with FakeHost() as host, host.queue() as queue:
        with pytest.raises(ConfigError, match="delay is"):
            queue.put(b"a", delay=delay)
        with pytest.raises(ValueError, match="delay is"):
            queue.put_many([b"a"], delay=delay)
        assert queue.qsize() == 0
        queue.put(b"b").result(10)
        message = queue.get(timeout=10)
        with pytest.raises(ConfigError, match="delay is"):
            message.nack(delay=delay)
        message.ack().result(10)
        assert host.live == 0


def test_a_failing_callback_delays_its_own_message_only() -> None:
    """Others are served while it waits."""
    seen: list[tuple[bytes, int]] = []

    def work(message: mirrorq.Message) -> None:
        seen.append((message.body, message.delivery_count))
        if message.body == b"bad" and message.delivery_count < 3:
            raise RuntimeError("a user's mistake")
        message.ack()

    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"bad", b"good"]).result(10)
        consumer = queue.consume(work, prefetch=1)
        wait_until(lambda: host.live == 0)
        consumer.cancel()
        assert seen == [(b"bad", 1), (b"good", 1), (b"bad", 2), (b"bad", 3)]


def test_the_delay_of_a_failing_callback_grows_to_a_bound() -> None:
    """Doubled with each delivery."""
    assert [pause_s(count) for count in (1, 2, 3)] == [
        PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S,
    ]  # fmt: skip
    assert pause_s(10_000) == PAUSE_MAX_S


@pytest.mark.parametrize(("ttl", "comes"), [(SHORT_S, False), (LONG_S, True)])
def test_a_ttl_runs_from_the_put_on_through_the_delay(ttl: float, comes: bool) -> None:
    """What expires while it is delayed is never ready; what does not has the rest of its time."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"first", delay=2 * SHORT_S, ttl=ttl).result(10)
        queue.put(b"second", delay=3 * SHORT_S).result(10)
        bodies = [b"first", b"second"] if comes else [b"second"]
        assert [queue.get(timeout=10).body for _ in bodies] == bodies
        counts = queue._handle.counts()
        assert (counts.ready, counts.delayed) == (0, 0)
