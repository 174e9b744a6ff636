"""as_queue(): what programs for queue.Queue rely on, beyond put and get."""

from __future__ import annotations

import pickle
import queue as standard
from typing import Any

import pytest

import mirrorq
from conformance.faces import BLOCKING, WAIT_S, Stage, case, raised
from mirrorq import Empty, Full, NoQuorum, QueueDown, ShutDown
from mirrorq.api.stdlib_queue import SETTLE_S, AckAt, HeldTasks


def in_order(stage: Stage) -> Any:
    """A handle that has no key to give: of a sharded queue it is one shard's."""
    queue = stage.queue()
    return queue.shard(0) if stage.face.name == "sharded" else queue


def put_all(queue: Any, *bodies: bytes) -> None:
    for body in bodies:
        queue.put(body)


@case(BLOCKING)
def test_items_are_counted_and_errors_are_the_standard_librarys(stage: Stage) -> None:
    handle = in_order(stage)
    queue = handle.as_queue()
    assert (queue.empty(), queue.full()) == (True, False)
    put_all(queue, b"1", b"2", b"3")
    queue.put_nowait(b"4")
    assert queue.qsize() == 4
    found = [queue.get(), queue.get(timeout=WAIT_S), queue.get_nowait(), queue.get(False)]
    assert found == [b"1", b"2", b"3", b"4"]
    for call in (queue.get_nowait, lambda: queue.get(timeout=0.02)):
        error = raised(call)
        assert isinstance(error, standard.Empty)
        assert isinstance(error, Empty)
        assert isinstance(error, mirrorq.MirrorQError)
    for call in (lambda: queue.get(timeout=-1), lambda: queue.put(b"x", timeout=-1)):
        with pytest.raises(ValueError, match="non-negative"):
            call()


@case(BLOCKING, nodes=3)
def test_what_was_got_is_taken_off_the_queue(stage: Stage) -> None:
    """As from a queue.Queue: nothing of it comes again, done or not."""
    queue = stage.queue().as_queue()
    put_all(queue, b"1", b"2")
    first = queue.get()
    stage.until(lambda: stage.messages() == 1)
    stage.fail_over()
    assert {first, queue.get(timeout=WAIT_S)} == {b"1", b"2"}
    stage.until(lambda: stage.messages() == 0)
    assert queue.unfinished_tasks == 2


@case(BLOCKING)
def test_task_done_acks_what_this_thread_took(stage: Stage) -> None:
    """Oldest first, per thread, where it is to be acked then; one too many is a ValueError."""
    handle = in_order(stage)
    queue = handle.as_queue(ack="task_done")
    put_all(queue, b"1", b"2", b"3")
    queue.get()
    stage.begin(lambda: (queue.get(), queue.task_done())).result(WAIT_S)
    assert [message.sequence for message in handle.browse()] == [1, 3]
    queue.get()
    queue.task_done()
    assert [message.sequence for message in handle.browse()] == [3]
    queue.task_done()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


@case(BLOCKING)
@pytest.mark.parametrize("ack", ["get", "task_done"])
def test_any_thread_may_be_done_with_what_others_got(stage: Stage, ack: AckAt) -> None:
    """One takes, others work; the one that took has none left then."""
    queue = stage.queue().as_queue(ack=ack)
    for number in range(20):
        queue.put(b"%d" % number)
    for _ in range(20):
        queue.get()
    for task in [stage.begin(lambda: [queue.task_done() for _ in range(5)]) for _ in range(4)]:
        task.result(WAIT_S)
    assert queue.unfinished_tasks == 0
    stage.until(lambda: stage.messages() == 0)
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


@case(BLOCKING)
def test_a_thread_that_never_says_done_keeps_nothing_of_what_others_ended(stage: Stage) -> None:
    """It takes for others as long as it likes."""
    queue = stage.queue().as_queue(ack="task_done")
    for number in range(20):
        queue.put(b"%d" % number)
        queue.get()
        stage.begin(queue.task_done).result(WAIT_S)
    tasks = queue._tasks
    assert isinstance(tasks, HeldTasks)
    assert (len(tasks._own()), len(tasks._open), len(tasks._claims)) == (1, 0, 0)


@case(BLOCKING)
def test_an_item_that_is_not_done_comes_again(stage: Stage) -> None:
    """What was acked at get does not, whatever becomes of its taker."""
    handle = in_order(stage)
    put_all(handle.as_queue(), b"taken", b"held")
    assert handle.as_queue().get() == b"taken"
    assert handle.as_queue(ack="task_done").get() == b"held"
    handle.close()
    assert in_order(stage).as_queue().get(timeout=WAIT_S) == b"held"
    stage.until(lambda: stage.messages() == 0)


@case(BLOCKING)
def test_items_are_what_dumps_and_loads_make_of_them(stage: Stage) -> None:
    """Any object, as in a queue.Queue. An item that loads cannot read goes back for a while; it is
    nobody's task, and others come."""
    handle = in_order(stage)
    queue = handle.as_queue(dumps=pickle.dumps, loads=pickle.loads)
    items = [1, "two", {"three": 3}, None]
    for item in items:
        queue.put(item)
    assert [queue.get() for _ in items] == items
    for _ in items:
        queue.task_done()
    handle.put(b"no pickle").result(WAIT_S)
    queue.put("fine")
    with pytest.raises(pickle.UnpicklingError):
        queue.get()
    assert queue.get() == "fine"
    queue.task_done()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()
    assert queue.unfinished_tasks == 1
    stage.run(10)
    assert handle.get(timeout=WAIT_S).body == b"no pickle"


@case(BLOCKING)
def test_own_puts_are_in_the_queue_though_not_confirmed(stage: Stage) -> None:
    """What counts waits for their outcome for a while: for ever would hold up the one that drains
    the queue to make room."""
    queue = stage.queue().as_queue()
    queue.put(b"1")
    stage.cluster.fill_disk("a", SETTLE_S / 2)
    queue.put_nowait(b"2")
    asking = [stage.begin(look) for look in (queue.qsize, queue.empty)]
    asking.append(stage.begin(lambda: queue.unfinished_tasks))
    assert not any(task.is_done for task in asking)
    assert [task.result(WAIT_S) for task in asking] == [2, False, 2]
    stage.cluster.fill_disk("a", 10 * SETTLE_S)
    queue.put_nowait(b"3")
    assert (queue.qsize(), queue.empty(), queue.unfinished_tasks) == (3, False, 3)


@case(BLOCKING)
def test_join_waits_for_own_puts_that_are_not_confirmed(stage: Stage) -> None:
    """`put_nowait(x); join()` returns when x is done, not when the queue is empty."""
    queue = stage.queue().as_queue()
    queue.put(b"0")
    queue.get()
    queue.task_done()
    stage.cluster.fill_disk("a", 2)
    queue.put_nowait(b"1")
    joining = stage.begin(queue.join)
    assert queue.get(timeout=WAIT_S) == b"1"
    stage.until(lambda: stage.messages() == 0)
    stage.run(1)
    assert not joining.is_done
    queue.task_done()
    joining.result(WAIT_S)


@case(BLOCKING)
def test_join_waits_for_workers(stage: Stage) -> None:
    """The pattern of the standard library's documentation."""
    handle, done = stage.queue(), []
    queue = handle.as_queue()

    def worker() -> None:
        while not isinstance(error := raised(work), ShutDown):
            assert error is None

    def work() -> None:
        done.append(queue.get())
        queue.task_done()

    workers = [stage.begin(worker) for _ in range(3)]
    for number in range(30):
        queue.put(b"%d" % number, block=False)
    handle.wait_for_confirms(WAIT_S)
    queue.join()
    assert sorted(done) == sorted(b"%d" % number for number in range(30))
    queue.shutdown()
    for task in workers:
        task.result(WAIT_S)
    stage.until(lambda: stage.messages() == 0)


@case(BLOCKING, nodes=3)
def test_join_and_tasks_outlive_a_failover(stage: Stage) -> None:
    """It waits on while there is no master. A task that came again to another worker is done for
    its first one too: `task_done()` raises nothing, and ends nothing of the other's."""
    queue, again = (stage.queue().as_queue(ack="task_done") for _ in range(2))
    queue.put(b"1")
    assert queue.get(timeout=WAIT_S) == b"1"
    joining = stage.begin(again.join)
    stage.fail_over()
    assert again.get(timeout=WAIT_S) == b"1"
    queue.task_done()
    stage.run(2)
    assert (stage.messages(), joining.is_done) == (1, False)
    again.task_done()
    joining.result(WAIT_S)


@case(BLOCKING)
def test_join_waits_for_delayed_messages(stage: Stage) -> None:
    """It is for an empty queue, and a delayed message is in it."""
    handle = stage.queue()
    handle.put(b"later", delay=5).result(WAIT_S)
    queue = handle.as_queue()
    assert queue.unfinished_tasks == 1
    joining = stage.begin(queue.join)
    assert queue.get(timeout=WAIT_S) == b"later"
    assert not joining.is_done
    queue.task_done()
    joining.result(WAIT_S)


@case(BLOCKING)
def test_shutdown_ends_puts_then_gets(stage: Stage) -> None:
    """As in 3.13; `immediate` ends both, and leaves the messages in the queue."""
    queue, rest = in_order(stage).as_queue(), in_order(stage)
    assert (queue.unfinished_tasks, queue.is_shutdown) == (0, False)
    put_all(queue, b"1", b"2")
    assert queue.unfinished_tasks == 2
    queue.shutdown()
    assert queue.is_shutdown
    for call in (lambda: queue.put(b"3"), lambda: queue.put_nowait(b"3")):
        with pytest.raises(ShutDown):
            call()
    assert queue.get() == b"1"
    assert queue.unfinished_tasks == 2
    queue.shutdown(immediate=True)
    for call in (queue.get, queue.get_nowait):
        with pytest.raises(ShutDown):
            call()
    assert queue.unfinished_tasks == 1
    queue.task_done()
    assert queue.unfinished_tasks == 0
    queue.join()
    assert rest.get(timeout=WAIT_S).body == b"2"


@case(BLOCKING, nodes=3, unconfirmed_count_max=9)
def test_a_put_that_is_not_confirmed_in_time_says_why(stage: Stage) -> None:
    """Full, or QueueDown when that is the reason; without `block` it only has to be accepted."""
    handle = stage.alone()
    queue = handle.as_queue()
    queue.put(b"0")
    stage.cluster.fill_disk("a", 1)
    with pytest.raises(Full, match="accepted"):
        queue.put(b"1", timeout=0.02)
    stage.cluster.crash("a")
    stage.until(stage.is_down)
    for call, kind in (
        (lambda: queue.put(b"2", timeout=0.02), standard.Full),
        (lambda: queue.get(timeout=0.02), standard.Empty),
        (queue.get_nowait, standard.Empty),
    ):
        error = raised(call)
        assert isinstance(error, kind)
        assert isinstance(error, QueueDown)
        assert "no master" in str(error)
    counting = stage.begin(queue.qsize)
    accepted = 2
    while raised(queue.put_nowait, b"3") is None:
        accepted += 1
    assert isinstance(raised(queue.put_nowait, b"4"), standard.Full)
    assert not counting.is_done
    stage.cluster.heal()
    stage.cluster.restart("a")
    handle.wait_for_confirms(WAIT_S)
    assert counting.result(WAIT_S) >= 1
    stage.until(lambda: stage.messages() == accepted + 1)


@case(BLOCKING, nodes=3)
def test_ordinary_loops_live_through_a_lost_majority(stage: Stage) -> None:
    """What they catch is what comes, and says why; it is a NoQuorum as well. What has no time-out
    waits."""
    queue = stage.queue().as_queue()
    queue.put(b"1")
    stage.cut_off()
    stage.run(5)
    for call, kind in (
        (lambda: queue.get(timeout=0.02), standard.Empty),
        (lambda: queue.get(block=False), standard.Empty),
        (lambda: queue.put(b"2", timeout=0.02), standard.Full),
    ):
        error = raised(call)
        assert isinstance(error, kind)
        assert isinstance(error, NoQuorum)
        assert "majority" in str(error)
    waiting = stage.begin(lambda: {queue.get(), queue.get()})
    stage.run(5)
    assert not waiting.is_done
    stage.cluster.heal()
    assert waiting.result(WAIT_S) == {b"1", b"2"}


@case(BLOCKING)
def test_join_waits_for_messages_on_their_way_back(stage: Stage) -> None:
    """While their return waits for the disk nobody holds them, and they are in the queue."""
    handle = stage.queue()
    queue = handle.as_queue()
    put_all(queue, b"1", b"2")
    messages = [handle.get(timeout=WAIT_S) for _ in range(2)]
    stage.cluster.fill_disk("a", 5)
    messages[0].nack()
    messages[1].nack(delay=1)
    joining = stage.begin(queue.join)
    stage.run(2)
    assert (joining.is_done, queue.unfinished_tasks) == (False, 2)
    for _ in messages:
        queue.get(timeout=WAIT_S)
        queue.task_done()
    joining.result(WAIT_S)
