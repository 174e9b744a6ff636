"""put and put_many: outcomes, bounds, bad input, callbacks."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from functools import partial
from typing import Any

import pytest
from fake_host import FakeHost, wait_until

import mirrorq
from mirrorq.config import Config
from mirrorq.errors import AckRefused, ConfirmUnknown, Full, NoQuorum, QueueDown, ShutDown
from mirrorq.session.calls import Closed

pytestmark = pytest.mark.real


def test_a_put_ends_with_its_sequence() -> None:
    """Sequences count from 1 in the order of puts."""
    with FakeHost() as host, host.queue() as queue:
        confirmations = [queue.put(b"%d" % number) for number in range(100)]
        assert [c.result(10) for c in confirmations] == [*range(1, 101)]
        assert all(c.done() and c.exception() is None for c in confirmations)
        assert queue.wait_for_confirms(10) is True


def test_put_many_ends_with_a_range() -> None:
    """One op, one range; an empty list is done at once, without a master."""
    with FakeHost() as host, host.queue() as queue:
        assert queue.put_many([b"a", b"b", b"c"]).result(10) == range(1, 4)
        assert queue.put_many(b"%d" % i for i in range(2)).result(10) == range(4, 6)  # type: ignore[arg-type]
        host.down()
        assert queue.put_many([]).result(0) == range(0)


def test_a_put_many_above_a_frame_goes_in_several() -> None:
    """Still one confirmation, and all of it arrives in order."""
    config = Config(message_bytes_max=4096, frame_bytes_max=8192, unconfirmed_bytes_max=1 << 20)
    bodies = [b"%d" % i * 1000 for i in range(10)] * 3
    with FakeHost(config) as host, host.queue() as queue:
        assert queue.put_many(bodies).result(10) == range(1, 31)
        assert [m.body for m in queue.browse()] == bodies


def test_properties_travel() -> None:
    """Headers of every type, message id and key come out as they went in."""
    headers: dict[str, Any] = {"s": "x", "b": b"\0\xff", "i": -5, "f": 1.5, "t": True}
    headers |= {"n": None, "l": [1, None, {"deep": b"x"}], "m": {"a": {"b": []}}}
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"1", headers=headers, message_id="id", key="k")
        queue.put(b"2")
        texts = {"reply_to": "replies", "correlation_id": "c-1", "content_type": "text/plain"}
        queue.put_many([b"3", b"4"], headers={"n": 1}, **texts).result(10)
        found = [queue.get(timeout=10) for _ in range(4)]
        assert found[0].headers == headers
        assert type(found[0].headers["t"]) is bool
        assert (found[0].message_id, found[0].key) == ("id", "k")
        assert (found[1].headers, found[1].message_id, found[1].key) == ({}, None, None)
        assert [m.headers for m in found[2:]] == [{"n": 1}] * 2
        for message in found:
            carried = {name: getattr(message, name) for name in texts}
            assert carried == (texts if message in found[2:] else dict.fromkeys(texts))
        assert found[0].queue == "q"
        assert found[0].timestamp > 1_600_000_000


@pytest.mark.parametrize("body", ["text", 5, None, ["x"], object()])
def test_a_body_that_is_not_bytes_like_is_refused(body: Any) -> None:
    """TypeError naming the type; nothing is published."""
    with FakeHost() as host, host.queue() as queue:
        with pytest.raises(TypeError, match=type(body).__name__):
            queue.put(body)
        with pytest.raises(TypeError, match=type(body).__name__):
            queue.put_many([b"fine", body])
        assert queue.qsize() == 0


@pytest.mark.parametrize("bodies", [b"abc", bytearray(b"abc"), "abc"])
def test_put_many_of_one_body_is_a_mistake(bodies: Any) -> None:
    """A bytes is a sequence of integers: not what was meant."""
    with FakeHost() as host, host.queue() as queue, pytest.raises(TypeError, match="list"):
        queue.put_many(bodies)


def test_bodies_that_can_change_are_copied_at_the_call() -> None:
    """What is published is what the buffer held when put was called."""
    with FakeHost() as host, host.queue() as queue:
        buffer = bytearray(b"before")
        host.hold_writes()
        queue.put(buffer)
        queue.put(memoryview(buffer)[:3])
        queue.put_many([buffer])
        buffer[:] = b"after!"
        host.hold_writes(False)
        assert [queue.get(timeout=10).body for _ in range(3)] == [b"before", b"bef", b"before"]


def test_a_body_above_the_limit_is_a_value_error_that_names_it() -> None:
    """At the limit it goes, one byte above it does not."""
    config = Config(message_bytes_max=1000)
    with FakeHost(config) as host, host.queue() as queue:
        assert queue.put(bytes(1000)).result(10) == 1
        with pytest.raises(ValueError, match="message_bytes_max 1000") as raised:
            queue.put(bytes(1001))
        assert isinstance(raised.value, mirrorq.MirrorQError)
        with pytest.raises(ValueError, match="1001"):
            queue.put_many([b"", bytes(1001)])


@pytest.mark.parametrize("bad", [{1: "x"}, {"x": object()}, {"x": [{1}]}, {"x": {2: 3}}])
def test_headers_of_other_types_are_refused(bad: Any) -> None:
    """TypeError at the call, not a message that nobody can read."""
    with FakeHost() as host, host.queue() as queue, pytest.raises(TypeError, match="header"):
        queue.put(b"x", headers=bad)


def test_puts_block_at_the_bound_and_go_on_when_there_is_room() -> None:
    """Full at the time-out; a call larger than the bound goes when nothing else is open."""
    config = Config(unconfirmed_count_max=10)
    with FakeHost(config) as host, host.queue() as queue:
        host.hold_writes()
        for _ in range(10):
            queue.put(b"x")
        assert queue.full()
        with pytest.raises(Full, match="unconfirmed"):
            queue.put(b"x", timeout=0.02)
        with pytest.raises(Full):
            queue.put_nowait(b"x")
        with pytest.raises(Full):
            queue.put(b"x", block=False)
        with pytest.raises(ValueError, match="timeout"):
            queue.put(b"x", timeout=-1)
        put = threading.Thread(target=queue.put, args=(b"last",))
        put.start()
        host.hold_writes(False)
        put.join(10)
        assert queue.wait_for_confirms(10)
        assert not queue.full()
        assert queue.put_many([b"y"] * 50).result(10) == range(12, 62)


def test_the_bound_counts_bytes_too() -> None:
    """What is open is given back byte by byte as it is confirmed."""
    config = Config(unconfirmed_bytes_max=4096)
    with FakeHost(config) as host, host.queue() as queue:
        host.hold_writes()
        queue.put(bytes(3000))
        with pytest.raises(Full):
            queue.put(bytes(3000), block=False)
        host.hold_writes(False)
        for _ in range(20):
            queue.put(bytes(3000), timeout=10)
        queue.wait_for_confirms(10)
        assert queue._handle.puts.size == queue._handle.puts.count == 0


def test_why_a_put_had_no_room_is_said() -> None:
    """NoQuorum and QueueDown instead of Full, when that is the reason."""
    config = Config(unconfirmed_count_max=1)
    with FakeHost(config) as host, host.queue() as queue:
        queue.put(b"1").result(10)
        host.down()
        queue.put(b"2")
        wait_until(lambda: not queue._handle.session.available)  # type: ignore[union-attr]
        with pytest.raises(QueueDown):
            queue.put(b"3", timeout=0.02)
        with pytest.raises(QueueDown):
            queue.wait_for_confirms(0.02)
        host.pause()
        with pytest.raises(NoQuorum):
            queue.put(b"3", timeout=0.02)
        host.pause(False)
        host.up()
        assert queue.put(b"3", timeout=10).result(10) == 3


def test_confirmations_stay_open_over_failovers() -> None:
    """What the first master lost is sent to the second, once."""
    with FakeHost() as host, host.queue() as queue:
        queue.put(b"0").result(10)
        host.hold_writes()
        confirmations = [queue.put(b"%d" % i) for i in range(1, 50)]
        with pytest.raises(TimeoutError):
            confirmations[0].result(0.02)
        host.fail_over()
        host.break_link()
        host.hold_writes(False)
        assert [c.result(10) for c in confirmations] == [*range(2, 51)]
        assert [m.body for m in queue.browse()] == [b"%d" % i for i in range(50)]


def test_closing_leaves_nothing_open() -> None:
    """Without a master, close() ends what is open as unknown; put after it is refused."""
    with FakeHost() as host:
        queue = host.queue()
        queue.put(b"0").result(10)
        host.pause()
        host.hold_writes()
        confirmations = [queue.put(b"1"), queue.put_many([b"2", b"3"])]
        queue.close()
        for confirmation in confirmations:
            with pytest.raises(ConfirmUnknown):
                confirmation.result(0)
        with pytest.raises(ShutDown):
            queue.put(b"4")
        queue.close()
        host.hold_writes(False)


def test_the_host_that_ends_leaves_nothing_open() -> None:
    """A node that is closed under its handles ends their puts, acks and waits: a put or an ack that
    was sent may have taken effect, an ack that is made only then has not."""
    with FakeHost() as host:
        queue = host.queue()
        queue.put_many([b"0", b"1"]).result(10)
        message = queue.get(timeout=10)
        host.hold_writes()
        confirmation = queue.put(b"1")
        together = queue.ack_many([queue.get(timeout=10)])
        settlement = message.ack()
        queue.qsize()
        waiter = threading.Thread(target=lambda: list(queue))
        waiter.start()
        host.close()
        for outcome in (confirmation, settlement, together):
            with pytest.raises(ConfirmUnknown):
                outcome.result(10)
        waiter.join(10)
        assert not waiter.is_alive()
        with pytest.raises(mirrorq.AckRefused):
            message.ack().result(10)
        queue.close()


def test_callbacks_run_on_one_thread_that_is_not_the_hosts() -> None:
    """In order; one that raises is logged and stops nobody."""
    seen: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        def callback(confirmation: mirrorq.Confirmation) -> None:
            seen.append((f"{name} {threading.current_thread().name}", confirmation.result(0)))
            if name == "own":
                raise RuntimeError("a user's mistake")

        return callback

    with FakeHost() as host, host.queue() as queue:
        queue.on_confirm(note("all"))
        queue.add_confirm_listener(note("good"), note("bad"))
        confirmation = queue.put(b"x", on_confirm=note("own"))
        confirmation.result(10)
        wait_until(lambda: len(seen) == 3, "three callbacks")
        confirmation.add_done_callback(note("late"))
        wait_until(lambda: len(seen) == 4, "the late callback")
    assert {name.split(" ")[0] for name, _ in seen} == {"all", "good", "own", "late"}
    assert {name.split(" ", 1)[1] for name, _ in seen} == {"mirrorq-callbacks"}
    assert {value for _, value in seen} == {1}


def test_a_callback_after_close_is_still_called() -> None:
    """The thread ended with the handle; another is started for it."""
    called = threading.Event()
    with FakeHost() as host:
        queue = host.queue()
        confirmation = queue.put(b"x", on_confirm=print)
        confirmation.result(10)
        queue.close()
        confirmation.add_done_callback(lambda _: called.set())
        assert called.wait(10)


def test_on_confirm_is_told_of_failures_too() -> None:
    """add_confirm_listener splits them; on_confirm gets all."""
    ends: list[tuple[str, object]] = []
    with FakeHost() as host:
        queue = host.queue()
        queue.put(b"0").result(10)
        queue.on_confirm(lambda c: ends.append(("any", c.exception(0))))
        queue.add_confirm_listener(None, lambda c: ends.append(("bad", c.exception(0))))
        host.pause()
        host.hold_writes()
        host.down()
        queue.put(b"1")
        queue.close()
        wait_until(lambda: len(ends) == 2, "both listeners")
        assert all(isinstance(error, ConfirmUnknown) for _, error in ends)
        host.hold_writes(False)


def test_confirmations_can_be_awaited_in_any_loop() -> None:
    """From two loops in two threads, done or not yet done, and with an error."""
    results: list[object] = []

    async def publish(queue: mirrorq.MirroredQueue) -> None:
        confirmation = queue.put(b"x")
        first = await asyncio.wait_for(_await(confirmation), 10)
        again = await confirmation
        results.append((first, again))

    async def _await(confirmation: mirrorq.Confirmation) -> object:
        return await confirmation

    with FakeHost() as host, host.queue() as queue:
        threads = [threading.Thread(target=lambda: asyncio.run(publish(queue))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(results) == [(1, 1), (2, 2)]


def test_wait_tells_done_from_open() -> None:
    """mirrorq.wait over several handles' confirmations and settlements."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        first = one.put(b"1")
        done, open_ = mirrorq.wait([first, other.put(b"2")], timeout=10)
        assert (len(done), len(open_)) == (2, 0)
        settlement = one.get(timeout=10).ack()
        assert mirrorq.wait([settlement], timeout=10) == ({settlement}, set())
        host.hold_writes()
        late = one.put(b"3")
        assert mirrorq.wait([first, late], timeout=0.02) == ({first}, {late})
        host.hold_writes(False)


def test_wait_ends_with_the_first_one_where_that_is_asked() -> None:
    """As in concurrent.futures, over handles of several hosts: whichever is first wakes it."""
    with FakeHost() as host, host.queue() as one, FakeHost() as far, far.queue() as other:
        host.hold_writes()
        far.hold_writes()
        slow, quick, later = one.put(b"1"), other.put(b"2"), other.put(b"3")
        told: list[object] = []
        lost = partial(host.tell, Closed("it is no more"))

        def first() -> None:
            told.append(mirrorq.wait([slow, quick], 10, futures.FIRST_COMPLETED))

        def failed() -> None:
            told.append(mirrorq.wait([slow, later], 10, return_when="FIRST_EXCEPTION"))

        for waiting, release in ((first, partial(far.hold_writes, False)), (failed, lost)):
            thread = threading.Thread(target=waiting)
            thread.start()
            wait_until(lambda: one._handle.outcomes.waiters > 0)
            release()
            thread.join(10)
        # `later` has ended well before: that was not enough.
        assert told == [({quick}, {slow}), ({later, slow}, set())]
        assert isinstance(slow.exception(), ConfirmUnknown)
        assert mirrorq.wait([], return_when="FIRST_COMPLETED") == (set(), set())
        assert mirrorq.wait([quick, later], return_when="FIRST_EXCEPTION")[0] == {quick, later}
        with pytest.raises(ValueError, match="return_when is 'SOON'"):
            mirrorq.wait([quick], return_when="SOON")  # type: ignore[arg-type]
        host.hold_writes(False)


def test_puts_from_many_threads_all_arrive() -> None:
    """Handles are thread-safe: each message once, each thread's own in order."""
    with FakeHost() as host, host.queue() as queue:

        def publish(name: int) -> None:
            for number in range(200):
                queue.put(b"%d-%d" % (name, number))

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        queue.wait_for_confirms(20)
        bodies = [message.body for message in queue.browse(count_max=2000)]
    for name in range(4):
        mine = [body for body in bodies if body.startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, number) for number in range(200)]


def test_futures_end_as_their_outcomes_do() -> None:
    """What waits for futures waits for confirmations and settlements: of a queue that goes on, and
    of one that holds its outcomes."""
    with FakeHost() as host, FakeHost() as silent, host.queue() as queue, silent.queue() as held:
        silent.hold_writes()
        stuck = held.put(b"stuck").future()
        made = {queue.put(b"%d" % number).future() for number in range(3)}
        first, others = futures.wait([stuck, *made], 30, futures.FIRST_COMPLETED)
        assert first
        assert stuck in others
        assert sorted(one.result() for one in futures.as_completed(made, 30)) == [1, 2, 3]
        assert not stuck.cancel()
        silent.hold_writes(False)
        assert stuck.result(30) == 1
        message = queue.get(timeout=30)
        assert message.ack().future().result(30) is None
        again = message.ack().future()
        assert isinstance(again.exception(30), AckRefused)

        async def main() -> int:
            found: int = await asyncio.wrap_future(queue.put(b"4").future())
            return found

        assert asyncio.run(main()) == 4
