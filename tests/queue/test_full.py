"""put on a queue with a limit: who waits, who is refused, and what the caller is told."""

from __future__ import annotations

import threading

import pytest
from fake_host import FakeHost, wait_until

from mirrorq.errors import AckRefused, ConfigError, Full, NotConfirmed, QueueDown, ShutDown

pytestmark = pytest.mark.real


def test_put_waits_on_a_full_queue() -> None:
    """As on queue.Queue(maxsize=3): without a look at any confirmation."""
    with FakeHost() as host:
        host.define(max_length=3, overflow="block")
        with host.queue() as queue:
            confirmations = [queue.put(b"%d" % number, timeout=10) for number in range(3)]
            assert queue.full()
            with pytest.raises(Full, match=r"no room|full"):
                queue.put(b"x", timeout=0.05)
            with pytest.raises(Full):
                queue.put_nowait(b"x")
            assert [c.result(10) for c in confirmations] == [1, 2, 3]
            with pytest.raises(Full, match=r"max-length|no room"):
                queue.put_many([b"x"], timeout=0)
            message = queue.get(timeout=10)
            assert queue.put(b"y", timeout=10).result(10) == 4
            message.ack().result(10)
            assert queue.full()
            assert host.live == 3


def test_a_waiting_put_goes_on_when_there_is_room() -> None:
    """And status says meanwhile why it waits."""
    with FakeHost() as host:
        host.define(max_length=1)
        with host.queue() as queue, host.queue() as other:
            queue.put(b"1").result(10)
            found: list[int | range] = []

            def put() -> None:
                found.append(queue.put(b"2", timeout=60).result(60))

            thread = threading.Thread(target=put)
            thread.start()
            wait_until(lambda: "max-length 1" in queue.status().blocked_by, "the reason")
            other.get(timeout=10).ack().result(10)
            thread.join(60)
            assert found == [2]
            assert queue.status().blocked_by == ""


def test_another_handle_fills_the_queue() -> None:
    """A handle that has put nothing yet, or long ago, knows too."""
    with FakeHost() as host:
        host.define(max_length=4)
        with host.queue() as one, host.queue() as two:
            assert not two.full()
            one.put_many([b"x"] * 4).result(10)
            wait_until(two.full, "two knows")
            with pytest.raises(Full):
                two.put_nowait(b"y")
            one.get(timeout=10)
            wait_until(lambda: not two.full(), "two knows that there is room")


def test_bytes_count_bodies_only() -> None:
    """Headers do not; a body larger than the limit is refused, not waited for."""
    with FakeHost() as host:
        host.define(max_length_bytes=10)
        with host.queue() as queue:
            queue.put(b"12345", headers={"long": "x" * 100}, timeout=10)
            with pytest.raises(Full):
                queue.put(b"123456", timeout=0.05)
            queue.put(b"12345", timeout=10).result(10)
            refused = queue.put(b"x" * 11, timeout=10)
            assert isinstance(refused.exception(10), NotConfirmed)
            assert "never fit" in str(refused.exception(10))


def test_a_batch_that_never_fits_is_refused_whole() -> None:
    """put_many is all or none."""
    with FakeHost() as host:
        host.define(max_length=3)
        with host.queue() as queue:
            error = queue.put_many([b"x"] * 4, timeout=10).exception(10)
            assert isinstance(error, NotConfirmed)
            assert error.refused == (range(4),)
            assert queue.put_many([b"x"] * 3, timeout=10).result(10) == range(1, 4)


def test_reject_publish_ends_the_confirmation() -> None:
    """put does not wait; the message is not stored, and the caller is told so."""
    with FakeHost() as host:
        host.define(max_length=2, overflow="reject-publish")
        with host.queue() as queue:
            ends = [queue.put(b"%d" % number, timeout=10) for number in range(4)]
            errors = [end.exception(10) for end in ends]
            assert errors[:2] == [None, None]
            assert all(isinstance(error, NotConfirmed) for error in errors[2:])
            assert [message.body for message in queue.browse()] == [b"0", b"1"]


def test_drop_head_keeps_the_newest() -> None:
    """put does not wait; the oldest go."""
    with FakeHost() as host:
        host.define(max_length=2, overflow="drop-head")
        with host.queue() as queue:
            ends = [queue.put(b"%d" % number, timeout=10) for number in range(5)]
            assert [end.result(10) for end in ends] == [1, 2, 3, 4, 5]
            wait_until(lambda: host.live == 2)
            assert [message.body for message in queue.browse()] == [b"3", b"4"]


def test_a_policy_comes_and_goes_under_a_handle() -> None:
    """Who waited goes on when the limit is lifted."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"x"] * 5).result(10)
        host.define(max_length=2)
        wait_until(queue.full, "the limit holds")
        with pytest.raises(Full):
            queue.put(b"y", timeout=0.05)
        host.define()
        assert queue.put(b"y", timeout=30).result(10) == 6


def test_a_full_queue_fails_over() -> None:
    """What waited at the old master waits at the new one, and is stored once."""
    with FakeHost() as host:
        host.define(max_length=3)
        with host.queue() as queue, host.queue() as other:
            waiting = [handle.put(b"x", timeout=10) for _ in range(2) for handle in (queue, other)]
            wait_until(lambda: sum(one.done() for one in waiting) == 3)
            host.fail_over()
            wait_until(queue.full)
            messages = [other.get(timeout=10) for _ in range(3)]
            other.ack_many(messages).result(10)
            assert sorted(one.result(10) for one in waiting) == [1, 2, 3, 4]  # type: ignore[type-var]
            assert host.live == 1


def test_close_wakes_who_waits_for_room() -> None:
    """A put on a full queue does not outlive its handle; a queue without a master says so."""
    with FakeHost() as host:
        host.define(max_length=1)
        with host.queue() as queue:
            queue.put(b"x", timeout=10).result(10)
            host.down()
            with pytest.raises(QueueDown):
                queue.put(b"y", timeout=0.05)
            errors: list[BaseException] = []

            def put() -> None:
                try:
                    queue.put(b"y")
                except ShutDown as error:
                    errors.append(error)

            thread = threading.Thread(target=put)
            thread.start()
            wait_until(lambda: bool(queue.status().blocked_by), "it waits")
            queue.close()
            thread.join(20)
            assert len(errors) == 1


def test_a_message_with_a_ttl_ends() -> None:
    """Seconds, as every other time in Python; 0 ends at once. Who holds it keeps it."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"held", ttl=60).result(10)
        held = queue.get(timeout=10)
        queue.put(b"for ever").result(10)
        queue.put(b"gone", ttl=0).result(10)
        queue.put_many([b"soon", b"soon"], ttl=0.01).result(10)
        assert queue.get(timeout=10).body == b"for ever"
        host.pass_time(61)
        wait_until(lambda: host.live == 2, "the others end")
        held.ack().result(10)


@pytest.mark.parametrize("ttl", [-1, float("nan"), "1", True])
def test_a_ttl_that_is_none(ttl: object) -> None:
    """Refused before anything is put."""
    with FakeHost() as host, host.queue() as queue:
        with pytest.raises(ConfigError, match="ttl"):
            queue.put(b"x", ttl=ttl)  # type: ignore[arg-type]
        queue.put(b"y").result(10)
        assert host.live == 1


def test_nack_without_requeue_ends_the_message() -> None:
    """It is not delivered again, and a second settlement of it is refused."""
    with FakeHost() as host, host.queue() as queue:
        queue.put_many([b"bad", b"good"]).result(10)
        bad = queue.get(timeout=10)
        bad.nack(requeue=False).result(10)
        assert isinstance(bad.ack().exception(10), AckRefused)
        assert queue.get(timeout=10).body == b"good"
        assert host.live == 1
