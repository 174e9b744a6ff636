"""consume: callbacks, prefetch, failing callbacks, cancelling, exclusive consumers."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from fake_host import FakeHost, wait_until

import mirrorq
from mirrorq import Config
from mirrorq.api import consumer as consumer_module
from mirrorq.api.consumer import UNBOUNDED_COUNT
from mirrorq.errors import AckRefused, ConfigError, PreconditionFailed
from mirrorq.protocol.sessions import Deliver, Delivery

pytestmark = pytest.mark.real


def fill(queue: mirrorq.MirroredQueue, count: int) -> None:
    """Publish bodies 0 to count - 1, confirmed."""
    queue.put_many([b"%d" % number for number in range(count)]).result(10)


def ignore(message: mirrorq.Message) -> None:
    """A callback that keeps its message."""


class Gate:
    """A callback that waits until it is let on."""

    def __init__(self) -> None:
        self.seen: list[mirrorq.Message] = []
        self.passes = threading.Semaphore(0)

    def __call__(self, message: mirrorq.Message) -> None:
        self.seen.append(message)
        self.passes.acquire(timeout=20)
        message.ack()


def test_a_callback_sees_messages_in_order_on_its_own_thread() -> None:
    """One thread a consumer; what it acks is gone."""
    seen: list[tuple[int, str]] = []

    def work(message: mirrorq.Message) -> None:
        seen.append((message.sequence, threading.current_thread().name))
        message.ack()

    with FakeHost() as host, host.queue() as queue:
        with queue.consume(work) as consumer:
            fill(queue, 1000)
            wait_until(lambda: len(seen) == 1000)
            wait_until(lambda: host.live == 0)
            assert [sequence for sequence, _ in seen] == [*range(1, 1001)]
            assert len({name for _, name in seen}) == 1
            assert consumer.is_active
        assert not consumer.is_active


def test_prefetch_bounds_what_is_held() -> None:
    """The rest is for others; it can be raised while it runs."""
    gate = Gate()
    with FakeHost() as host, host.queue() as queue, host.queue() as other:
        fill(queue, 10)
        consumer = queue.consume(gate, prefetch=2)
        wait_until(lambda: consumer.unsettled == 2)
        assert [other.get(timeout=10).sequence for _ in range(2)] == [3, 4]
        consumer.prefetch = 4
        wait_until(lambda: consumer.unsettled == 4)
        assert consumer.prefetch == 4
        with pytest.raises(ConfigError, match="0 for no bound"):
            consumer.prefetch = -1
        for _ in range(20):
            gate.passes.release()
        wait_until(lambda: len(gate.seen) == 8)


def test_settling_twice_gives_no_more_credit() -> None:
    """An ack of an acked message is refused, and the bound stays what it was."""
    held: list[mirrorq.Message] = []
    with FakeHost() as host, host.queue() as queue:
        consumer = queue.consume(held.append, prefetch=2)
        fill(queue, 20)
        wait_until(lambda: len(held) == 2)
        for _ in range(5):
            held[0].ack()
        wait_until(lambda: len(held) == 3)
        assert queue.qsize() == 17
        assert consumer.unsettled == 2


def test_a_failing_callback_gives_the_message_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, after a delay that grows; what it had settled before it failed stays settled."""
    monkeypatch.setattr(consumer_module, "PAUSE_FIRST_S", 0.001)
    counts: list[int] = []

    def work(message: mirrorq.Message) -> None:
        counts.append(message.delivery_count)
        if message.delivery_count == 3:
            message.ack()
        raise RuntimeError("a user's mistake")

    with FakeHost() as host, host.queue() as queue:
        fill(queue, 1)
        consumer = queue.consume(work)
        wait_until(lambda: host.live == 0)
        assert counts == [1, 2, 3]
        consumer.cancel()


def test_cancelling_gives_back_what_was_not_begun() -> None:
    """Uncounted; the one under way can still be acked."""
    gate = Gate()
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 5)
        consumer = queue.consume(gate)
        wait_until(lambda: consumer.unsettled == 5 and len(gate.seen) == 1)
        gate.passes.release()
        wait_until(lambda: len(gate.seen) == 2)
        canceller = threading.Thread(target=consumer.cancel)
        canceller.start()
        wait_until(lambda: queue.qsize() == 3)
        gate.passes.release()
        canceller.join(10)
        wait_until(lambda: host.live == 3)
        rest = [queue.get(timeout=10) for _ in range(3)]
        assert [(m.sequence, m.redelivered) for m in rest] == [(3, False), (4, False), (5, False)]
        assert len(gate.seen) == 2


def test_a_callback_may_cancel_its_own_consumer() -> None:
    """It does not wait for itself."""
    consumers: list[mirrorq.Consumer] = []
    done = threading.Event()

    def work(message: mirrorq.Message) -> None:
        message.ack()
        consumers[0].cancel()
        done.set()

    with FakeHost() as host, host.queue() as queue:
        consumers.append(queue.consume(work))
        fill(queue, 3)
        assert done.wait(10)
        wait_until(lambda: queue.qsize() == 2)


def test_auto_ack_needs_no_ack_and_no_nack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing callback has lost its message: that is what auto_ack means."""
    monkeypatch.setattr(consumer_module, "PAUSE_FIRST_S", 0.001)
    seen: list[int] = []

    def work(message: mirrorq.Message) -> None:
        seen.append(message.sequence)
        raise RuntimeError

    with FakeHost() as host, host.queue() as queue:
        fill(queue, 3)
        queue.consume(work, auto_ack=True, prefetch=1)
        wait_until(lambda: len(seen) == 3)
        wait_until(lambda: host.live == 0)


def test_consumers_take_turns() -> None:
    """Two consumers share a queue; together they see every message once."""
    seen: list[list[int]] = [[], []]

    def worker(index: int) -> Any:
        def work(message: mirrorq.Message) -> None:
            seen[index].append(message.sequence)
            message.ack()

        return work

    with FakeHost() as host, host.queue() as one, host.queue() as other:
        one.consume(worker(0), prefetch=1)
        other.consume(worker(1), prefetch=1)
        fill(one, 100)
        wait_until(lambda: sum(map(len, seen)) == 100)
        assert all(seen)
        assert sorted(seen[0] + seen[1]) == [*range(1, 101)]


def test_a_failover_is_told_once_to_who_asked() -> None:
    """cancel_on_failover ends its consumer with one callback; the other one just goes on."""
    cancelled: list[mirrorq.Consumer] = []
    seen: list[bytes] = []

    def work(message: mirrorq.Message) -> None:
        seen.append(message.body)
        message.ack()

    with FakeHost() as host, host.queue() as queue:
        leaving = queue.consume(
            ignore, on_cancel=cancelled.append, cancel_on_failover=True, prefetch=1
        )
        staying = queue.consume(work, on_cancel=cancelled.append)
        host.break_link()
        fill(queue, 1)
        assert leaving.is_active
        host.fail_over()
        host.fail_over()
        queue.put(b"after").result(10)
        wait_until(lambda: b"after" in seen)
        wait_until(lambda: cancelled == [leaving])
        assert not leaving.is_active
        assert staying.is_active


def test_an_ack_across_a_failover_frees_both_deliveries() -> None:
    """What a callback held, and what the next master handed to its consumer for it."""
    gate = Gate()
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        consumer = queue.consume(gate, prefetch=3)
        wait_until(lambda: len(gate.seen) == 1, "the first is with its callback")
        host.fail_over()
        wait_until(lambda: len(consumer._subscriptions[0].buffer) == 2, "both came again")
        gate.seen[0].ack().result(10)
        assert consumer.unsettled == 1
        gate.passes.release(2)
        wait_until(lambda: host.live == 0, "both are acked")
        assert consumer.unsettled == 0
        assert [message.sequence for message in gate.seen] == [1, 2]


def test_an_exclusive_consumer_is_alone() -> None:
    """Others, get() among them, get PreconditionFailed; when it has gone they may."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        first = one.consume(ignore, exclusive=True)
        with pytest.raises(PreconditionFailed, match="exclusive"):
            other.consume(ignore)
        with pytest.raises(PreconditionFailed):
            other.consume(ignore, exclusive=True)
        with pytest.raises(PreconditionFailed, match="exclusive"):
            other.get(timeout=10)
        with pytest.raises(PreconditionFailed):
            other.get_nowait()
        first.cancel()
        fill(one, 1)
        assert other.get(timeout=10).body == b"0"
        plain = other.consume(ignore)
        with pytest.raises(PreconditionFailed, match="other consumers"):
            one.consume(ignore, exclusive=True)
        plain.cancel()
        one.consume(ignore, exclusive=True).cancel()


def test_closing_the_handle_ends_its_consumers() -> None:
    """The threads end; no callback comes after."""
    with FakeHost() as host:
        queue = host.queue()
        consumer = queue.consume(lambda m: m.ack())
        fill(queue, 10)
        queue.close()
        assert not consumer.is_active
        assert consumer._finished.is_set()


def test_a_consumer_that_hangs_is_cancelled_and_its_messages_go_to_others() -> None:
    """After consumer_timeout_ms what it holds comes again, redelivered; it learns of it."""
    with FakeHost(Config(consumer_timeout_ms=1000)) as host, host.queue() as queue:
        fill(queue, 2)
        hangs, cancelled = threading.Event(), threading.Event()
        consumer = queue.consume(
            lambda _: hangs.wait(60), prefetch=2, on_cancel=lambda _: cancelled.set()
        )
        assert cancelled.wait(60)
        assert "consumer_timeout_ms" in consumer.refused
        assert not consumer.is_active
        found = [queue.get(timeout=30) for _ in range(2)]
        assert [(m.sequence, m.delivery_count) for m in found] == [(1, 2), (2, 2)]
        hangs.set()
        queue.ack_many(found).result(30)


def test_a_consumer_without_a_bound_holds_all_there_is() -> None:
    """Far more than it is sent at once, those to come too."""
    count = 3 * UNBOUNDED_COUNT
    with FakeHost() as host, host.queue() as queue:
        fill(queue, count)
        held: list[mirrorq.Message] = []
        consumer = queue.consume(held.append, prefetch=0)
        wait_until(lambda: len(held) == count)
        fill(queue, 10)
        wait_until(lambda: len(held) == count + 10)
        assert (consumer.prefetch, consumer.unsettled) == (0, count + 10)
        queue.ack_many(held).result(30)
        assert host.live == consumer.unsettled == 0


def test_a_consumer_that_extends_its_message_is_not_cancelled() -> None:
    """Work that takes longer than the time-out, with more messages behind it: each comes once."""
    with FakeHost(Config(consumer_timeout_ms=1000)) as host, host.queue() as queue:
        fill(queue, 2)
        began, may_end, done = threading.Event(), threading.Event(), threading.Event()
        seen: list[tuple[int, bool]] = []

        def work(message: mirrorq.Message) -> None:
            seen.append((message.sequence, message.redelivered))
            if message.sequence == 1:
                message.extend(timedelta(hours=1)).result(30)
                began.set()
                assert may_end.wait(60)
            else:
                done.set()
            message.ack()

        consumer = queue.consume(work, prefetch=2)
        assert began.wait(30)
        host.pass_time(5)
        queue.qsize()  # its master has taken a step since
        assert consumer.is_active
        may_end.set()
        assert done.wait(30)
        consumer.cancel()
        assert seen == [(1, False), (2, False)]
        wait_until(lambda: host.live == 0)


def test_a_message_that_is_not_held_is_not_extended() -> None:
    """It was settled, or has gone back: the settlement says so; a time that is none raises."""
    with FakeHost(Config(consumer_timeout_ms=1000)) as host, host.queue() as queue:
        fill(queue, 2)
        first = queue.get(timeout=10)
        first.extend(0.5).result(10)
        for wrong in (-1, "1", None, True, timedelta(seconds=-1)):
            with pytest.raises(ConfigError, match="seconds is"):
                first.extend(wrong)  # type: ignore[arg-type]
        first.ack().result(10)
        assert isinstance(first.extend(1).exception(10), AckRefused)
        second = queue.get(timeout=10)
        host.fail_over()
        again = queue.get(timeout=10)
        assert (again.sequence, again.redelivered) == (2, True)
        refused = second.extend(10).exception(10)
        assert isinstance(refused, AckRefused)
        assert "message 2 of queue 'q' was not extended" in str(refused)
        again.extend(0).result(10)
        queue.close()
        assert isinstance(again.extend(5).exception(10), AckRefused)


def test_what_comes_for_a_consumer_that_is_cancelled_in_the_same_step_goes_back() -> None:
    """The session had it still, the handle no longer: nobody would ever settle it."""
    with FakeHost() as host, host.queue() as queue:
        given_back: list[object] = []

        class Returning:
            def give_back(self, deliveries: object) -> None:
                given_back.append(deliveries)

        pieces = (Delivery(1, 1, 1, 3, 1),)
        queue._handle._on_deliver(Returning(), Deliver(99, pieces))  # type: ignore[arg-type]
        assert given_back == [pieces]
