"""put and put_many: outcomes, properties, bounds, callbacks, and what a failover leaves of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from typing import Any

import pytest

import mirrorq
from conformance.faces import ITEMS, WAIT_S, Stage, case, fill, got, raised, taken
from mirrorq import AckRefused, ConfirmUnknown, Full, NoQuorum, QueueDown, ShutDown

TEXTS = {"reply_to": "replies", "correlation_id": "c-1", "content_type": "text/plain"}


@case(ITEMS)
def test_messages_come_in_the_order_of_their_puts(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue()
    for number in range(100):
        queue.put(b"%d" % number)
    stage.until(lambda: other.qsize() == 100)
    assert taken(other, 100) == [b"%d" % number for number in range(100)]
    stage.until(lambda: stage.messages() == 0)


def test_a_put_ends_with_its_sequence(stage: Stage, queue: Any) -> None:
    """Sequences count from 1 in the order of puts."""
    puts = [queue.put(b"%d" % number) for number in range(100)]
    assert [put.result(WAIT_S) for put in puts] == [*range(1, 101)]
    assert all(put.done() and put.exception() is None for put in puts)
    assert queue.wait_for_confirms(WAIT_S) is True


@case(nodes=3)
def test_put_many_ends_with_a_range(stage: Stage, queue: Any) -> None:
    """One op, one range; an empty list is done at once, without a majority."""
    assert queue.put_many([b"a", b"b", b"c"]).result(WAIT_S) == range(1, 4)
    assert queue.put_many(b"%d" % i for i in range(2)).result(WAIT_S) == range(4, 6)
    stage.cut_off()
    assert queue.put_many([]).result(0) == range(0)


@case(message_bytes_max=4096, frame_bytes_max=8192, unconfirmed_bytes_max=1 << 20)
def test_a_put_many_above_a_frame_goes_in_several(stage: Stage) -> None:
    """Still one confirmation, and all of it arrives in order."""
    bodies = [b"%d" % i * 1000 for i in range(10)] * 3
    queue = stage.queue()
    assert queue.put_many(bodies).result(WAIT_S) == range(1, 31)
    assert [message.body for message in queue.browse()] == bodies


def test_properties_travel(stage: Stage) -> None:
    """Headers of every type, message id and key come out as they went in."""
    headers: dict[str, Any] = {"s": "x", "b": b"\0\xff", "i": -5, "f": 1.5, "t": True}
    headers |= {"n": None, "l": [1, None, {"deep": b"x"}], "m": {"a": {"b": []}}}
    queue = stage.queue()
    queue.put(b"1", headers=headers, message_id="id", key="k").result(WAIT_S)
    one = queue.get(timeout=WAIT_S)
    assert (one.headers, one.message_id, one.key) == (headers, "id", "k")
    assert type(one.headers["t"]) is bool
    assert (one.queue, one.handle.name) == ("orders", "orders")
    assert one.timestamp > 1_600_000_000
    queue.put(b"2").result(WAIT_S)
    two = queue.get(timeout=WAIT_S)
    assert (two.headers, two.message_id) == ({}, None)
    queue.put_many([b"3", b"4"], headers={"n": 1}, **TEXTS).result(WAIT_S)
    more = got(queue, 2)
    assert [message.headers for message in more] == [{"n": 1}] * 2
    for message in (two, *more):
        carried = {name: getattr(message, name) for name in TEXTS}
        assert carried == (dict.fromkeys(TEXTS) if message is two else TEXTS)


def test_bodies_that_can_change_are_copied_at_the_call(stage: Stage, queue: Any) -> None:
    """What is published is what the buffer held when put was called."""
    fill(queue, 1)
    buffer = bytearray(b"before")
    stage.cluster.fill_disk("a", 1)
    puts = [queue.put(buffer), queue.put(memoryview(buffer)[:3]), queue.put_many([buffer])]
    buffer[:] = b"after!"
    assert not any(put.done() for put in puts)
    assert [message.body for message in got(queue, 4)[1:]] == [b"before", b"bef", b"before"]


@case(unconfirmed_count_max=10)
def test_puts_wait_at_the_bound_and_go_on_when_there_is_room(stage: Stage, queue: Any) -> None:
    """Full at the time-out; a call larger than the bound goes when nothing else is open."""
    fill(queue, 1)
    stage.cluster.fill_disk("a", 3)
    open_ = 0
    while raised(queue.put, b"x", block=False) is None:
        open_ += 1
    # The bound is divided over shards.
    assert open_ == (4 if stage.face.name == "sharded" else 10)
    assert stage.is_full(queue)
    with pytest.raises(Full, match="unconfirmed"):
        queue.put(b"x", timeout=0.02)
    with pytest.raises(Full):
        queue.put_nowait(b"x")
    with pytest.raises(Full):
        queue.put(b"x", block=False)
    waiting = stage.begin(queue.put, b"last")
    assert not waiting.is_done
    waiting.result(WAIT_S)
    assert queue.wait_for_confirms(WAIT_S)
    assert not queue.full()
    assert queue.put_many([b"y"] * 50).result(WAIT_S) == range(open_ + 3, open_ + 53)


@case(unconfirmed_bytes_max=4096)
def test_the_bound_counts_bytes_too(stage: Stage, queue: Any) -> None:
    """What is open is given back byte by byte as it is confirmed."""
    fill(queue, 1)
    stage.cluster.fill_disk("a", 1)
    queue.put(bytes(3000))
    with pytest.raises(Full):
        queue.put(bytes(3000), block=False)
    for _ in range(20):
        queue.put(bytes(3000), timeout=WAIT_S)
    queue.wait_for_confirms(WAIT_S)
    assert stage.messages() == 22
    stage.cluster.fill_disk("a", 1)
    queue.put(bytes(4000), block=False)


@case(nodes=3, unconfirmed_count_max=1)
def test_why_a_put_had_no_room_is_said(stage: Stage) -> None:
    """NoQuorum and QueueDown instead of Full, when that is the reason."""
    queue = stage.alone()
    queue.put(b"1").result(WAIT_S)
    stage.cluster.crash("a")
    queue.put(b"2")
    stage.until(stage.is_down)
    with pytest.raises(QueueDown):
        queue.put(b"3", timeout=0.02)
    with pytest.raises(QueueDown):
        queue.wait_for_confirms(0.02)
    stage.cut_off()
    stage.run(5)
    with pytest.raises(NoQuorum):
        queue.put(b"3", timeout=0.02)
    stage.cluster.heal()
    stage.cluster.restart("a")
    assert queue.put(b"3", timeout=WAIT_S).result(WAIT_S) == 3


@case(nodes=3)
def test_confirmations_stay_open_over_failovers(stage: Stage, queue: Any) -> None:
    """What the first master lost is sent to the second, once; so is what a broken link lost."""
    queue.put(b"0").result(WAIT_S)
    stage.cluster.fill_disk("a", 1)
    puts = [queue.put(b"%d" % number) for number in range(1, 50)]
    with pytest.raises(TimeoutError):
        puts[0].result(0.02)
    stage.cluster.reset("b", "c")
    stage.cluster.crash("a")
    puts.append(queue.put(b"50"))
    assert [put.result(WAIT_S) for put in puts] == [*range(2, 52)]
    assert [message.body for message in queue.browse()] == [b"%d" % n for n in range(51)]


@case(nodes=3)
def test_closing_leaves_nothing_open(stage: Stage, queue: Any) -> None:
    """Without a majority, close() ends what is open as unknown; put after it is refused."""
    queue.put(b"0").result(WAIT_S)
    stage.cut_off()
    puts = [queue.put(b"1"), queue.put_many([b"2", b"3"])]
    queue.close()
    for put in puts:
        with pytest.raises(ConfirmUnknown):
            put.result(0)
    with pytest.raises(ShutDown):
        queue.put(b"4")
    queue.close()


def test_the_end_of_the_host_leaves_nothing_open(stage: Stage, queue: Any) -> None:
    """What was sent may have taken effect; an ack that is made only then has not."""
    fill(queue, 3)
    message, late, other = got(queue, 3)
    waiting = stage.begin(lambda: list(queue))
    stage.cluster.fill_disk("a", 60)
    outcomes = [queue.put(b"1"), queue.ack_many([other]), message.ack()]
    stage.run(0.1)
    stage.host.close()
    for outcome in outcomes:
        with pytest.raises(ConfirmUnknown):
            outcome.result(WAIT_S)
    assert waiting.result(WAIT_S) == []
    with pytest.raises(AckRefused):
        late.ack().result(WAIT_S)
    queue.close()


def test_callbacks_are_called_in_one_thread(stage: Stage) -> None:
    """Of one put, of all puts and afterwards; one that raises is logged and stops nobody."""
    seen: list[tuple[str, Any, int]] = []
    places: set[str] = set()

    def note(name: str) -> Any:
        def callback(put: mirrorq.Confirmation) -> None:
            seen.append((name, put.result(0), threading.get_ident()))
            places.add(threading.current_thread().name)
            if name == "own":
                raise RuntimeError("a user's mistake")

        return callback

    queue = stage.queue()
    queue.add_confirm_listener(note("all"), note("all"))
    queue.add_confirm_listener(note("good"), note("bad"))
    put = queue.put(b"x", on_confirm=note("own"))
    put.result(WAIT_S)
    stage.until(lambda: len(seen) == 3)
    put.add_done_callback(note("late"))
    stage.until(lambda: len(seen) == 4)
    assert sorted(name for name, *_ in seen) == ["all", "good", "late", "own"]
    assert {value for _, value, _ in seen} == {1}
    threads = {thread for name, _, thread in seen if name in ("all", "good")}
    assert len(threads) == 1
    assert threads == {stage.face.loop_thread or threads.copy().pop()}
    assert threading.get_ident() not in {thread for *_, thread in seen}
    # Never the thread of the node or the client: what a callback waits for would not come.
    assert places <= {"mirrorq-callbacks", "loop"}


def test_a_callback_after_close_is_still_called(stage: Stage) -> None:
    called: list[Any] = []
    queue = stage.queue()
    put = queue.put(b"x", on_confirm=called.append)
    put.result(WAIT_S)
    queue.close()
    put.add_done_callback(called.append)
    stage.until(lambda: called == [put, put])


@case(nodes=3)
def test_listeners_are_told_of_failures_too(stage: Stage) -> None:
    """A function given twice gets all confirmations."""
    ends: list[tuple[str, Any]] = []
    queue = stage.queue()
    queue.put(b"0").result(WAIT_S)

    def note(put: mirrorq.Confirmation) -> None:
        ends.append(("any", put.exception(0)))

    queue.add_confirm_listener(note, note)
    queue.add_confirm_listener(None, lambda put: ends.append(("bad", put.exception(0))))
    stage.cut_off()
    queue.put(b"1")
    queue.close()
    stage.until(lambda: len(ends) == 2)
    assert {name for name, _ in ends} == {"any", "bad"}
    assert all(isinstance(error, ConfirmUnknown) for _, error in ends)


def test_confirmations_can_be_awaited_in_any_loop(stage: Stage, queue: Any) -> None:
    """From two loops in two threads, done or not yet done, twice."""

    def publish() -> tuple[object, object]:
        put = queue.put(b"x")

        async def main() -> tuple[object, object]:
            async def awaited() -> object:
                return await put

            return await asyncio.wait_for(awaited(), 10), await put

        return asyncio.run(main())

    tasks = [stage.begin(publish) for _ in range(2)]
    assert [task.result(WAIT_S) for task in tasks] == [(1, 1), (2, 2)]


def test_wait_tells_done_from_open(stage: Stage) -> None:
    """mirrorq.wait over several handles' confirmations and settlements."""
    one, other = stage.queue(), stage.queue()
    first = one.put(b"1")
    done, open_ = mirrorq.wait([first, other.put(b"2")], timeout=WAIT_S)
    assert (len(done), len(open_)) == (2, 0)
    settlement = one.get(timeout=WAIT_S).ack()
    assert mirrorq.wait([settlement], timeout=WAIT_S) == ({settlement}, set())
    stage.cluster.fill_disk("a", 1)
    late = one.put(b"3")
    assert mirrorq.wait([first, late], timeout=0.02) == ({first}, {late})


@case(nodes=3)
def test_wait_ends_with_the_first_one_where_that_is_asked(stage: Stage) -> None:
    """As in concurrent.futures: the quick one's end wakes it, and so does a failure."""
    slow_queue, quick_queue = stage.alone("slow"), stage.queue("quick")
    fill(slow_queue, 1)
    stage.cluster.crash("a")
    slow, quick = slow_queue.put(b"1"), quick_queue.put(b"2")
    told = stage.begin(mirrorq.wait, [slow, quick], 30, futures.FIRST_COMPLETED)
    assert told.result(WAIT_S) == ({quick}, {slow})
    told = stage.begin(mirrorq.wait, [slow, quick], 30, return_when="FIRST_EXCEPTION")
    assert not told.is_done
    slow_queue.close()
    assert told.result(WAIT_S) == ({quick, slow}, set())
    assert isinstance(slow.exception(), ConfirmUnknown)
    assert mirrorq.wait([], return_when="FIRST_COMPLETED") == (set(), set())
    with pytest.raises(ValueError, match="return_when is 'SOON'"):
        mirrorq.wait([quick], return_when="SOON")  # type: ignore[arg-type]


def test_futures_end_as_their_outcomes_do(stage: Stage, queue: Any) -> None:
    """What waits for futures waits for confirmations and settlements."""
    made = [queue.put(b"%d" % number).future() for number in range(3)]
    assert sorted(one.result() for one in futures.as_completed(made, WAIT_S)) == [1, 2, 3]
    stage.cluster.fill_disk("a", 1)
    stuck = queue.put(b"stuck").future()
    first, others = futures.wait([stuck, *made], WAIT_S, futures.FIRST_COMPLETED)
    assert (first, others) == (set(made), {stuck})
    assert not stuck.cancel()
    assert stuck.result(WAIT_S) == 4
    message = queue.get(timeout=WAIT_S)
    assert message.ack().future().result(WAIT_S) is None
    assert isinstance(message.ack().future().exception(WAIT_S), AckRefused)

    async def main() -> int:
        found: int = await asyncio.wrap_future(future)
        return found

    future = queue.put(b"4").future()
    assert asyncio.run(main()) == 5


def test_puts_from_many_threads_all_arrive(stage: Stage, queue: Any) -> None:
    """Each message once, each thread's own in order, with its own properties."""

    def publish(name: int) -> None:
        for number in range(100):
            queue.put(b"%d-%d" % (name, number), message_id=str(number) if number % 3 else None)

    for task in [stage.begin(publish, name) for name in range(4)]:
        task.result(WAIT_S)
    queue.wait_for_confirms(WAIT_S)
    messages = queue.browse(count_max=2000)
    assert len(messages) == 400
    for name in range(4):
        mine = [message for message in messages if message.body.startswith(b"%d-" % name)]
        assert [message.body for message in mine] == [b"%d-%d" % (name, n) for n in range(100)]
        found = [message.message_id for message in mine]
        assert found == [str(number) if number % 3 else None for number in range(100)]


@case(nodes=3)
def test_puts_gather_while_a_batch_is_on_its_way(stage: Stage, queue: Any) -> None:
    """What gathers is stored in order, transactions among it, at the handle's end too."""
    puts = [queue.put(b"%d" % number, key="k") for number in range(3000)]
    with queue.transaction() as step:
        step.put(b"step", key="k")
    after = queue.put(b"after", key="k")
    queue.close()
    assert [put.result(0) for put in puts] == [*range(1, 3001)]
    assert 3000 < step.confirmation.result(0).start < after.result(0)
    again = stage.queue()
    bodies = [message.body for message in again.browse(count_max=4000)]
    assert bodies == [*(b"%d" % number for number in range(3000)), b"step", b"after"]


@case(ITEMS, nodes=3)
def test_without_a_majority_nothing_is_confirmed_and_with_one_it_is_again(stage: Stage) -> None:
    queue = stage.queue()
    queue.put(b"1", timeout=WAIT_S)
    stage.cut_off()
    putting = stage.begin(lambda: (queue.put(b"2"), getattr(queue, "wait_for_confirms", int)()))
    stage.run(20)
    assert not putting.is_done
    assert isinstance(raised(queue.get, timeout=0.1), NoQuorum)
    stage.cluster.heal()
    putting.result(WAIT_S)
    assert taken(queue, 2) == [b"1", b"2"]
