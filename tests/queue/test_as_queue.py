"""as_queue(): what programs for queue.Queue rely on."""

from __future__ import annotations

import queue as standard
import threading

import pytest
from fake_host import FakeHost, wait_until

import mirrorq
from mirrorq.config import Config
from mirrorq.errors import Empty, Full, QueueDown, ShutDown


def test_bytes_in_bytes_out() -> None:
    """FIFO, sizes, and the standard library's exceptions."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        assert queue.empty()
        assert not queue.full()
        for body in (b"1", b"2", b"3"):
            queue.put(body)
        queue.put_nowait(b"4")
        wait_until(lambda: queue.qsize() == 4)
        assert [queue.get(), queue.get(timeout=10), queue.get_nowait(), queue.get(False)] == [
            b"1",
            b"2",
            b"3",
            b"4",
        ]
        with pytest.raises(standard.Empty):
            queue.get_nowait()
        with pytest.raises(standard.Empty):
            queue.get(timeout=0.02)
        with pytest.raises(ValueError, match="non-negative"):
            queue.get(timeout=-1)
        with pytest.raises(ValueError, match="non-negative"):
            queue.put(b"x", timeout=-1)


def test_task_done_acks_what_this_thread_took() -> None:
    """Oldest first, per thread; one too many is a ValueError."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        for body in (b"1", b"2", b"3"):
            queue.put(body)
        queue.get()
        other = threading.Thread(target=lambda: (queue.get(), queue.task_done()))
        other.start()
        other.join(10)
        assert [m.sequence for m in handle.browse()] == [1, 3]
        queue.get()
        queue.task_done()
        assert [m.sequence for m in handle.browse()] == [3]
        queue.task_done()
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()


def test_join_waits_for_workers() -> None:
    """The pattern of the standard library's documentation."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        done: list[bytes] = []

        def worker() -> None:
            while True:
                try:
                    item = queue.get()
                except ShutDown:
                    return
                done.append(item)
                queue.task_done()

        threads = [threading.Thread(target=worker) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(30):
            queue.put(b"%d" % number, block=False)
        handle.wait_for_confirms(10)
        queue.join()
        assert sorted(done) == sorted(b"%d" % number for number in range(30))
        queue.shutdown()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert host.live == 0


def test_join_outlives_a_failover() -> None:
    """It waits on while there is no master."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        queue.put(b"1")
        joiner = threading.Thread(target=queue.join)
        joiner.start()
        host.down()
        host.up()
        queue.get(timeout=10)
        queue.task_done()
        joiner.join(10)
        assert not joiner.is_alive()


def test_a_task_that_came_again_is_done_for_its_first_worker_too() -> None:
    """After a failover another worker has it: `task_done()` raises nothing, and ends nothing of
    the other's."""
    with FakeHost() as host, host.queue() as handle, host.queue() as other:
        queue, again = handle.as_queue(), other.as_queue()
        queue.put(b"1")
        assert queue.get(timeout=10) == b"1"
        host.fail_over()
        assert again.get(timeout=10) == b"1"
        queue.task_done()
        assert host.live == 1
        again.task_done()
        again.join()


def test_shutdown_ends_puts_then_gets() -> None:
    """As in 3.13; `immediate` ends both, and leaves the messages in the queue."""
    with FakeHost() as host, host.queue() as handle, host.queue() as rest:
        queue = handle.as_queue()
        queue.put(b"1")
        queue.put(b"2")
        queue.shutdown()
        with pytest.raises(ShutDown):
            queue.put(b"3")
        with pytest.raises(ShutDown):
            queue.put_nowait(b"3")
        assert queue.get() == b"1"
        queue.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            queue.get()
        with pytest.raises(ShutDown):
            queue.get_nowait()
        queue.task_done()
        queue.join()
        assert rest.get(timeout=10).body == b"2"


def test_a_put_that_is_not_confirmed_in_time_says_why() -> None:
    """Full, or QueueDown when that is the reason; without `block` it only has to be accepted."""
    with FakeHost(Config(unconfirmed_count_max=3)) as host, host.queue() as handle:
        queue = handle.as_queue()
        host.hold_writes()
        with pytest.raises(Full, match="accepted"):
            queue.put(b"1", timeout=0.02)
        host.down()
        wait_until(lambda: not handle._handle.session.available)  # type: ignore[union-attr]
        with pytest.raises(QueueDown):
            queue.put(b"2", timeout=0.02)
        queue.put_nowait(b"3")
        with pytest.raises(standard.Full):
            queue.put_nowait(b"4")
        host.hold_writes(False)
        host.up()
        handle.wait_for_confirms(10)
        assert [m.body for m in handle.browse()] == [b"1", b"2", b"3"]


def test_an_empty_handle_raises_both_kinds_of_empty() -> None:
    """mirrorq.Empty is a queue.Empty."""
    with FakeHost() as host, host.queue() as handle, pytest.raises(Empty) as raised:
        handle.as_queue().get(block=False)
    assert isinstance(raised.value, mirrorq.MirrorQError)


def test_what_is_left_to_do_and_whether_it_is_shut_down() -> None:
    """Attributes of queue.Queue that programs look at; 3.13 has the second."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        assert (queue.unfinished_tasks, queue.is_shutdown) == (0, False)
        queue.put(b"1")
        queue.put(b"2")
        assert queue.unfinished_tasks == 2
        queue.get()
        assert queue.unfinished_tasks == 2
        queue.task_done()
        assert queue.unfinished_tasks == 1
        queue.shutdown()
        assert queue.is_shutdown
        assert queue.get() == b"2"
        queue.shutdown(immediate=True)
        assert (queue.unfinished_tasks, queue.is_shutdown) == (1, True)
        queue.task_done()
        assert queue.unfinished_tasks == 0
