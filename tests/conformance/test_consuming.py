"""consume: callbacks, prefetch, failing callbacks, cancelling, exclusive consumers, time-outs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from threading import get_ident
from typing import Any

import pytest

import mirrorq
from conformance.faces import BLOCKING, THREADS, WAIT_S, Stage, case, fill, got, raised
from mirrorq import ConfigError, Empty, Message, PreconditionFailed
from mirrorq.api.consumer import UNBOUNDED_COUNT


class Gate:
    """A callback that waits until it is let on, and then acks."""

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.passes = threading.Semaphore(0)

    def __call__(self, message: Message) -> None:
        self.seen.append(message)
        self.passes.acquire()
        message.ack()


def ignore(message: Message) -> None:
    """A callback that keeps its message."""


def test_a_prefetch_that_is_set_after_the_end_begins_nothing(stage: Stage) -> None:
    """Nobody is left at the queue whom none can cancel."""
    queue = stage.queue()
    consumer = queue.consume(ignore, prefetch=10)
    consumer.cancel()
    consumer.prefetch = 50
    stage.run(1)
    assert queue.status().consumers == 0
    fill(queue, 1)
    assert queue.get(timeout=WAIT_S).delivery_count == 1


def test_a_callback_sees_messages_in_order_in_one_place(stage: Stage) -> None:
    """One at a time, in one thread; what it acks is gone."""
    seen: list[tuple[int, int]] = []
    at_once: list[int] = []
    threads: set[int] = set()

    def work(message: Message) -> None:
        at_once.append(1)
        threads.add(get_ident())
        seen.append((message.sequence, len(at_once)))
        message.ack()
        at_once.pop()

    queue = stage.queue()
    with queue.consume(work) if stage.face.name != "aio" else queue as consumer:
        if stage.face.name == "aio":
            consumer = queue.consume(work)
        fill(queue, 300)
        stage.until(lambda: len(seen) == 300)
        stage.until(lambda: stage.messages() == 0)
        assert seen == [(sequence, 1) for sequence in range(1, 301)]
        assert stage.face.name == "aio" or (len(threads) == 1 and get_ident() not in threads)
        assert consumer.is_active
    assert not consumer.is_active


def test_prefetch_bounds_what_is_held(stage: Stage) -> None:
    """The rest is for others; it can be raised while the consumer runs."""
    # Of a prefetch each shard has its share, which is a third here.
    share = 3 if stage.face.name == "sharded" else 1
    held: list[Message] = []
    queue, other = stage.queue(), stage.queue()
    fill(queue, 10)
    consumer = queue.consume(held.append, prefetch=2 * share, ack="manual")
    stage.until(lambda: consumer.unsettled == 2)
    assert [message.sequence for message in got(other, 2)] == [3, 4]
    consumer.prefetch = 4 * share
    stage.until(lambda: consumer.unsettled == 4)
    assert consumer.prefetch == 4 * share
    for value in (-1, False, 2.5, "3", 2**70):
        with pytest.raises(ConfigError, match=r"prefetch is .*0 for no bound"):
            consumer.prefetch = value
    assert consumer.prefetch == 4 * share
    for message in held[:]:
        message.ack()
    stage.until(lambda: len(held) == 8)


def test_a_slow_callback_holds_what_it_works_on(stage: Stage) -> None:
    """The rest is for others, far below the prefetch; of a sharded queue one for each shard."""
    share = 3 if stage.face.name == "sharded" else 1
    gate, queue, other = Gate(), stage.queue(), stage.queue()
    fill(queue, 10)
    consumer = queue.consume(gate)
    stage.until(lambda: len(gate.seen) == 1)
    stage.run(1)
    assert 1 <= consumer.unsettled <= share
    assert len(got(other, 10 - share)) == 10 - share
    for _ in range(20):
        gate.passes.release()
    consumer.cancel()


def test_a_quick_callback_is_fetched_ahead_of(stage: Stage) -> None:
    """From one message on more and more, up to the prefetch."""
    most = [0]
    queue = stage.queue()
    fill(queue, 2000)
    seen: list[Message] = []

    def work(message: Message) -> None:
        seen.append(message)
        most[0] = max(most[0], consumer.unsettled)

    consumer = queue.consume(work)
    stage.until(lambda: len(seen) == 2000)
    assert most[0] >= 32


def test_settling_twice_gives_no_more_credit(stage: Stage) -> None:
    """An ack of an acked message is refused, and the bound stays what it was."""
    share = 3 if stage.face.name == "sharded" else 1
    held: list[Message] = []
    queue = stage.queue()
    consumer = queue.consume(held.append, prefetch=2 * share, ack="manual")
    fill(queue, 20)
    stage.until(lambda: len(held) == 2)
    for _ in range(5):
        held[0].ack()
    stage.run(1)
    assert len(held) == 3
    assert (queue.qsize(), consumer.unsettled) == (17, 2)


def test_a_failing_callback_gives_the_message_back(stage: Stage) -> None:
    """Counted, after a delay; others are served meanwhile. What the callback has settled before it
    fails stays settled."""
    seen: list[tuple[bytes, int]] = []

    def work(message: Message) -> None:
        seen.append((message.body, message.delivery_count))
        if message.body == b"bad" and message.delivery_count < 3:
            raise RuntimeError("a user's mistake")
        message.ack()
        if message.body == b"bad":
            raise RuntimeError("a user's mistake")

    queue = stage.queue()
    queue.put_many([b"bad", b"good"]).result(WAIT_S)
    consumer = queue.consume(work, prefetch=1)
    stage.until(lambda: len(seen) == 4)
    stage.until(lambda: stage.messages() == 0)
    assert seen == [(b"bad", 1), (b"good", 1), (b"bad", 2), (b"bad", 3)]
    assert consumer.is_active


@case(BLOCKING)
def test_a_callback_that_returns_a_coroutine_has_failed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """As of an async def behind a plain decorator: nothing of it ran, so its message stays."""
    counts: list[int] = []

    async def work() -> None:
        raise AssertionError

    async def yielding() -> AsyncIterator[None]:
        yield

    def decorated(message: Message) -> object:
        counts.append(message.delivery_count)
        return {1: work, 2: yielding}.get(len(counts), lambda: None)()

    queue = stage.queue()
    fill(queue, 1)
    queue.consume(decorated)
    stage.until(lambda: stage.messages() == 0)
    assert counts == [1, 2, 3]
    for kind in ("coroutine", "async_generator"):
        assert f"the callback returned a {kind}, so its body never ran" in caplog.text
    with pytest.raises(TypeError, match="coroutine function"):
        queue.consume(yielding)  # type: ignore[arg-type]


def test_a_message_that_goes_back_stays_in_the_counts(stage: Stage) -> None:
    """At each moment: held, on its way back, or waiting for its time."""
    counts: set[int] = set()
    calls: list[int] = []

    def fail(message: Message) -> None:
        calls.append(message.sequence)
        raise RuntimeError("never done")

    def have_looked() -> bool:
        counts.add(stage.messages())
        return len(calls) >= 60

    queue = stage.queue()
    fill(queue, 1)
    stage.until(lambda: stage.messages() == 1)
    with queue.consume(fail, retry_delay="20ms", retry_delay_max="20ms"):
        stage.until(have_looked)
    assert counts == {1}


def test_a_message_comes_again_later_each_time(stage: Stage) -> None:
    """After twice as long, up to a bound; what has failed together comes again apart."""
    times: dict[int, list[float]] = {}

    def work(message: Message) -> None:
        times.setdefault(message.sequence, []).append(stage.cluster.now)
        if message.delivery_count < 5:
            raise RuntimeError("not yet")

    queue = stage.queue()
    with queue.consume(work, retry_delay="2s", retry_delay_max=timedelta(seconds=6)):
        fill(queue, 10)
        stage.until(lambda: len(times) == 10 and all(len(seen) == 5 for seen in times.values()))
    for seen in times.values():
        pauses = [after - before for before, after in pairwise(seen)]
        for pause, wanted in zip(pauses, (2, 4, 6, 6), strict=True):
            assert 0.74 * wanted <= pause <= 1.3 * wanted + 0.5
    assert len({round(seen[1], 2) for seen in times.values()}) > 3
    with pytest.raises(ConfigError, match="retry_delay_max is '1s': it must be at least"):
        queue.consume(work, retry_delay=2, retry_delay_max="1s")


def test_a_callback_that_returns_has_its_message_acked(stage: Stage) -> None:
    """The call that takes messages is as short as can be, and loses none."""
    seen: list[int] = []
    queue = stage.queue()
    fill(queue, 3)
    consumer = queue.consume(lambda message: seen.append(message.sequence), prefetch=1)
    stage.until(lambda: stage.messages() == 0)
    assert seen == [1, 2, 3]
    assert consumer.unsettled == 0


def test_a_callback_may_settle_its_message_otherwise(stage: Stage) -> None:
    """What it has given back, or ended, is not acked when it returns."""
    seen: list[tuple[bytes, int]] = []

    def work(message: Message) -> None:
        seen.append((message.body, message.delivery_count))
        if message.body == b"later" and message.delivery_count == 1:
            message.nack()
        elif message.body == b"never":
            message.nack(requeue=False)

    queue = stage.queue()
    refused: list[Message] = []
    queue.add_ack_listener(lambda message, _: refused.append(message))
    queue.put_many([b"later", b"never"]).result(WAIT_S)
    queue.consume(work, prefetch=1)
    stage.until(lambda: stage.messages() == 0)
    assert sorted(seen) == [(b"later", 1), (b"later", 2), (b"never", 1)]
    assert not refused


def test_a_program_may_ack_later(stage: Stage) -> None:
    """With `ack="manual"` a return settles nothing: another thread may have the message."""
    held: list[Message] = []
    queue = stage.queue()
    fill(queue, 2)
    consumer = queue.consume(held.append, ack="manual")
    stage.until(lambda: len(held) == 2)
    assert (consumer.unsettled, stage.messages()) == (2, 2)
    queue.ack_many(held).result(WAIT_S)
    assert (consumer.unsettled, stage.messages()) == (0, 0)


def test_cancelling_gives_back_what_was_not_begun(stage: Stage) -> None:
    """Uncounted; the one under way can still be acked."""
    gate, queue = Gate(), stage.queue()
    fill(queue, 40)
    consumer = queue.consume(gate, prefetch=0)
    for _ in range(35):
        gate.passes.release()  # it is quick: messages are fetched ahead of it
    stage.until(lambda: len(gate.seen) == 36)
    cancelling = stage.begin(consumer.cancel)
    stage.until(lambda: queue.qsize() == 4)
    gate.passes.release()
    cancelling.result(WAIT_S)
    stage.until(lambda: stage.messages() == 4)
    rest = got(queue, 4)
    assert [(m.sequence, m.redelivered) for m in rest] == [(n, False) for n in range(37, 41)]
    assert len(gate.seen) == 36


@case(THREADS)
def test_a_cancel_need_not_wait(stage: Stage) -> None:
    """The message under way is finished, and no other begins."""
    gate, queue = Gate(), stage.queue()
    consumer = queue.consume(gate)
    fill(queue, 5)
    stage.until(lambda: len(gate.seen) == 1)
    begun = stage.cluster.now
    consumer.cancel(wait=False)
    assert stage.cluster.now - begun < 0.5
    assert len(gate.seen) == 1
    gate.passes.release()
    stage.until(lambda: stage.messages() == 4)
    assert len(gate.seen) == 1


def test_a_callback_may_cancel_its_own_consumer(stage: Stage) -> None:
    """It does not wait for itself."""
    consumers: list[Any] = []
    done: list[int] = []

    def work(message: Message) -> None:
        message.ack()
        consumers[0].cancel()
        done.append(message.sequence)

    queue = stage.queue()
    consumers.append(queue.consume(work))
    fill(queue, 3)
    stage.until(lambda: done == [1])
    stage.until(lambda: queue.qsize() == 2)


def test_acks_at_receipt_need_no_ack_and_no_nack(stage: Stage) -> None:
    """A failing callback has lost its message: that is what `ack="receipt"` means."""
    seen: list[int] = []

    def work(message: Message) -> None:
        seen.append(message.sequence)
        raise RuntimeError

    queue = stage.queue()
    fill(queue, 3)
    queue.consume(work, ack="receipt", prefetch=3)
    stage.until(lambda: stage.messages() == 0)
    assert seen == [1, 2, 3]


@case(nodes=3)
def test_acks_at_receipt_may_lose_what_is_in_flight(stage: Stage) -> None:
    """The master ends while messages are on their way. What comes for the first time comes in
    order, what comes again is flagged, and a message that is put later is not lost."""
    seen: list[tuple[int, bool]] = []
    queue = stage.queue()
    queue.consume(
        lambda message: seen.append((int(message.body), message.redelivered)), ack="receipt"
    )

    def put() -> None:
        for first in range(0, 2000, 20):
            queue.put_many([b"%d" % (first + at) for at in range(20)]).result(10 * WAIT_S)

    putting = stage.begin(put)
    stage.until(lambda: len(seen) >= 100)
    assert len(seen) < 2000
    stage.cluster.crash("a")
    putting.result(10 * WAIT_S)
    queue.put(b"2000").result(10 * WAIT_S)
    stage.until(lambda: seen[-1][0] == 2000 and stage.messages() == 0)
    first = [number for number, redelivered in seen if not redelivered]
    assert first == sorted(set(first))
    anew = list(dict.fromkeys(number for number, _ in seen))
    assert anew == sorted(anew)


def test_consumers_take_turns(stage: Stage) -> None:
    """Two consumers share a queue; together they see every message once."""
    seen: list[list[int]] = [[], []]

    def worker(index: int) -> Any:
        def work(message: Message) -> None:
            seen[index].append(message.sequence)
            message.ack()

        return work

    one, other = stage.queue(), stage.queue()
    one.consume(worker(0), prefetch=3)
    other.consume(worker(1), prefetch=3)
    fill(one, 100)
    stage.until(lambda: sum(map(len, seen)) == 100)
    assert all(seen)
    assert sorted(seen[0] + seen[1]) == [*range(1, 101)]


@case(nodes=3)
def test_a_failover_is_told_once_to_who_asked(stage: Stage) -> None:
    """cancel_on_failover ends its consumer with one callback; the other one just goes on. A broken
    link is no failover."""
    cancelled: list[mirrorq.Consumer] = []
    seen: list[bytes] = []

    def work(message: Message) -> None:
        seen.append(message.body)
        message.ack()

    queue = stage.queue()
    leaving = queue.consume(ignore, on_cancel=cancelled.append, cancel_on_failover=True, prefetch=3)
    staying = queue.consume(work, on_cancel=cancelled.append)
    fill(queue, 1)
    stage.cluster.reset("a", "c")
    stage.run(2)
    assert leaving.is_active
    stage.fail_over()
    queue.put_many([b"after", b"after"]).result(WAIT_S)
    stage.until(lambda: b"after" in seen)
    stage.until(lambda: cancelled == [leaving])
    assert not leaving.is_active
    assert staying.is_active


@case(nodes=3)
def test_an_ack_across_a_failover_is_taken(stage: Stage) -> None:
    """What a callback held does not come to it again, and stands against its prefetch no more."""
    gate, queue = Gate(), stage.queue()
    fill(queue, 2)
    consumer = queue.consume(gate, prefetch=9)
    stage.until(lambda: len(gate.seen) == 1)
    stage.fail_over()
    gate.seen[0].ack().result(WAIT_S)
    assert consumer.unsettled <= 1
    gate.passes.release(2)
    stage.until(lambda: stage.messages() == 0)
    stage.until(lambda: consumer.unsettled == 0)
    assert [message.sequence for message in gate.seen] == [1, 2]


def test_an_exclusive_consumer_is_alone(stage: Stage) -> None:
    """Others, get() among them, get PreconditionFailed; when it has gone they may."""
    one, other = stage.queue(), stage.queue()
    first = one.consume(ignore, exclusive=True)
    calls = (
        lambda: other.consume(ignore),
        lambda: other.consume(ignore, exclusive=True),
        lambda: other.get(timeout=WAIT_S),
    )
    for call in calls:
        with pytest.raises(PreconditionFailed, match="exclusive"):
            call()
    # A call that does not wait may end before the refusal has come.
    assert isinstance(raised(other.get_nowait), PreconditionFailed | Empty)
    first.cancel()
    fill(one, 1)
    stage.until(lambda: raised(lambda: other.get(timeout=5)) is None)
    plain = other.consume(ignore)
    with pytest.raises(PreconditionFailed, match="other consumers"):
        one.consume(ignore, exclusive=True)
    plain.cancel()
    one.consume(ignore, exclusive=True).cancel()


def test_closing_the_handle_ends_its_consumers(stage: Stage) -> None:
    """No callback comes after; what was not begun is there for others."""
    seen: list[int] = []
    queue, other = stage.queue(), stage.queue()
    consumer = queue.consume(lambda message: (seen.append(message.sequence), message.ack()))
    fill(queue, 10)
    queue.close()
    assert not consumer.is_active
    count = len(seen)
    fill(other, 1)
    stage.run(5)
    assert len(seen) == count
    assert stage.messages() == 11 - count


@case(consumer_timeout_ms=1000)
def test_a_consumer_that_hangs_is_cancelled_and_its_messages_go_to_others(stage: Stage) -> None:
    """What it worked on comes again, redelivered; it learns of it."""
    queue, cancelled, gate = stage.queue(), [], Gate()
    fill(queue, 2)
    consumer = queue.consume(gate, prefetch=9, on_cancel=cancelled.append)
    stage.until(lambda: cancelled == [consumer])
    assert "consumer_timeout_ms" in consumer.refused
    assert not consumer.is_active
    found = got(queue, 2)
    assert [(m.sequence, m.delivery_count) for m in found] == [(1, 2), (2, 1)]
    gate.passes.release()
    queue.ack_many(found).result(WAIT_S)


@case(consumer_timeout_ms=1000)
def test_a_consumer_that_extends_its_message_is_not_cancelled(stage: Stage) -> None:
    """Work that takes longer than the time-out, with more messages behind it: each comes once."""
    seen: list[tuple[int, bool]] = []

    def work(message: Message) -> None:
        seen.append((message.sequence, message.redelivered))
        if message.sequence == 1:
            message.extend(timedelta(hours=1)).result(WAIT_S)
            stage.cluster.sleep(5)
        message.ack()

    queue = stage.queue()
    fill(queue, 2)
    consumer = queue.consume(work, prefetch=9)
    stage.run(4)
    assert consumer.is_active
    stage.until(lambda: stage.messages() == 0)
    assert seen == [(1, False), (2, False)]


def test_a_consumer_without_a_bound_holds_all_there_is(stage: Stage) -> None:
    """Far more than it is sent at once, those to come too."""
    count = UNBOUNDED_COUNT + 100 if stage.face.name != "aio" else 300
    held: list[Message] = []
    queue = stage.queue()
    fill(queue, count)
    consumer = queue.consume(held.append, prefetch=0, ack="manual")
    stage.until(lambda: len(held) == count)
    fill(queue, 10)
    stage.until(lambda: len(held) == count + 10)
    assert (consumer.prefetch, consumer.unsettled) == (0, count + 10)
    queue.ack_many(held).result(WAIT_S)
    assert consumer.unsettled == 0


def test_consumers_beyond_the_policy_are_refused(stage: Stage) -> None:
    stage.host.set_policy("few", "^orders$", {"max-consumers": 1})
    queue, other = stage.queue(), stage.queue()
    first = queue.consume(ignore)
    with pytest.raises(PreconditionFailed, match="max-consumers 1"):
        other.consume(ignore)
    first.cancel()
    stage.until(lambda: raised(lambda: other.consume(ignore).cancel()) is None)


def test_a_deleted_queue_cancels_its_consumers(stage: Stage) -> None:
    ended: list[Any] = []
    queue, other = stage.queue(), stage.queue()
    consumer = other.consume(ignore, on_cancel=lambda one: ended.extend([one, get_ident()]))
    queue.delete()
    stage.until(lambda: ended[:1] == [consumer])
    assert ended[1] == (stage.face.loop_thread or ended[1]) != get_ident()
    assert not consumer.is_active
