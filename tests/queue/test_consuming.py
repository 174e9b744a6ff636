"""The inside of get and consume: what is fetched ahead, what goes back, what a fork leaves."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import FakeHost, wait_until
from msgspec.structs import replace

import mirrorq
from mirrorq.api.consumer import PAUSE_FIRST_S, PAUSE_MAX_S, pause_s
from mirrorq.api.receiver import CALLS_AHEAD
from mirrorq.api.waits import Waits
from mirrorq.errors import QueueDown
from mirrorq.monitoring.status import QueueStatus
from mirrorq.protocol.sessions import Counts, Deliver, Delivery
from mirrorq.session import window

pytestmark = pytest.mark.real


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a function in a thread; its result comes into the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def fill(queue: mirrorq.MirroredQueue, count: int) -> None:
    """Publish bodies 0 to count - 1, confirmed."""
    queue.put_many([b"%d" % number for number in range(count)]).result(10)


def test_which_node_must_come_back_is_said_whatever_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue without a master is "paused" when the leader is late for a moment."""
    with FakeHost() as host, host.queue() as queue:
        host.down()
        wait_until(lambda: not queue._handle.session.available)  # type: ignore[union-attr]
        for state in ("down", "paused"):
            status = QueueStatus("q", state, warnings=("start a (failed)",))
            monkeypatch.setattr(host, "_queue_status", lambda _, status=status: status)
            with pytest.raises(QueueDown, match=r"has no master: start a \(failed\)"):
                queue.get_nowait()


def test_a_message_knows_its_handle() -> None:
    """As it was opened; of one that its user has dropped, another face of the same handle."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        message = queue.get(timeout=10)
        assert message.handle is queue
        assert message.queue == queue.name
        message.handle.ack_many([message]).result(10)
        assert queue.browse()[0].handle is queue
        other = host.queue()
        held = other.get(timeout=10)
        del other
        gc.collect()
        held.handle.ack_many([held]).result(10)
        held.handle.close()
        assert host.live == 0


def test_an_ack_finds_its_message_in_the_buffer_of_its_own_handle() -> None:
    """The new master handed it out again, to a handle whose user is still at work on it: the
    ack is taken and the message is not returned a second time."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 3)
        held = queue.get(timeout=10)
        host.fail_over()
        host.run(lambda: setattr(queue._handle.receiver._window, "size", 8))
        host._wake(queue._handle.session_id)
        wait_until(lambda: queue._handle.receiver.buffered == 3)
        held.ack().result(10)
        assert host.live == 2
        assert [queue.get(timeout=10).sequence for _ in range(2)] == [2, 3]


def test_two_waiting_handles_do_not_take_a_message_from_each_other() -> None:
    """A Recall asks for what nobody waits for: one waiting call gets it, the other goes on."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        calls = [in_thread(lambda q=q: q.get(timeout=10)) for q in (one, other)]
        wait_until(lambda: one._handle.receiver._demand == other._handle.receiver._demand == 1)
        steps = host.steps
        fill(one, 1)
        wait_until(lambda: any(results for _, results in calls), "one of them has it")
        assert host.steps - steps < 50
        fill(one, 1)
        for thread, results in calls:
            thread.join(10)
            assert isinstance(results[0], mirrorq.Message)


@pytest.mark.parametrize("kind", ["handle", "adapter"])
def test_what_goes_back_while_it_is_counted_is_counted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is late reads an answer of before, when a message was here that is with its
    master again: the queue is not empty for that."""
    monkeypatch.setattr(window, "IDLE_GIVEBACK_MS", 10**9)
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        queue.get(timeout=10)
        handle = queue._handle
        host.run(lambda: setattr(handle.receiver._window, "size", 8))
        queue.get(timeout=10)
        fill(queue, 5)
        wait_until(lambda: handle.receiver.buffered == 5, "it is fetched ahead")
        counting, answers = handle.counting, []

        def late_counting(timeout: float = 20) -> Waits[Counts]:
            answers.append((yield from counting(timeout)))
            host.run(lambda: handle.receiver.give_back(handle.session, 0))
            return answers[-1]

        monkeypatch.setattr(handle, "counting", late_counting)
        asked = queue if kind == "handle" else queue.as_queue()
        assert (asked.qsize(), asked.empty()) == (5, False)
        assert answers[0].ready == 0


def test_calls_that_take_many_have_more_fetched_ahead() -> None:
    """What is fetched ahead is bounded by a few calls, not by the prefetch alone, and falls when
    calls ask for little again."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 30_000)
        window = queue._handle.receiver._window
        few = window.size_max
        taken: list[mirrorq.Message] = []
        while len(taken) < 30_000:
            taken += queue.get_many(few, timeout=10)
            assert window.size <= CALLS_AHEAD * few
        assert [message.sequence for message in taken] == [*range(1, 30_001)]
        assert window.size_max == CALLS_AHEAD * few
        queue.ack_many(taken).result(10)
        fill(queue, 1)
        queue.get(timeout=10).ack().result(10)
        wait_until(lambda: window.size_max == few and window.size <= few, "the window falls")


def test_what_goes_back_while_more_is_on_its_way_comes_first_again() -> None:
    """A slow link, a caller who pauses and calls again: the order is the queue's, and nothing
    counts as delivered that no call has returned."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 40)
        taken = [queue.get(timeout=10)]
        host.run(lambda: setattr(queue._handle.receiver._window, "size", 8))
        taken.append(queue.get(timeout=10))
        wait_until(lambda: queue._handle.receiver.buffered == 8, "the buffer is full")
        host.hold_replies()
        taken += queue.get_many(5, timeout=10)
        wait_until(lambda: host.on_way > 0, "more is on its way")
        wait_until(lambda: queue._handle.receiver.buffered == 0, "the rest has gone back")
        host.hold_replies(False)
        while len(taken) < 40:
            taken += queue.get_many(10, timeout=10)
        assert [message.sequence for message in taken] == [*range(1, 41)]
        assert not any(message.redelivered for message in taken)
        queue.ack_many(taken).result(10)


def test_a_damaged_delivery_is_not_served() -> None:
    """A frame whose checksum is wrong is dropped, logged, and fetched again."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 1)
        damaged: list[int] = []
        fine = host._filled

        def damage(reply: Any) -> Any:
            filled = fine(reply)
            frames_ = getattr(filled.reply, "frames", ())
            if frames_ and not damaged:
                damaged.append(1)
                bad = bytearray(frames_[0])
                bad[-1] ^= 1
                bad[96] ^= 1
                return replace(filled, reply=replace(filled.reply, frames=(bytes(bad),)))
            return filled

        host._filled = damage  # type: ignore[method-assign]
        message = queue.get(timeout=10)
        assert damaged
        assert (message.body, message.redelivered) == (b"0", False)


def test_after_a_fork_the_child_is_told() -> None:
    """Every call in the child names both processes; the parent's handle goes on."""
    import os

    with FakeHost() as host, host.queue() as queue:
        fill(queue, 1)
        message = queue.get(timeout=10)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            lines = []
            for call in (lambda: queue.put(b"x"), queue.get_nowait, message.ack):
                try:
                    call()
                    lines.append("no error")
                except mirrorq.MirrorQError as error:
                    lines.append(str(error))
            queue.close()
            os.write(writer, "\n".join(lines).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = pipe.read().splitlines()
        os.waitpid(child, 0)
        assert len(told) == 3
        assert all(str(os.getpid()) in line and str(child) in line for line in told)
        message.ack().result(10)


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


def test_the_delay_of_a_failing_callback_grows_to_a_bound() -> None:
    """Doubled with each delivery."""
    assert [pause_s(count) for count in (1, 2, 3)] == [
        PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S,
    ]  # fmt: skip
    assert pause_s(10_000) == PAUSE_MAX_S
