"""as_queue(): what programs for queue.Queue rely on."""

from __future__ import annotations

import pickle
import queue as standard
import threading

import pytest
from fake_host import FakeHost, wait_until

import mirrorq
from mirrorq.api import stdlib_queue
from mirrorq.api.stdlib_queue import AckAt, Held
from mirrorq.config import Config
from mirrorq.errors import ConfigError, Empty, Full, NoQuorum, QueueDown, ShutDown

pytestmark = pytest.mark.real


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


def test_what_was_got_is_taken_off_the_queue() -> None:
    """As from a queue.Queue: nothing of it comes again, done or not."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        queue.put(b"1")
        queue.put(b"2")
        assert queue.get() == b"1"
        wait_until(lambda: host.live == 1)
        host.fail_over()
        assert queue.get(timeout=10) == b"2"
        wait_until(lambda: not host.live)
        assert queue.unfinished_tasks == 2


def test_task_done_acks_what_this_thread_took() -> None:
    """Oldest first, per thread, where it is to be acked then; one too many is a ValueError."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue(ack="task_done")
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


@pytest.mark.parametrize("ack", ["get", "task_done"])
def test_any_thread_may_be_done_with_what_others_got(ack: AckAt) -> None:
    """One takes, others work; the one that took has none left then, and says so no more."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue(ack=ack)
        for number in range(20):
            queue.put(b"%d" % number)
        for _ in range(20):
            queue.get()

        def work() -> None:
            for _ in range(5):
                queue.task_done()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert queue.unfinished_tasks == 0
        assert host.live == 0
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()


def test_a_thread_that_never_says_done_keeps_nothing_of_what_others_ended() -> None:
    """It takes for others as long as it likes."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue(ack="task_done")
        for number in range(50):
            queue.put(b"%d" % number)
            queue.get()
            other = threading.Thread(target=queue.task_done)
            other.start()
            other.join(10)
        tasks = queue._tasks
        assert isinstance(tasks, Held)
        assert (len(tasks._own()), len(tasks._open), len(tasks._claims)) == (1, 0, 0)


def test_an_item_that_is_not_done_comes_again() -> None:
    """What was acked at get does not, whatever becomes of who got it."""
    with FakeHost() as host:
        with host.queue() as handle:
            handle.as_queue().put(b"taken")
            handle.as_queue().put(b"held")
            assert handle.as_queue().get() == b"taken"
            assert handle.as_queue(ack="task_done").get() == b"held"
        with host.queue() as handle:
            assert handle.as_queue().get(timeout=10) == b"held"
            wait_until(lambda: not host.live)


def test_items_are_what_dumps_and_loads_make_of_them() -> None:
    """Any object, as in a queue.Queue."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue(dumps=pickle.dumps, loads=pickle.loads)
        items = [1, "two", {"three": 3}, None]
        for item in items:
            queue.put(item)
        assert [queue.get() for _ in items] == items
        with pytest.raises(TypeError):
            handle.as_queue().put("text")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="'get' or 'task_done'"):
            handle.as_queue(ack="put")  # type: ignore[call-overload]


def test_what_loads_cannot_read_holds_nothing_up() -> None:
    """It goes back for a while; it is nobody's task, and others come."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue(dumps=pickle.dumps, loads=pickle.loads)
        handle.put(b"no pickle")
        queue.put("fine")
        with pytest.raises(pickle.UnpicklingError):
            queue.get()
        assert queue.get() == "fine"
        queue.task_done()
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()
        assert queue.unfinished_tasks == 1
        host.pass_time(10)
        assert handle.get(timeout=10).body == b"no pickle"


def test_own_puts_are_in_the_queue_though_not_confirmed() -> None:
    """`empty` right after `put_nowait` waits for the outcome; so does all that counts."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        host.hold_writes()
        queue.put_nowait(b"1")
        told: list[object] = []
        threads = [
            threading.Thread(target=lambda look=look: told.append(look()))  # type: ignore[misc]
            for look in (queue.empty, queue.qsize, lambda: queue.unfinished_tasks)
        ]
        for thread in threads:
            thread.start()
        waiters = handle._handle.outcomes
        wait_until(lambda: waiters.waiters == len(threads))
        assert told == []
        host.hold_writes(False)
        for thread in threads:
            thread.join(10)
        assert sorted(told, key=str) == [1, 1, False]


def test_own_puts_that_wait_for_room_on_the_disk_hold_no_question_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who drains the queue to make room asks whether it is empty."""
    monkeypatch.setattr(stdlib_queue, "SETTLE_S", 0.02)
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        queue.put(b"1")
        host.hold_writes()
        queue.put_nowait(b"2")
        assert (queue.qsize(), queue.empty(), queue.unfinished_tasks) == (2, False, 2)
        host.hold_writes(False)


def test_join_waits_for_own_puts_that_are_not_confirmed() -> None:
    """`put_nowait(x); join()` returns when x is done."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        host.hold_writes()
        queue.put_nowait(b"1")
        order: list[str] = []

        def join() -> None:
            queue.join()
            order.append("joined")

        joiner = threading.Thread(target=join)
        joiner.start()
        wait_until(lambda: handle._handle.outcomes.waiters == 1)
        host.hold_writes(False)
        assert queue.get(timeout=10) == b"1"
        wait_until(lambda: not host.live)  # the queue is empty, the task is not done
        order.append("done")
        queue.task_done()
        joiner.join(10)
        assert order == ["done", "joined"]


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
        queue, again = handle.as_queue(ack="task_done"), other.as_queue(ack="task_done")
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
        with pytest.raises(QueueDown) as put:
            queue.put(b"2", timeout=0.02)
        with pytest.raises(QueueDown) as got:
            queue.get(timeout=0.02)
        with pytest.raises(standard.Empty, match="no master"):
            queue.get_nowait()
        assert isinstance(put.value, standard.Full)
        assert isinstance(got.value, standard.Empty)
        queue.put_nowait(b"3")
        with pytest.raises(standard.Full):
            queue.put_nowait(b"4")
        host.hold_writes(False)
        host.up()
        handle.wait_for_confirms(10)
        assert [m.body for m in handle.browse()] == [b"1", b"2", b"3"]


def test_ordinary_loops_live_through_a_pause() -> None:
    """What they catch is what comes, and says why; it is a NoQuorum as well. What has no time-out
    waits."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        queue.put(b"1")
        host.pause()
        with pytest.raises(standard.Empty, match="majority") as got:
            queue.get(timeout=0.02)
        with pytest.raises(standard.Empty, match="majority"):
            queue.get(block=False)
        with pytest.raises(standard.Full, match="majority") as put:
            queue.put(b"2", timeout=0.02)
        assert isinstance(got.value, NoQuorum)
        assert isinstance(put.value, NoQuorum)
        found: list[bytes] = []
        worker = threading.Thread(target=lambda: found.extend((queue.get(), queue.get())))
        worker.start()
        wait_until(lambda: handle._handle.receiver.has_waiting)
        host.pause(False)
        worker.join(10)
        assert found == [b"1", b"2"]


def test_counts_wait_for_a_master() -> None:
    """They are never invented; the log says why they wait."""
    with FakeHost() as host, host.queue() as handle:
        queue = handle.as_queue()
        queue.put(b"1")
        host.down()
        sizes: list[int] = []
        asker = threading.Thread(target=lambda: sizes.append(queue.qsize()))
        asker.start()
        wait_until(lambda: handle._handle.outcomes.waiters == 1)
        host.up()
        asker.join(10)
        assert sizes == [1]


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
